"""Records of the trainings that the weights of a model come from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from logosphere.errors import UserError


@dataclass(frozen=True)
class TrainingRecord:
    """One training: the text, and what it took."""

    data: str
    sha256: str
    steps: int
    tokens: int
    cpu_seconds: float
    begin: str | None = None
    """The run or bundled checkpoint whose weights it started from; None for random weights."""


@dataclass(frozen=True)
class ParentCheckpoint:
    """The weights that a training starts from, and where they come from."""

    name: str
    """As it was given: a folder or pretrained:NAME."""
    weights: Path
    weights_sha256: str
    trainings: tuple[TrainingRecord, ...]

    def content(self) -> dict[str, Any]:
        """For recipe.json."""
        trainings = [asdict(training) for training in self.trainings]
        return {"with": self.name, "weights_sha256": self.weights_sha256, "trainings": trainings}


def read_records(content: Any, place: Path) -> tuple[TrainingRecord, ...]:
    """Trainings as stored in a recipe.json, validated."""
    try:
        read = tuple(TrainingRecord(**one) for one in content)
        if all(_is_valid(one) for one in read):
            return read
    except TypeError:
        pass  # the error below covers this, too
    raise UserError(f"{place} has no valid record of the trainings of the model; restore it from a copy.")


def _is_valid(one: TrainingRecord) -> bool:
    texts = isinstance(one.data, str) and isinstance(one.sha256, str) and isinstance(one.begin, str | None)
    return texts and all(
        isinstance(count, int | float) and 0 <= count < float("inf")
        for count in (one.steps, one.tokens, one.cpu_seconds)
    )


def sum_records(trainings: Sequence[TrainingRecord]) -> TrainingRecord:
    """The sum of several trainings as one record."""
    return TrainingRecord(
        data=", then ".join(name for name, _ in groupby(one.data for one in trainings)),
        sha256=trainings[-1].sha256 if trainings else "",
        steps=sum(one.steps for one in trainings),
        tokens=sum(one.tokens for one in trainings),
        cpu_seconds=sum((one.cpu_seconds for one in trainings), 0.0),
        begin=trainings[-1].begin if trainings else None,
    )
