"""Trackers: the metrics of a training, copied to tensorboard, wandb or trackio while it runs.

A tracker that is not installed is refused before the training. One that fails later is left out with a warning: the
metrics are in metrics.jsonl, and a training does not end because of a network.
"""

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Protocol

from logosphere.errors import UserError, suggest
from logosphere.io import cached
from logosphere.runs.loop import Event, StepTaken, Validated
from logosphere.runs.run import SHORT, Run

PROJECT = "logosphere"


class Tracker(Protocol):
    """Something that records metrics."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    """Event files in the folder of the run."""

    def __init__(self, run: Run):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.path / "tensorboard"))

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """A run of Weights & Biases; a resumed training continues it."""

    def __init__(self, run: Run):
        import wandb

        self.run: Any = wandb.init(
            project=PROJECT, name=run.path.name, id=_identity(run), resume="allow", dir=run.path, config=_settings(run)
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class _Trackio:
    """A run of trackio, which is named as the folder is and by a random part; a resumed training continues it."""

    def __init__(self, run: Run):
        import trackio

        name = f"{run.path.name}-{_identity(run)}"
        self.run: Any = trackio.init(project=PROJECT, name=name, resume="allow", config=_settings(run))

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, tuple[str, Callable[[Run], Tracker]]] = {
    "tensorboard": ("tensorboard", _TensorBoard),
    "wandb": ("wandb", _Wandb),
    "trackio": ("trackio", _Trackio),
}
"""The package that each tracker needs, and what opens it."""


def check_tracker(name: str) -> None:
    """Raise UserError for a tracker that is unknown or not installed."""
    if name not in TRACKERS:
        raise UserError(f"There is no tracker '{name}'.{suggest(name, TRACKERS)}")
    package, _ = TRACKERS[name]
    if find_spec(package) is None:
        raise UserError(f"The tracker {name} is not installed; get it with: pip install 'logosphere[track]'")


@contextmanager
def tracked(name: str, run: Run, warn: Callable[[str], None]) -> Iterator[Callable[[Event], None]]:
    """A function that copies events of the training of a run to a tracker; `warn` is called once if that fails."""
    check_tracker(name)
    try:
        with redirect_stdout(sys.stderr):  # where remarks belong: results are printed on standard output
            tracker: Tracker | None = TRACKERS[name][1](run)
    except Exception as problem:  # of any class: the libraries pass on errors of accounts, files and networks
        raise UserError(
            f"The tracker {name} could not be opened ({_first_line(problem)}); see its own help."
        ) from problem

    def attempt(act: Callable[[Tracker], None]) -> None:
        nonlocal tracker
        if tracker is None:
            return
        try:
            with redirect_stdout(sys.stderr):
                act(tracker)
        except Exception as problem:
            tracker = None
            warn(f"The tracker {name} failed ({_first_line(problem)}); the training continues without it.")

    def on_event(event: Event) -> None:
        step, metrics = _metrics(event)
        if metrics:
            attempt(lambda tracker: tracker.log(metrics, step))

    try:
        yield on_event
    finally:
        attempt(lambda tracker: tracker.close())


def _metrics(event: Event) -> tuple[int, dict[str, float]]:
    """The step of an event and its metrics, with the names that they have in metrics.jsonl."""
    match event:
        case StepTaken(progress=p):
            return p.step, {"train/loss": p.loss, "lr": p.lr, "gradient": p.gradient, "tokens": p.tokens}
        case Validated(step=step, report=report):
            return step, {f"val/{SHORT[report.unit]}": report.bits, "val/error": report.error}
        case _:
            return 0, {}


def _settings(run: Run) -> dict[str, Any]:
    """The model and the configuration of a run."""
    return {"model": run.spec.content(), "recipe": asdict(run.config)}


def _identity(run: Run) -> str:
    """A random name that the run keeps."""
    return str(cached(run.path / "tracker.json", "name", lambda: secrets.token_hex(6)))


def _first_line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
