"""The replay of the first hour of a new user, with tiny networks and in this environment."""

import json
import subprocess
import sys
from pathlib import Path

import first_hour
import pytest
from text_fixtures import PROSE, write_file


@pytest.mark.slow
def test_the_first_hour_is_replayed(tmp_path: Path) -> None:
    text = write_file(tmp_path / "book.txt", PROSE * 20)
    steps = {step.name: step for step in first_hour.replay(tmp_path, 0.01, text, here=True, quick=True)}
    assert list(steps) == [
        "sample a bundled model", "train on a text", "train longer", "evaluate", "continue a prompt", "fill a gap",
        "compare", "export", "sample elsewhere", "load elsewhere",
    ]  # fmt: skip
    assert all(step.printed and step.seconds > 0 for step in steps.values())
    assert steps["continue a prompt"].printed.startswith("Line the")
    assert "bits per" in steps["evaluate"].printed and "blind guessing" in steps["train longer"].printed
    assert all(name in steps["compare"].printed for name in ("rdlm", "mdlm", "ar"))
    work = tmp_path / "work"
    assert (work / "report.html").is_file() and not (tmp_path / "env").exists()
    spent = [json.loads(line)["step"] for line in (work / "runs/mine/metrics.jsonl").read_text().splitlines()]
    recipe = json.loads((work / "runs/mine/recipe.json").read_text())["recipe"]
    assert recipe["minutes"] == pytest.approx(0.015) and spent == sorted(spent)


def test_a_step_that_fails_ends_the_replay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]
    with pytest.raises(SystemExit, match="install ended with 3:\nwhy"):
        first_hour.measure("install", command, tmp_path)


def test_the_replay_is_a_program() -> None:
    done = subprocess.run([sys.executable, first_hour.__file__, "--help"], capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and "--here" in done.stdout and "--minutes" in done.stdout
