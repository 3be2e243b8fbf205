"""The training loop over an iterable of batches.

It yields after every step; logging, validating, saving and stopping are done by the caller.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

from logosphere.errors import UserError, check_count, shorten
from logosphere.inputs import DataLike
from logosphere.model import Model
from logosphere.rng import as_seed
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.stages import begin_second_stage, begins_second_stage, overall, stage_of
from logosphere.training.trainer import Progress, Trainer
from logosphere.types import Batch

S = TypeVar("S", covariant=True)


@runtime_checkable
class TakesSteps(Protocol[S]):
    """Anything that the loop can train: the trainer of a model, or that of an auxiliary network."""

    step: int

    def train_step(self, batch: Batch, done: float) -> S: ...


def training_loop(trainer: TakesSteps[S], batches: Iterable[Batch], steps: int) -> Iterator[S]:
    """Train for `steps` steps with one batch each, and yield after every one."""
    for batch in islice(batches, steps):
        yield trainer.train_step(batch, trainer.step / steps)
    if trainer.step < steps:
        raise UserError(f"The data ended after {trainer.step} of {steps} batches.")


def _train_stages(trainer: Trainer, batches: Iterable[Batch], first: int, steps: int) -> Iterator[Progress]:
    """Train an autoencoder for `first` steps, and the diffusion of its latents for `steps`."""
    fraction = stage_of(trainer.model).stage_one
    for batch in islice(batches, first + steps):
        second = trainer.step >= first
        if trainer.step == first:
            begin_second_stage(trainer.model)
        done = (trainer.step - first) / steps if second else trainer.step / first
        start = first if second else 0
        yield trainer.train_step(batch, overall(fraction, 2 if second else 1, done), (start, done))
    if trainer.step < first + steps:
        raise UserError(f"The data ended after {trainer.step} of {first + steps} batches.")


def fit(
    model: Model,
    batches: DataLike,
    *,
    steps: int,
    batch: int = 32,
    optim: OptimizerConfig | None = None,
    ema: float | None = None,
    seed: int = 0,
    accumulate: int = 1,
    draws: int = 1,
    precision: str = "float32",
    cond_dropout: float = 0.1,
    withhold: float | None = None,
    static_shapes: bool = False,
    stage_one_steps: int | None = None,
) -> Iterator[Progress]:
    """Train for `steps` steps, one batch each, and yield after every one.

    `batches` is an iterable of batches (a DataLoader is read again when it ends), or a data set: a list of texts, token
    ids [N, L], or a dictionary with input_ids, of which every step takes `batch` sequences in random order. The forms
    of a batch are those of inputs.py. A model that could not be saved is refused before the first step.

    The loss of a sequence is the mean over `draws` noisy copies of it. The condition of a fraction `cond_dropout` of
    the sequences is dropped, which guidance needs; `withhold` is its former name. With `ema` the model holds its
    averaged weights once all steps are done. With `static_shapes` tensors have the same shapes in every step
    (`Process.static_shapes`).

    A latent system takes `stage_one_steps` steps for its autoencoder before these, each stage with a learning rate that
    begins and ends with it; without them it has a fraction of the steps (autoencoder_fraction). It is left out where
    the model has loaded a trained one (`ls.load_autoencoder`).
    """
    steps, seed = check_count("The number of steps", steps), as_seed(seed)
    if optim is not None and not isinstance(optim, OptimizerConfig):
        raise UserError(f"optim must be an ls.OptimizerConfig, not {shorten(optim)}.")
    model.check_savable()
    given = model.sequence_format.read_for_training(batches, check_count("batch", batch), seed)
    trainer = Trainer(
        model, optim=optim, ema=ema, seed=seed, accumulate=accumulate, draws=draws, precision=precision,
        steps=steps + (stage_one_steps or 0), cond_dropout=cond_dropout if withhold is None else withhold,
        static_shapes=static_shapes,
    )  # fmt: skip
    if stage_one_steps is not None or begins_second_stage(model):
        yield from _train_stages(trainer, given, check_count("stage_one_steps", stage_one_steps or 0, 0), steps)
    else:
        yield from training_loop(trainer, given, steps)
    if trainer.ema is not None:
        trainer.ema.swap()
