"""The one training loop. It yields; printing, logging, saving and stopping are the caller's business."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.noise import Keyed
from logosphere.parallel.team import ALONE, Team
from logosphere.training.ema import Averaged
from logosphere.training.objective import objective
from logosphere.training.optim import Optim, check_training
from logosphere.types import Batch, Kind, Tokens

WITHHOLDING = 1 << 61
"""Sets the names of samples apart when conditions are withheld, so that this noise is no other's."""


USUAL = 0.98
"""Decay of the running average of the gradient's norm, to which a spike is compared."""
OBSERVED = "pending"
"""Buffers of this name hold sums of what was observed in a step, which `Process.settle` takes into account."""


class Diverged(UserError):
    """The loss or its gradient is no longer a number; the weights are those of the step before."""


@dataclass(frozen=True)
class Progress:
    """What one step did."""

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


def decaying(parameters: Sequence[Tensor], optim: Optim, scale: float = 1.0) -> list[dict[str, Any]]:
    """Parameters as an optimiser takes them: matrices with weight decay, all others without.

    `scale` is their step size relative to `optim.lr`.
    """
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay, "scale": scale},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "scale": scale},
    ]


def parameter_groups(model: Model, optim: Optim) -> list[dict[str, Any]]:
    """All parameters that learn; the codec's and a learned noise schedule's may have step sizes of their own."""
    process, rates = model.process, {"codec": optim.codec_lr, "schedule": optim.schedule_lr}
    own = {"codec": list(process.codec.parameters()), "schedule": process.schedule_parameters()}
    apart = {id(p): name for name, found in own.items() if rates[name] is not None for p in found}
    learning = [p for p in model.parameters() if p.requires_grad]
    groups = decaying([p for p in learning if id(p) not in apart], optim)
    for name, rate in rates.items():
        if rate is not None and (found := [p for p in learning if apart.get(id(p)) == name]):
            groups += decaying(found, optim, rate / optim.lr)
    return groups


