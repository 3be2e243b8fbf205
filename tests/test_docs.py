"""The documentation: its Python runs, its commands parse, and its links resolve.

Every `python` block of every page is executed, the blocks of a page one after another. Of every `bash` block each
`logosphere` command is parsed; those of the tutorial are executed with small settings.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
import results_tables

from logosphere.cli import COMMANDS, main, parse_arguments
from logosphere.cli.train_options import parse_train_options, split_recipe
from logosphere.runs.recipes import recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """The arguments of every `logosphere` command on a page."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("logosphere ")]


# ---- Python --------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return tmp_path


NEW_PROCESS = ROOT / "docs" / "new-process.md"
EXECUTED = [page for page in PAGES if blocks(page, "python") and page != NEW_PROCESS]


@pytest.mark.thorough
@pytest.mark.parametrize("page", EXECUTED, ids=named)
def test_python_blocks_run(page: Path, elsewhere: Path) -> None:
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, named(page), "exec"), namespace)


ADD_A_SYSTEM = """
import sys

from logosphere.systems import registry

sys.modules["logosphere.systems"].__path__.append({folder!r})
registry.FAMILIES = (*registry.FAMILIES, "linear_masking")
"""
CHECK_A_SYSTEM = """
gap = bound.total + language.log_prob(tokens)
assert abs(float(gap.mean())) < 3 * float(gap.std()) / len(gap) ** 0.5
assert ls.options("linear-masking")["block"] is None and registry.option_docs("linear-masking")["block"]
"""


def test_the_page_on_new_processes_adds_a_system(elsewhere: Path) -> None:
    """In a process of its own, because the registry of systems is global."""
    file, *rest = blocks(NEW_PROCESS, "python")
    (elsewhere / "linear_masking.py").write_text(file, encoding="utf-8")
    script = "\n".join([ADD_A_SYSTEM.format(folder=str(elsewhere)), *rest, CHECK_A_SYSTEM])
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# ---- commands ------------------------------------------------------------------------------------------------


def test_documented_commands_parse() -> None:
    read = 0
    for page in PAGES:
        for command, *argv in commands(page):
            if command == "--help":
                continue
            assert command in COMMANDS, f"{named(page)}: {command}"
            if command == "train" and "--begin" in argv:  # parsing opens the parent folder, which need not exist here
                parse_train_options(split_recipe(argv)[1], recipe(split_recipe(argv)[0] or "demo"))
            else:
                parse_arguments(command, argv)
            read += 1
    assert read > 30


SMALL = {
    "train": "--steps 2 --length 64 --batch 4 --network.width 16 --network.depth 1 --network.heads 2 "
    "--validations 1 --validation-sequences 4",
    "evaluate": "--sequences 4 --draws 1",
    "sample": "--steps 3 -n 1",
}


@pytest.mark.slow
def test_the_tutorial_runs(elsewhere: Path) -> None:
    shown = commands(ROOT / "docs" / "tutorial.md")
    assert {argv[0] for argv in shown} >= {"train", "evaluate", "sample", "plot", "compare", "studio"}
    for argv in shown:
        if argv[0] not in ("compare", "studio"):  # tests/test_comparison.py and tests/test_studio.py run these
            assert main([*argv, *shlex.split(SMALL.get(argv[0], ""))]) == 0, argv
    assert (elsewhere / "film.html").exists()


# ---- links ---------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def is_shown(page: Path, name: str) -> bool:
    """Does an API page show this module or object? It must exist and be public."""
    shown = re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if not any(name == one or name.startswith(f"{one}.") for one in shown) or "._" in name:
        return False
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return bool(found.__doc__)
    return False


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{named(page)} links to {target}"
        if anchor.startswith("logosphere."):
            assert is_shown(found, anchor), f"{named(page)} links to {target}"
        elif anchor:
            assert anchor in anchors(found), f"{named(page)} links to {target}"


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}\n" in contents, page.name


def test_every_module_is_in_the_reference() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: logosphere\.(\S+)$", pages, flags=re.MULTILINE))
    there = [
        path for path in (ROOT / "logosphere").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert shown == {path.stem for path in there if not path.stem.startswith("__")}


# ---- results -------------------------------------------------------------------------------------------------


def test_result_tables_match_the_records() -> None:
    assert results_tables.find_problems(results_tables.find_pages()) == []


def test_records_are_complete() -> None:
    records, _ = results_tables.load()
    assert len(records) > 1500
    for record in records:
        assert {"value", "low", "text"} & {name for name in record if record[name] is not None}, record
        assert record["date"], record
        assert record["path"] in (None, "joint", "any-order"), record


# ---- notebooks -----------------------------------------------------------------------------------------------


def run_cell(cell: str, namespace: dict[str, object]) -> object:
    """Run a cell as a notebook does and return the value of its last expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if isinstance(last, ast.Expr) else None


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=named)
def test_notebooks_run_and_produce_figures(notebook: Path, elsewhere: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and content["metadata"]["language_info"]["name"] == "python"
    namespace: dict[str, object] = {}
    drawings = 0
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None  # committed without outputs
            shown = run_cell("".join(cell["source"]), namespace)
            if shown is not None:
                drawing = ElementTree.fromstring(shown._repr_svg_())
                assert len(list(drawing.iter())) > 20
                drawings += 1
    assert drawings >= 4


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "sphere"]
