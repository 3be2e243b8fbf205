"""The training loop over an iterable of batches.

It yields after every step; logging, validating, saving and stopping are done by the caller.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Progress, Trainer
from logosphere.types import Batch, Tokens

S = TypeVar("S", covariant=True)


@runtime_checkable
class TakesSteps(Protocol[S]):
    """Anything that the loop can train: the trainer of a model, or that of an auxiliary network."""

    step: int

    def train_step(self, batch: Batch, done: float) -> S: ...


def training_loop(trainer: TakesSteps[S], batches: Iterable[Batch | Tokens], steps: int) -> Iterator[S]:
    """Train for `steps` steps with one batch each, and yield after every one."""
    first = 0
    for given in islice(batches, steps):
        batch = Batch.of(given, first=first) if isinstance(given, Tensor) else given
        first += len(batch)
        yield trainer.train_step(batch, trainer.step / steps)
    if trainer.step < steps:
        raise UserError(f"The data ended after {trainer.step} of {steps} batches.")


def fit(
    model: Model,
    batches: Iterable[Batch | Tokens],
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    ema: float | None = None,
    seed: int = 0,
    accumulate: int = 1,
    draws: int = 1,
    precision: str = "float32",
    cond_dropout: float = 0.1,
    withhold: float | None = None,
    static_shapes: bool = False,
) -> Iterator[Progress]:
    """Train for `steps` steps, one batch each, and yield after every one.

    The loss of a sequence is the mean over `draws` noisy copies of it. The condition of a fraction `cond_dropout` of
    the sequences is dropped, which guidance needs; `withhold` is its former name. With `ema` the model holds its
    averaged weights once all steps are done. With `static_shapes` tensors have the same shapes in every step
    (`Process.static_shapes`).
    """
    trainer = Trainer(
        model, optim=optim, ema=ema, seed=seed, accumulate=accumulate, draws=draws, precision=precision,
        steps=steps, cond_dropout=cond_dropout if withhold is None else withhold, static_shapes=static_shapes,
    )  # fmt: skip
    yield from training_loop(trainer, batches, steps)
    if trainer.ema is not None:
        trainer.ema.swap()
