"""What commands share that teach a small network beside a trained model, which stays as it is."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro

from logosphere.cli.console import bar
from logosphere.errors import UserError

if TYPE_CHECKING:
    from logosphere.data.splits import Split
    from logosphere.model import Model
    from logosphere.training.optim import Optim
    from logosphere.types import Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Lessons:
    """How long and on what to teach."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    steps: int = 500
    """Steps to train."""
    batch: int = 64
    """Sequences per step."""
    lr: float = 2e-3
    """Largest step size."""
    seed: int = 0
    """Fixes data order and noise."""
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise UserError("The number of steps and the batch must be at least 1.")

    def batches(self, split: "Split", model: "Model") -> "Iterator[Batch]":
        """One for each step."""
        from logosphere.data.batches import train_batches

        return map(train_batches(split, model.length, self.batch, self.seed).at, range(self.steps))

    def optim(self) -> "Optim":
        from logosphere.training.optim import Optim

        return Optim(lr=self.lr, warmup=min(50, self.steps // 10))

    def taken(self, title: str, each: Iterable[T], figures: Callable[[T], str]) -> T:
        """Take all steps and show figures of them; the last one."""
        with bar(title) as shown:
            for number, done in enumerate(each, start=1):
                shown.update(number / self.steps, f"step {number}/{self.steps}  {figures(done)}")
        return done