class Training:
    """A model in training: weights, averages, optimiser and step count; what a checkpoint has to hold."""

    def __init__(
        self,
        model: Model,
        *,
        optim: Optim | None = None,
        ema: float | None = None,
        seed: int = 0,
        accumulate: int = 1,
        precision: str = "float32",
        withhold: float = 0.1,
        team: Team = ALONE,
        sharded: bool = False,
    ):
        check_training(ema, withhold, accumulate, precision)
        self.model, self.optim, self.seed, self.accumulate = model, optim or Optim(), seed, accumulate
        self.withhold, self.team = withhold, team
        self.precision = _dtype(precision, model.device)
        self.objective = objective(model, team, sharded=sharded)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        betas, eps = (self.optim.beta1, self.optim.beta2), self.optim.eps
        groups = parameter_groups(model, self.optim)
        self.optimizer = torch.optim.AdamW(groups, lr=self.optim.lr, betas=betas, eps=eps, fused=True)
        self.averaged = None if ema is None else Averaged(model, ema)
        self.step, self.tokens = 0, 0
        self.position: dict[str, Any] | None = None
        """Where the data stands, if it has to be told."""
        self.usual = 0.0
        """The running average of the gradient's norm, where spikes are looked for."""

    def advance(self, batch: Batch, steps: int, done: float) -> Progress:
        """One step of the optimiser, when the share `done` of the training lies behind; `batch` is our part of it."""
        started = time.perf_counter()
        self.model.train()
        self.model.check_vocabulary(batch.tokens)
        batch = self._withheld(batch).to(self.model.device)
        count = int(self.team.total(int(batch.free.sum()))[0])
        lr = self.optim.rate(self.step, done)
        self.model.process.advance(done)
        self.optimizer.zero_grad(set_to_none=True)
        loss, nats, kind = self._differentiate(batch, count)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.optim.largest_norm, foreach=True)
        gradient = self.objective.whole(norm).item()
        if not (abs(loss) < float("inf") and gradient < float("inf")):
            raise Diverged(
                f"The loss became {loss:g} and its gradient {gradient:g} in step {self.step + 1}; "
                "try a smaller learning rate (--optim.lr) or a longer warm-up (--optim.warmup)."
            )
        skipped = self._spikes(gradient)
        if skipped:
            for buffer in self._observed():  # no checkpoint holds it, so a resumed run would not know of it
                buffer.zero_()
        else:
            self._update(lr, done)
        self.step, self.tokens = self.step + 1, self.tokens + count
        seconds = time.perf_counter() - started
        return Progress(self.step, steps, loss, nats, kind, lr, gradient, self.tokens, count, seconds, skipped)

    def _spikes(self, gradient: float) -> bool:
        """Is this gradient far larger than usual? What is usual is learnt from those that are not."""
        if self.optim.spike is None:
            return False
        if self.step >= max(self.optim.warmup, 1) and gradient > self.optim.spike * self.usual:
            return True
        self.usual = gradient if self.usual == 0 else USUAL * self.usual + (1 - USUAL) * gradient
        return False

    def _update(self, lr: float, done: float) -> None:
        """Take the step, and take into account what was observed on the way."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        self.optimizer.step()
        self.team.add_up(self._observed())
        self.model.process.settle(done)
        if self.averaged is not None:
            self.averaged.update()

    def _observed(self) -> list[Tensor]:
        return [buffer for name, buffer in self.model.named_buffers() if name.endswith(OBSERVED)]

    def sound(self) -> bool:
        """Are all weights still numbers, those of the whole team?"""
        broken = any(not bool(torch.isfinite(self.objective.own(p)).all()) for p in self.parameters)
        return self.team.total(broken)[0] == 0

    def _differentiate(self, batch: Batch, count: int) -> tuple[float, float, Kind]:
        """Leave the gradient of the whole batch behind; its loss and bound, per token."""
        loss = nats = 0.0
        cuts = [len(batch) * number // self.accumulate for number in range(self.accumulate + 1)]
        parts = [slice(start, end) for start, end in pairwise(cuts) if start < end]
        for rows in parts:
            part = batch.part(rows)
            with self.objective.part(last=rows is parts[-1]):
                with self._own_randomness(), self._autocast():
                    bound = self.objective(part, Keyed(self.seed, self.step, part.ids, part.place, part.total))
                share = bound.loss.sum() / count
                (share * self.team.size).backward()  # the team takes the mean of its gradients, and we want the sum
            loss, nats = loss + share.item(), nats + bound.total.sum().item() / count
        loss, nats = self.team.total(loss, nats)
        return loss, nats, bound.kind

    def _withheld(self, batch: Batch) -> Batch:
        """The batch, with the condition of some sequences withheld."""
        if batch.condition is None or self.withhold == 0:
            return batch
        u = Keyed(self.seed, self.step, batch.ids ^ WITHHOLDING, batch.place, batch.total).uniform(len(batch), 1)
        return replace(batch, condition=batch.condition.withheld(u[:, 0] < self.withhold))

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout draws from torch's global generator; inside this block that is set by the seed and the step.

        It is the same for all processes and parts of a batch, which must agree on how often the network is asked.
        """
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed((self.seed + 1) * 1_000_003 + self.step)
            yield

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.model.device.type, self.precision)


def fit(
    model: Model,
    batches: Iterable[Batch | Tokens],
    *,
    steps: int,
    optim: Optim | None = None,
    ema: float | None = None,
    seed: int = 0,
    accumulate: int = 1,
    precision: str = "float32",
    withhold: float = 0.1,
) -> Iterator[Progress]:
    """Train for `steps` steps, one batch each, and yield after every one.

    Batches with a condition are shown without it in a share `withhold` of the sequences, which guidance needs. With
    `ema` the model holds its averaged weights once all steps are done.
    """
    training = Training(
        model, optim=optim, ema=ema, seed=seed, accumulate=accumulate, precision=precision, withhold=withhold
    )
    first = 0
    for number, given in enumerate(islice(batches, steps)):
        batch = Batch.of(given, first=first) if isinstance(given, Tensor) else given
        first += len(batch)
        yield training.advance(batch, steps, number / steps)
    if training.step < steps:
        raise UserError(f"The data ended after {training.step} batches, but training needs {steps}.")
    if training.averaged is not None:
        training.averaged.exchange()


def _dtype(precision: str, device: torch.device) -> torch.dtype:
    """float32, bfloat16, or 'auto': bfloat16 on GPUs that compute in it."""
    if precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if bf16 else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32
