"""The documentation: its Python runs, its commands parse, and its links resolve.

Every `python` block of every page is executed, the blocks of a page one after another. Of every `bash` block each
`logosphere` command is parsed; those of the tutorial are executed with small settings.
"""

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
import run_notebooks
from page_helpers import blocks, commands

from logosphere.cli import COMMANDS, main, parse_arguments
from logosphere.cli.train_options import parse_train_options, split_recipe
from logosphere.runs.recipes import recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- Python --------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    return tmp_path


NEW_PROCESS = ROOT / "docs" / "new-process.md"
OWN_NETWORKS = ROOT / "docs" / "own-networks.md"
EXECUTED = [page for page in PAGES if blocks(page, "python") and page not in (NEW_PROCESS, OWN_NETWORKS)]


@pytest.mark.thorough
@pytest.mark.parametrize("page", EXECUTED, ids=named)
def test_python_blocks_run(page: Path, elsewhere: Path) -> None:
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, named(page), "exec"), namespace)


CHECK_A_SYSTEM = """
gap = bound.total + language.log_prob(tokens)
assert abs(float(gap.mean())) < 3 * float(gap.std()) / len(gap) ** 0.5
assert text.startswith("the ") and len(text) == 32
assert ls.options("linear-masking")["block"] is None
from logosphere.systems import option_docs
assert option_docs("linear-masking")["block"]
"""


def test_the_page_on_new_processes_adds_a_system(elsewhere: Path) -> None:
    """In a folder outside of the repository, and in a process of its own, because the registry of systems is global."""
    file, *rest = blocks(NEW_PROCESS, "python")
    assert "ls.fit" in rest[1] and "model.save" in rest[1] and "ls.load" in rest[2]
    (elsewhere / "linear_masking.py").write_text(file, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), str(elsewhere), os.environ.get("PYTHONPATH", "")])
    for script in ("\n".join([*rest, CHECK_A_SYSTEM]), rest[2]):  # the last block is another program
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_the_page_on_own_networks_runs(elsewhere: Path) -> None:
    """In a process of its own, because the registries are global; its modules are files of the folder."""
    file, *rest = blocks(OWN_NETWORKS, "python")
    (elsewhere / "my_networks.py").write_text(file, encoding="utf-8")
    script = "\n".join([*rest, "assert len(texts) == 2 and loaded.tokenizer is not None"])
    paths = os.pathsep.join([str(ROOT), str(elsewhere), os.environ.get("PYTHONPATH", "")])
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
            if command == "train" and {"--begin", "--init-from"} & {*argv}:  # opens the parent, which need not exist
                parse_train_options(split_recipe(argv)[1], recipe(split_recipe(argv)[0] or "demo"))
            else:  # nor does a recipe in a file of the reader
                parse_arguments(command, ["demo" if command == "compare" and word.endswith(".yaml") else word
                                          for word in argv])  # fmt: skip
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


def code_cells(content: dict) -> list[dict]:
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def describe_output(output: dict) -> tuple:
    """What kind of output it is, and its text with every number as #: numbers differ a little between machines."""
    text = output.get("text") or output["data"]["text/plain"]
    masked = re.sub(r"-?\d+(\.\d+)?", "#", re.sub(r" +", " ", "".join(text)))
    return output["output_type"], sorted(output.get("data", ())), masked


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=named)
def test_notebooks_run_and_show_what_is_stored(notebook: Path, elsewhere: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and content["metadata"]["language_info"]["name"] == "python"
    drawings = 0
    for stored, found in zip(code_cells(content), code_cells(run_notebooks.execute(content)), strict=True):
        assert stored["execution_count"] == found["execution_count"]
        for kind in ("stream", "execute_result"):
            one, two = ([o for o in cell["outputs"] if o["output_type"] == kind] for cell in (stored, found))
            if not any("sample:" in "".join(o.get("text", "")) for o in one):  # a sample may differ between machines
                assert list(map(describe_output, one)) == list(map(describe_output, two))
        for output in stored["outputs"]:
            if "image/svg+xml" in output.get("data", {}):
                drawing = ElementTree.fromstring("".join(output["data"]["image/svg+xml"]))
                assert len(list(drawing.iter())) > 20
                drawings += 1
    assert drawings >= 4


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=named)
def test_notebooks_are_stored_with_outputs_and_a_badge(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert len(text.encode()) < run_notebooks.MAX_BYTES
    assert not re.search(r"(/root/|/home/|/tmp/|/Users/|[A-Z]:\\\\)", text)
    content = json.loads(text)
    assert run_notebooks.prepare(content, notebook.stem) == content | {
        "cells": [
            cell | ({"execution_count": None, "outputs": []} if cell["id"] == "install" else {})
            for cell in content["cells"]
        ]
    }
    assert "".join(content["cells"][0]["source"]) == run_notebooks.badge(notebook.stem)
    assert f"[Open in Colab]({run_notebooks.colab_address(notebook.stem)})" in (ROOT / "docs/notebooks.md").read_text(
        encoding="utf-8"
    )
    cells = code_cells(content)
    assert all(cell["execution_count"] == number for number, cell in enumerate(cells, 1))
    assert sum(bool(cell["outputs"]) for cell in cells) >= 4


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "sphere"]
