"""Run the notebooks of the documentation and store their outputs: python tools/run_notebooks.py

The cells run in this process, without Jupyter. Outputs are what a notebook shows: printed text, and the value of the
last expression of a cell, as a drawing or as text. The badge and the cell that installs the package on Colab are set.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
REPOSITORY = "logosphere/logosphere"
"""Where Colab reads the notebooks from, on GitHub."""
MAX_BYTES = 300_000
INSTALL = """\
import subprocess
import sys
from importlib.util import find_spec

if find_spec("logosphere") is None:  # on Colab
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "logosphere"], check=True)
"""


COLAB = "https://colab.research.google.com"


def colab_address(name: str) -> str:
    """Where a notebook opens on Colab."""
    return f"{COLAB}/github/{REPOSITORY}/blob/main/docs/notebooks/{name}.ipynb"


def badge(name: str) -> str:
    """The Markdown of the badge in a notebook. Pages of the documentation have plain links: they load nothing."""
    return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({colab_address(name)})"


def run_cell(cell: str, namespace: dict[str, object]) -> object:
    """Run a cell as a notebook does and return the value of its last expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if isinstance(last, ast.Expr) else None


def make_outputs(printed: str, value: object, count: int) -> list[dict[str, Any]]:
    """The outputs of a cell in the format of notebooks (nbformat 4)."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if value is not None:
        draw = getattr(value, "_repr_svg_", None)
        shown = {"text/plain": [repr(value)]} if draw is None else {
            "image/svg+xml": draw().splitlines(keepends=True), "text/plain": [f"<{type(value).__name__}>"],
        }  # fmt: skip
        outputs.append({"data": shown, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def execute(content: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of all its cells."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                value = run_cell("".join(cell["source"]), namespace)
            cell = cell | {"execution_count": count, "outputs": make_outputs(printed.getvalue(), value, count)}
        cells.append(cell)
    return content | {"cells": cells}


def prepare(content: dict[str, Any], name: str) -> dict[str, Any]:
    """The notebook with its badge first and the installation on Colab before all other code."""
    cells = [cell for cell in content["cells"] if cell["id"] not in ("badge", "install")]
    first = {"cell_type": "markdown", "id": "badge", "metadata": {}, "source": [badge(name)]}
    install: dict[str, Any] = {
        "cell_type": "code", "execution_count": None, "id": "install", "metadata": {}, "outputs": [],
        "source": INSTALL.strip().splitlines(keepends=True),
    }  # fmt: skip
    return content | {"cells": [first, cells[0], install, *cells[1:]]}


def main() -> int:
    for path in sorted(FOLDER.glob("*.ipynb")):
        content = execute(prepare(json.loads(path.read_text(encoding="utf-8")), path.stem))
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        if len(text.encode()) > MAX_BYTES:
            print(f"{path.name} would have {len(text.encode()):,} bytes; at most {MAX_BYTES:,} are stored")
            return 1
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(text.encode()):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
