"""Every wrong call of tests/bad_calls.py raises a UserError of one sentence, in a process without type checks."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "bad_calls.py"


def list_calls() -> list[str]:
    """The names of the calls, read from the source: importing the program would build its models."""
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    (calls,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CALLS"
    ]
    assert isinstance(calls, ast.Dict)
    return [key.value for key in calls.keys if isinstance(key, ast.Constant)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each call raised."""
    paths = os.pathsep.join([str(PROGRAM.parent.parent), os.environ.get("PYTHONPATH", "")])
    folder = tmp_path_factory.mktemp("calls")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, "PYTHONPATH": paths, "LOGOSPHERE_CACHE": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (folder / "x").exists(), "a model that cannot be saved leaves no folder"
    return json.loads(done.stdout)


def test_there_are_many_calls() -> None:
    names = list_calls()
    assert len(names) == len(set(names)) > 150


@pytest.mark.parametrize("name", list_calls())
def test_a_wrong_call_raises_one_sentence(name: str, outcomes: dict[str, str]) -> None:
    kind, _, message = outcomes[name].partition(": ")
    assert kind == "UserError", outcomes[name]
    assert "\n" not in message and len(message) < 400 and message[-1] in ".?", message
