"""The trainer: one optimiser step, in one process, in several with equal weights (DDP), or with sharded ones (FSDP)."""

import inspect
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.precision import autocast_to, find_precision
from logosphere.networks.published.lora import trained_state
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.processes.capabilities import LearnedCodec, LearnedForward, OnlineStatistics, TrainingPhases
from logosphere.rng import CounterNoise, Noise
from logosphere.training.muon import Muon, block_matrices, matrix_groups
from logosphere.training.optimizer import OptimizerConfig, check_training
from logosphere.types import Batch, Bound, Kind

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

    `scale` is their learning rate relative to `optim.lr`.
    """
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay, "scale": scale},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "scale": scale},
    ]


def parameter_groups(model: Model, optim: OptimizerConfig) -> list[dict[str, Any]]:
    """All trainable parameters; those of the codec and of a learned noise schedule may have their own learning rate."""
    process, rates = model.process, {"codec": optim.codec_lr, "schedule": optim.schedule_lr}
    own = {
        "codec": list(process.codec.parameters()),
        "schedule": process.schedule_parameters() if isinstance(process, LearnedCodec) else [],
    }
    apart = {id(p): name for name, found in own.items() if rates[name] is not None for p in found}
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = decay_groups([p for p in trainable if id(p) not in apart], optim)
    for name, rate in rates.items():
        if rate is not None and (found := [p for p in trainable if apart.get(id(p)) == name]):
            groups += decay_groups(found, optim, rate / optim.lr)
    return groups


def build_optimizer(
    model: Model, optim: OptimizerConfig, dtype: torch.dtype, *, sharded: bool = False
) -> torch.optim.AdamW:
    """The optimiser of all trainable parameters of a model; `dtype` is the precision of Muon's iterations."""
    groups = parameter_groups(model, optim)
    if optim.name == "adamw" or (optim.name == "auto" and sharded):
        return adamw(groups, optim)
    matrices = {} if model.denoiser is None else block_matrices(model.denoiser)
    if not any(p in matrices for group in groups for p in group["params"]):
        if optim.name == "auto":
            return adamw(groups, optim)
        raise UserError("muon needs a network with linear layers in blocks, such as a transformer; use adamw.")
    groups = matrix_groups(groups, matrices, 2.0 if optim.matrix_lr is None else optim.matrix_lr / optim.lr)
    betas = (optim.beta1, optim.beta2)
    return Muon(groups, lr=optim.lr, betas=betas, eps=optim.eps, momentum=optim.momentum, dtype=dtype)


def adamw(groups: list[dict[str, Any]], optim: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with the settings of a configuration."""
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)


def lr_at(optim: OptimizerConfig, step: int, done: float) -> float:
    """The learning rate of step `step` (from 0), after the fraction `done` of the training."""
    rising = min(1.0, (step + 1) / (optim.warmup + 1))
    done = min(done, 1.0)
    left = 1 - done if optim.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return optim.lr * rising * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * left)


def optimizer_step(optimizer: torch.optim.AdamW, lr: float) -> None:
    """One step at this learning rate, multiplied by the `scale` of each parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]
    optimizer.step()


def read_numbers(scalars: Sequence[Tensor]) -> list[float]:
    """The values of several scalars, in one copy to the host: each copy waits for all work queued on the device."""
    numbers: list[float] = torch.stack([scalar.to(scalars[0].device).double() for scalar in scalars]).tolist()
    return numbers


