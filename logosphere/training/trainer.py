"""The trainer: one step of optimisation, and the one loop that takes steps.

The loop yields after every step; logging, validating, saving and stopping are done by the caller.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.processes.capabilities import LearnedCodec, OnlineStatistics, TrainingPhases
from logosphere.rng import CounterNoise
from logosphere.training.ema import EMA
from logosphere.training.objective import objective
from logosphere.training.optimizer import OptimizerConfig, check_training
from logosphere.types import Batch, Kind, Tokens

CONDITION_DROPOUT = 1 << 61
"""Changes the ids of samples where conditions are dropped, so that this noise is independent of all other."""
GRAD_NORM_DECAY = 0.98
"""Decay of the running average of the gradient's norm, to which a spike is compared."""


class Diverged(UserError):
    """The loss or its gradient is not finite; the weights are those of the step before."""


@dataclass(frozen=True)
class Progress:
    """The result of one step."""

    step: int
    """Steps done."""
    steps: int
    """Steps in all."""
    loss: float
    """What was minimised, per token."""
    nats: float
    """The bound, nats per token, on this batch."""
    kind: Kind
    lr: float
    gradient: float
    """Norm of the gradient before clipping."""
    tokens: int
    """Tokens seen so far."""
    tokens_per_step: int
    seconds: float
    """Wall time of this step."""
    skipped: bool = False
    """Was the gradient so large that the step was left out?"""


def decay_groups(parameters: Sequence[Tensor], optim: OptimizerConfig, scale: float = 1.0) -> list[dict[str, Any]]:
    """Parameter groups for the optimiser: matrices have weight decay, all others do not.

    `scale` is their step size relative to `optim.lr`.
    """
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay, "scale": scale},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "scale": scale},
    ]


def parameter_groups(model: Model, optim: OptimizerConfig) -> list[dict[str, Any]]:
    """All parameters that learn; the codec's and a learned noise schedule's may have step sizes of their own."""
    process, rates = model.process, {"codec": optim.codec_lr, "schedule": optim.schedule_lr}
    own = {
        "codec": list(process.codec.parameters()),
        "schedule": process.schedule_parameters() if isinstance(process, LearnedCodec) else [],
    }
    apart = {id(p): name for name, found in own.items() if rates[name] is not None for p in found}
    learning = [p for p in model.parameters() if p.requires_grad]
    groups = decay_groups([p for p in learning if id(p) not in apart], optim)
    for name, rate in rates.items():
        if rate is not None and (found := [p for p in learning if apart.get(id(p)) == name]):
            groups += decay_groups(found, optim, rate / optim.lr)
    return groups


