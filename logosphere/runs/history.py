"""What a model has already been through: every training that its weights come from, as plain data."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from logosphere.errors import UserError


@dataclass(frozen=True)
class Trained:
    """One training: the text, and what it took."""

    data: str
    sha256: str
    steps: int
    tokens: int
    cpu_seconds: float
    begin: str | None = None
    """The run or bundled checkpoint it began with; None for random weights."""


@dataclass(frozen=True)
class Beginning:
    """The weights that a training begins with, and where they come from."""

    name: str
    """As it was given: a folder or pretrained:NAME."""
    weights: Path
    weights_sha256: str
    trainings: tuple[Trained, ...]

    def content(self) -> dict[str, Any]:
        """For recipe.json."""
        told = [asdict(training) for training in self.trainings]
        return {"with": self.name, "weights_sha256": self.weights_sha256, "trainings": told}


def trainings_from(content: Any, place: Path) -> tuple[Trained, ...]:
    """Trainings as a recipe.json holds them, checked."""
    try:
        read = tuple(Trained(**one) for one in content)
        if all(_sound(one) for one in read):
            return read
    except TypeError:
        pass  # the sentence below is for this, too
    raise UserError(f"{place} does not say what the model has seen; restore it from a copy.")


def _sound(one: Trained) -> bool:
    texts = isinstance(one.data, str) and isinstance(one.sha256, str) and isinstance(one.begin, str | None)
    return texts and all(
        isinstance(count, int | float) and 0 <= count < float("inf")
        for count in (one.steps, one.tokens, one.cpu_seconds)
    )


def total(trainings: Sequence[Trained]) -> Trained:
    """All trainings as if they were one."""
    return Trained(
        data=", then ".join(name for name, _ in groupby(one.data for one in trainings)),
        sha256=trainings[-1].sha256 if trainings else "",
        steps=sum(one.steps for one in trainings),
        tokens=sum(one.tokens for one in trainings),
        cpu_seconds=sum(one.cpu_seconds for one in trainings),
        begin=trainings[-1].begin if trainings else None,
    )