class EMA:
    """A running average of the weights: θ̄ <- d θ̄ + (1 - d) θ with d = min(decay, (1 + n)/(10 + n)) in update n.

    The decay grows from 1/10, so that the initial weights soon have little influence.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.live: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.shadow = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for device in {p.device for p in self.live}:
            shadow = [average for average in self.shadow if average.device == device]
            torch._foreach_lerp_(shadow, [p for p in self.live if p.device == device], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Swap the live weights and the average."""
        for live, shadow in zip(self.live, self.shadow, strict=True):
            kept = live.clone()
            live.copy_(shadow)
            shadow.copy_(kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module holds its averaged weights inside this block."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """The state of the module as it would be with averaged weights."""
        with self.applied():
            return {name: tensor.detach().clone() for name, tensor in trained_state(module).items()}


class Objective(ABC):
    """The bound of a part of a batch. After the last part every process holds the mean gradient of all."""

    bound: Callable[[Batch, Noise, int], Bound]
    """`Model.bound`, wrapped where gradients are synchronised."""

    @abstractmethod
    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one part: gradients are synchronised with the last part only."""

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """A parameter, or a value computed from parameters, gathered if it is sharded."""
        return tensor

    def local_tensor(self, tensor: Tensor) -> Tensor:
        """The shard of a parameter that this process holds."""
        return tensor


def objective(model: Model, group: ProcessGroup, *, sharded: bool) -> Objective:
    """The objective of a model in a process group; `sharded` replaces the parameters of the model by shards."""
    if group.size == 1 or not any(p.requires_grad for p in model.parameters()):
        return SingleProcess(model)
    if model.network_device != model.device:
        raise UserError(f"Several processes need CPUs or CUDA; on {model.network_device.type} leave out --nproc.")
    if not sharded:
        return DDP(model)
    fsdp: Objective = sharding().FSDP(model, group)
    return fsdp


class SingleProcess(Objective):
    """One process holds everything."""

    def __init__(self, model: Model):
        self.bound = model.bound

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext()


class DDP(Objective):
    """Every process has all weights (DistributedDataParallel)."""

    def __init__(self, model: Model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a new name for an option, which older versions lack
            # Buffers need no synchronisation: all processes update their statistics by the same sums. Not every
            # parameter is used in every step, for example when all conditions of a batch are dropped.
            wrapped = DistributedDataParallel(_Call(model), broadcast_buffers=False, find_unused_parameters=True)
        self.bound, self.wrapped = wrapped, wrapped

    def no_sync(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class _Call(nn.Module):
    """The bound as a call, which is what torch can wrap."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, noise: Noise, draws: int) -> Bound:
        return self.model.bound(batch, noise, draws)


def sharding() -> ModuleType:
    """The module for sharded weights and checkpoints, which is slow to import and seldom used."""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        from logosphere.training import sharded
    except ImportError:
        raise UserError(_NO_SHARDS) from None
    if "save_distributed" not in inspect.signature(HuggingFaceStorageWriter).parameters:
        raise UserError(_NO_SHARDS)
    return sharded


_NO_SHARDS = f"torch {torch.__version__} cannot save shards as safetensors; install a newer one, or leave out --shard."


def _check_draws(model: Model, draws: int) -> None:
    """Raise for models whose loss is defined for one draw of the noise."""
    if draws == 1:
        return
    if isinstance(model.process, LearnedForward):
        raise UserError(f"draws={draws} needs noise that is not learned; this process has draws=1.")
    if model.denoiser is not None and model.denoiser.self_conditioning_period():
        raise UserError(f"draws={draws} allows no self-conditioning; use draws=1, or leave out self_conditioning.")


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
        draws: int = 1,
        precision: str = "float32",
        cond_dropout: float = 0.1,
        group: ProcessGroup = SINGLE,
        sharded: bool = False,
        steps: int = 0,
        static_shapes: bool = False,
    ):
        check_training(ema, cond_dropout, accumulate, precision, draws)
        _check_draws(model, draws)
        self.optim = optim or OptimizerConfig()
        self.optim.check_sharding(sharded)
        self.model, self.seed, self.accumulate, self.draws, self.steps = model, seed, accumulate, draws, steps
        self.cond_dropout, self.group = cond_dropout, group
        self.precision = find_precision(precision, model.network_device)
        model.process.static_shapes = static_shapes
        self.objective = objective(model, group, sharded=sharded)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(model, self.optim, self.precision, sharded=sharded)
        self.ema = None if ema is None else EMA(model, ema)
        self.step, self.tokens = 0, 0
        self.position: dict[str, Any] | None = None
        """Position in the data, for data that cannot be addressed by the number of a step."""
        self.grad_norm_ema = 0.0
        """Running average of the gradient's norm, to which spikes are compared."""

    def train_step(self, batch: Batch, done: float, stage: tuple[int, float] = (0, -1.0)) -> Progress:
        """One optimiser step after the fraction `done`; a stage with its own budget has (steps before it, its own)."""
        started = time.perf_counter()
        model, group = self.model, self.group
        model.train()
        model.check_vocabulary(batch.tokens)
        count = int(group.all_reduce(int(batch.free.sum()))[0])  # on the host, where batches come from
        if count == 0:
            raise UserError("Every position of this batch is known or padding, so there is nothing to predict.")
        batch = self._drop_conditions(batch).to(model.device)
        lr = lr_at(self.optim, self.step - stage[0], done if stage[1] < 0 else stage[1])
        if isinstance(model.process, TrainingPhases):
            model.process.on_step_start(done)
        self.optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        totals: list[Tensor] = []
        cuts = [len(batch) * number // self.accumulate for number in range(self.accumulate + 1)]
        parts = [slice(start, end) for start, end in pairwise(cuts) if start < end]
        for rows in parts:
            part = batch.select(rows)
            noise = CounterNoise(self.seed, self.step, part.ids, part.global_index, part.total)
            with self.objective.no_sync(last=rows is parts[-1]):
                with self._seeded():
                    bound = self.objective.bound(part, noise, self.draws)
                mean = bound.loss.sum() / count
                (mean * group.size).backward()  # processes average their gradients, but the sum is needed
            losses.append(mean.detach())
            totals.append(bound.total.detach().sum())
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.clip or math.inf, foreach=True)
        *values, gradient = read_numbers([*losses, *totals, self.objective.full_tensor(norm)])
        loss, nats = 0.0, 0.0
        for part_loss, part_total in zip(values[: len(parts)], values[len(parts) :], strict=True):
            loss, nats = loss + part_loss, nats + part_total / count
        loss, nats = group.all_reduce(loss, nats)
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            raise Diverged(
                f"The loss became {loss:g} and its gradient {gradient:g} in step {self.step + 1}; "
                "try a smaller learning rate (--optim.lr) or a longer warm-up (--optim.warmup)."
            )
        statistics = model.process if isinstance(model.process, OnlineStatistics) else None
        accumulators = [] if statistics is None else statistics.accumulators()
        skipped = self._is_spike(gradient)
        if skipped:
            for sums in accumulators:  # no checkpoint holds them, so a resumed run would not have them
                sums.zero_()
        else:
            optimizer_step(self.optimizer, lr)
            group.all_reduce_tensors(accumulators)
            if statistics is not None:
                statistics.update_statistics(done)
            if self.ema is not None:
                self.ema.update()
        self.step, self.tokens = self.step + 1, self.tokens + count
        seconds = time.perf_counter() - started
        return Progress(
            self.step, self.steps, loss, nats, bound.kind, lr, gradient, self.tokens, count, seconds, skipped
        )

    def all_finite(self) -> bool:
        """Are all weights finite, in every process?"""
        broken = any(not bool(torch.isfinite(self.objective.local_tensor(p)).all()) for p in self.parameters)
        return self.group.all_reduce(broken)[0] == 0

    def _is_spike(self, gradient: float) -> bool:
        """Is this gradient far larger than the running average, which spikes do not enter?"""
        if self.optim.grad_spike_factor is None:
            return False
        usual, decay = self.grad_norm_ema, GRAD_NORM_DECAY
        if self.step >= max(self.optim.warmup, 1) and gradient > self.optim.grad_spike_factor * usual:
            return True
        self.grad_norm_ema = gradient if usual == 0 else decay * usual + (1 - decay) * gradient
        return False

    def _drop_conditions(self, batch: Batch) -> Batch:
        """The batch, with the condition of a random fraction of its sequences dropped."""
        if batch.condition is None or self.cond_dropout == 0:
            return batch
        u = CounterNoise(self.seed, self.step, batch.ids ^ CONDITION_DROPOUT, batch.global_index, batch.total).uniform(
            len(batch), 1
        )
        return replace(batch, condition=batch.condition.drop(u[:, 0] < self.cond_dropout))

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """The settings of a forward pass: autocast, and torch's global generator, from which dropout is drawn.

        The generator is seeded by the seed and the step, the same for all processes and parts of a batch, which must
        agree on how often the network is called.
        """
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed((self.seed + 1) * 1_000_003 + self.step)
            with autocast_to(self.precision, device):
                yield