class Optimizer:
    """AdamW with the learning rate, clipping and parameter groups of a configuration."""

    def __init__(self, groups: list[dict[str, Any]], parameters: Sequence[Tensor], config: OptimizerConfig):
        self.config, self.parameters = config, parameters
        betas = (config.beta1, config.beta2)
        self.adamw = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)

    def zero_grad(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def clip(self) -> Tensor:
        """Clip the gradient in place; its norm before that."""
        return nn.utils.clip_grad_norm_(self.parameters, self.config.largest_norm, foreach=True)

    def step(self, lr: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = lr * group["scale"]
        self.adamw.step()


class Trainer:
    """A model in training: weights, EMA, optimiser and step count; everything a checkpoint holds."""

    def __init__(
        self,
        model: Model,
        *,
        optim: OptimizerConfig | None = None,
        ema: float | None = None,
        seed: int = 0,
        accumulate: int = 1,
        precision: str = "float32",
        withhold: float = 0.1,
        group: ProcessGroup = SINGLE,
        sharded: bool = False,
        steps: int = 0,
    ):
        check_training(ema, withhold, accumulate, precision)
        self.model, self.seed, self.accumulate, self.steps = model, seed, accumulate, steps
        self.withhold, self.group = withhold, group
        self.precision = _dtype(precision, model.device)
        self.objective = objective(model, group, sharded=sharded)
        config = optim or OptimizerConfig()
        learning = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = Optimizer(parameter_groups(model, config), learning, config)
        self.averaged = None if ema is None else EMA(model, ema)
        self.step, self.tokens = 0, 0
        self.position: dict[str, Any] | None = None
        """Position in the data, for data that cannot be addressed by the number of a step."""
        self.usual_norm = 0.0
        """Running average of the gradient's norm, to which spikes are compared."""

    def train_step(self, batch: Batch, done: float) -> Progress:
        """One step of the optimiser; `done` is the fraction of the training before it, `batch` this process's part."""
        started = time.perf_counter()
        self.model.train()
        self.model.check_vocabulary(batch.tokens)
        batch = self._drop_conditions(batch).to(self.model.device)
        count = int(self.group.all_reduce(int(batch.free.sum()))[0])
        lr = self.optimizer.config.rate(self.step, done)
        if isinstance(self.model.process, TrainingPhases):
            self.model.process.on_step_start(done)
        self.optimizer.zero_grad()
        loss, nats, kind = self._backward(batch, count)
        gradient = self.objective.full_tensor(self.optimizer.clip()).item()
        if not (abs(loss) < float("inf") and gradient < float("inf")):
            raise Diverged(
                f"The loss became {loss:g} and its gradient {gradient:g} in step {self.step + 1}; "
                "try a smaller learning rate (--optim.lr) or a longer warm-up (--optim.warmup)."
            )
        skipped = self._is_spike(gradient)
        if skipped:
            for buffer in self._accumulators():  # no checkpoint holds it, so a resumed run would not know of it
                buffer.zero_()
        else:
            self._update(lr, done)
        self.step, self.tokens = self.step + 1, self.tokens + count
        seconds = time.perf_counter() - started
        return Progress(self.step, self.steps, loss, nats, kind, lr, gradient, self.tokens, count, seconds, skipped)

    def all_finite(self) -> bool:
        """Are all weights finite, in every process?"""
        broken = any(not bool(torch.isfinite(self.objective.local_tensor(p)).all()) for p in self.optimizer.parameters)
        return self.group.all_reduce(broken)[0] == 0

    def _is_spike(self, gradient: float) -> bool:
        """Is this gradient far larger than the running average, which spikes do not enter?"""
        factor, warmup = self.optimizer.config.spike, self.optimizer.config.warmup
        if factor is None:
            return False
        if self.step >= max(warmup, 1) and gradient > factor * self.usual_norm:
            return True
        decay = GRAD_NORM_DECAY
        self.usual_norm = gradient if self.usual_norm == 0 else decay * self.usual_norm + (1 - decay) * gradient
        return False

    def _update(self, lr: float, done: float) -> None:
        """Take the step, then update the statistics of the process and the EMA."""
        self.optimizer.step(lr)
        self.group.all_reduce_tensors(self._accumulators())
        if isinstance(self.model.process, OnlineStatistics):
            self.model.process.update_statistics(done)
        if self.averaged is not None:
            self.averaged.update()

    def _accumulators(self) -> Sequence[Tensor]:
        process = self.model.process
        return process.accumulators() if isinstance(process, OnlineStatistics) else []

    def _backward(self, batch: Batch, count: int) -> tuple[float, float, Kind]:
        """Accumulate the gradient of the whole batch; its loss and bound per token."""
        loss = nats = 0.0
        cuts = [len(batch) * number // self.accumulate for number in range(self.accumulate + 1)]
        parts = [slice(start, end) for start, end in pairwise(cuts) if start < end]
        for rows in parts:
            part = batch.select(rows)
            with self.objective.no_sync(last=rows is parts[-1]):
                with self._seeded(), self._autocast():
                    bound = self.objective(
                        part, CounterNoise(self.seed, self.step, part.ids, part.global_index, part.total)
                    )
                mean = bound.loss.sum() / count
                (mean * self.group.size).backward()  # processes average their gradients, and the sum is wanted
            loss, nats = loss + mean.item(), nats + bound.total.sum().item() / count
        loss, nats = self.group.all_reduce(loss, nats)
        return loss, nats, bound.kind

    def _drop_conditions(self, batch: Batch) -> Batch:
        """The batch, with the condition of a random fraction of its sequences dropped."""
        if batch.condition is None or self.withhold == 0:
            return batch
        u = CounterNoise(self.seed, self.step, batch.ids ^ CONDITION_DROPOUT, batch.global_index, batch.total).uniform(
            len(batch), 1
        )
        return replace(batch, condition=batch.condition.drop(u[:, 0] < self.withhold))

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Dropout draws from torch's global generator; inside this block that is set by the seed and the step.

        It is the same for all processes and parts of a batch, which must agree on how often the network is called.
        """
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed((self.seed + 1) * 1_000_003 + self.step)
            yield

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.model.device.type, self.precision)


S = TypeVar("S", covariant=True)


@runtime_checkable
class TakesSteps(Protocol[S]):
    """Anything that the loop can train: the trainer of a model, or that of an auxiliary network."""

    step: int

    def train_step(self, batch: Batch, done: float) -> S: ...


def training_loop(
    trainer: TakesSteps[S], batch_at: Callable[[int], Batch], fraction_done: Callable[[], float]
) -> Iterator[S]:
    """The one training loop: steps until `fraction_done` reaches 1. Callers validate, save and stop in between."""
    while (done := fraction_done()) < 1:
        yield trainer.train_step(batch_at(trainer.step), done)


def take_steps(trainer: TakesSteps[S], batches: Iterable[Batch | Tokens], steps: int) -> Iterator[S]:
    """The loop over an iterable of batches, one for each of `steps` steps."""
    source, first = iter(islice(batches, steps)), 0

    def batch_at(step: int) -> Batch:
        nonlocal first
        given = next(source, None)
        if given is None:
            raise UserError(f"The data ended after {step} batches, but training needs {steps}.")
        batch = Batch.of(given, first=first) if isinstance(given, Tensor) else given
        first += len(batch)
        return batch

    yield from training_loop(trainer, batch_at, lambda: trainer.step / steps)


def fit(
    model: Model,
    batches: Iterable[Batch | Tokens],
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    ema: float | None = None,
    seed: int = 0,
    accumulate: int = 1,
    precision: str = "float32",
    withhold: float = 0.1,
) -> Iterator[Progress]:
    """Train for `steps` steps, one batch each, and yield after every one.

    The condition of a fraction `withhold` of the sequences is dropped, which guidance needs. With `ema` the model holds
    its averaged weights once all steps are done.
    """
    trainer = Trainer(
        model, optim=optim, ema=ema, seed=seed, accumulate=accumulate, precision=precision, withhold=withhold,
        steps=steps,
    )  # fmt: skip
    yield from take_steps(trainer, batches, steps)
    if trainer.averaged is not None:
        trainer.averaged.swap()


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    """float32, bfloat16, or 'auto': bfloat16 on GPUs that support it."""
    if precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if bf16 else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32
