"""Runs within tests, complete or stopped, and the parts of them that must be bit-identical."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_run import RECIPE

from logosphere.data.corpus import Corpus
from logosphere.io import read_tensors
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run
from logosphere.runs.loop import Event, run_training
from logosphere.runs.run import Run
from logosphere.training.optimizer import OptimizerConfig

LOW_RATE = replace(RECIPE, steps=8, batch=6, validations=2, optim=OptimizerConfig(lr=1e-3, warmup=3), task="infilling")
"""A learning rate at which rounding does not grow: several processes sum in another order."""


def forget_hashes(folder: Path) -> None:
    """Leave out the hashes of the weights, as in a folder of an earlier version, so that others may be put there."""
    recipe = json.loads((folder / "recipe.json").read_text())
    (folder / "recipe.json").write_text(json.dumps({name: part for name, part in recipe.items() if name != "files"}))


def complete_run(recipe: TrainConfig, corpus: Corpus, path: Path) -> tuple[Run, list[Event]]:
    """Create a run and train it to its end."""
    run = create_run(recipe, corpus, path)
    return run, list(run_training(run, corpus))


def stop_after(steps: int) -> Callable[[], bool]:
    """A stop condition for `run_training` that becomes true after `steps` steps."""
    checks = iter(range(steps + 1))
    return lambda: next(checks, steps) >= steps


def metrics_without_times(run: Run) -> list[dict[str, Any]]:
    """The metrics of a run without its timings."""
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in run.metrics()]


def metric_values(run: Run, key: str = "train/loss") -> list[float]:
    """All values of one metric, in the order of steps."""
    return [line[key] for line in run.metrics() if key in line]


def tensor_bytes(path: Path) -> list[bytes]:
    """The bytes of all tensors of a file, in the order of their names."""
    return [tensor.numpy().tobytes() for _, tensor in sorted(read_tensors(path).items())]
