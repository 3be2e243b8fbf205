"""Trackers get the metrics of a training; one that is missing is refused before it, and one that fails never stops it.

The libraries themselves are tested where they are installed (extra 'track').
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cli_helpers import error_line, train

from logosphere.runs import trackers
from logosphere.runs.run import Run


@pytest.fixture
def text(workplace: Path) -> str:
    Path("text.txt").write_text("a line of text to be learned.\n" * 60, encoding="utf-8")
    return "text.txt"


class FailingRun:
    """The interface of a run of wandb, with an account that is lost after some calls."""

    def __init__(self, fails_after: int):
        self.logged: list[tuple[dict[str, float], int]] = []
        self.fails_after, self.finished = fails_after, False

    def log(self, metrics: dict[str, float], step: int) -> None:
        if len(self.logged) >= self.fails_after:
            raise ConnectionError("no route to the server\nand a long explanation")
        self.logged.append((metrics, step))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A library whose failures are chosen, which those of the real one cannot be."""
    library = SimpleNamespace(run=FailingRun(1000), calls=[], problem=None)

    def init(**settings: Any) -> FailingRun:
        library.calls.append(settings)
        if library.problem is not None:
            raise library.problem
        return library.run

    module = ModuleType("wandb")
    module.__spec__ = SimpleNamespace(name="wandb")  # type: ignore[assignment]
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    yield library


def test_metrics_settings_and_the_end_reach_the_tracker(text: str, wandb: SimpleNamespace) -> None:
    assert train("--data", text, "--system", "mdlm", "--track", "wandb") == 0
    steps = [step for metrics, step in wandb.run.logged if "train/loss" in metrics]
    assert steps == [1, 2, 3, 4] and wandb.run.finished
    bits = [metrics["val/bpc"] for metrics, _ in wandb.run.logged if "val/bpc" in metrics]
    logged = Run("run").metrics()
    assert bits == [line["val/bpc"] for line in logged if "val/bpc" in line] and len(bits) == 2
    losses = [metrics["train/loss"] for metrics, _ in wandb.run.logged if "train/loss" in metrics]
    assert losses == [line["train/loss"] for line in logged if "train/loss" in line]
    (settings,) = wandb.calls
    assert settings["name"] == "run" and settings["config"]["recipe"]["system"] == "mdlm"
    assert json.dumps(settings["config"], default=str)


def test_a_resumed_training_continues_in_the_tracker(text: str, wandb: SimpleNamespace) -> None:
    assert train("--data", text, "--system", "mdlm", "--track", "wandb") == 0
    assert train("--data", text, "--system", "mdlm", "--track", "wandb", out="other") == 0
    with trackers.tracked("wandb", Run("run"), pytest.fail):
        pass
    first, other, again = (settings["id"] for settings in wandb.calls)
    assert first == again != other and wandb.calls[-1]["resume"] == "allow"


@pytest.mark.parametrize("after", [0, 3])
def test_a_tracker_that_fails_warns_once_and_does_not_stop_the_training(
    after: int, text: str, wandb: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb.run = FailingRun(after)
    assert train("--data", text, "--system", "mdlm", "--track", "wandb") == 0
    printed = capsys.readouterr().err
    assert printed.count("The tracker wandb failed (ConnectionError: no route to the server)") == 1
    assert "long explanation" not in printed and len(wandb.run.logged) == after
    assert max(line["step"] for line in Run("run").metrics()) == 4


def test_a_tracker_that_cannot_be_opened_is_refused(
    text: str, wandb: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb.problem = RuntimeError("no account")
    line = error_line(capsys, ["train", "--data", text, "--track", "wandb", "--steps", "2", "--out", "run"])
    assert "wandb could not be opened (RuntimeError: no account)" in line


def test_a_missing_tracker_is_refused_before_anything_is_written(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    for option in (["--track", "trackio"], ["--track", "tensorboard"], ["--tensorboard"]):
        line = error_line(capsys, ["train", "--data", text, "--out", "run", *option])
        assert "is not installed" in line and "logosphere[track]" in line
    assert not Path("run").exists()
    line = error_line(capsys, ["train", "--data", text, "--out", "run", "--tensorboard", "--track", "wandb"])
    assert "two trackers" in line
    assert "tensorboard" in error_line(capsys, ["train", "--track", "tensorbord"], code=2)


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@installed("tensorboard")
def test_tensorboard_itself(text: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("--data", text, "--system", "mdlm", "--tensorboard") == 0
    read = EventAccumulator("run/tensorboard")
    read.Reload()
    assert {"train/loss", "val/bpc", "gradient"} <= set(read.Tags()["scalars"])
    assert [event.step for event in read.Scalars("train/loss")] == [1, 2, 3, 4]
    expected = [line["train/loss"] for line in Run("run").metrics() if "train/loss" in line]
    assert [event.value for event in read.Scalars("train/loss")] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@installed("wandb")
def test_wandb_itself(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert train("--data", text, "--system", "mdlm", "--track", "wandb") == 0
    (file,) = Path("run/wandb").glob("offline-run-*/run-*.wandb")
    assert b"train/loss" in file.read_bytes()


@pytest.mark.slow
@installed("trackio")
def test_trackio_itself(text: str, tmp_path: Path) -> None:
    """In a process of its own: trackio reads the folder of its database when it is imported."""
    code = "import sys; from cli_helpers import train; sys.exit(train(*sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "--data", text, "--system", "mdlm", "--track", "trackio", "--json"]
    place = {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, env=os.environ | place, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["step"] == 4
    (file,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    assert {1, 2, 3, 4} <= {step for step, _ in rows} and "train/loss" in str(rows)
