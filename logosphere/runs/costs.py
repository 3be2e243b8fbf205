"""Measured costs of a training: FLOPs, memory and speed; the estimate is in `cost_model`.

The measured speed is compared with that of the bare network: an embedding, the same blocks, a head and a cross-entropy
at every position. The ratio is the cost of the diffusion process.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from logosphere.allocator import trim
from logosphere.model import Model
from logosphere.networks.attention import all_pairs_evaluated
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.rng import CounterNoise
from logosphere.sampling.generate import generate
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

ROWS = 4
"""Sequences whose operations are counted; the cost of a step is proportional to its batch."""


FUSED_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention",
                   "fused_attention_overrideable")  # fmt: skip
"""Kernels of F.scaled_dot_product_attention, without the prefix of their names."""


def _attention_flops(q: Tensor, k: Tensor, v: Tensor) -> int:
    """FLOPs of q kᵀ and of its product with v, for all pairs of positions."""
    return 2 * q.shape[:-1].numel() * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _forward_formula(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return _attention_flops(q, k, v)


def _backward_formula(_gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return 2 * _attention_flops(q, k, v)  # the kernel computes q kᵀ again, which is no part of the model


def _linear_formula(x: Tensor, weight: Tensor, *_: object, **__: object) -> int:
    return 2 * x.numel() * weight.shape[0]


def _formulas() -> dict[object, Callable[..., int]]:
    """FLOPs of each operation: torch's formulas, and for attention those of plain matrix products.

    torch has none for the kernel on CPUs, and counts five products in the backward pass of the others, where plain
    matrix products have four. It has none for linear layers fused with their activation either.
    """
    formulas: dict[object, Callable[..., int]] = dict(flop_registry)
    for name in FUSED_ATTENTION:
        for suffix, formula in (("", _forward_formula), ("_backward", _backward_formula)):
            if (operation := getattr(torch.ops.aten, f"_scaled_dot_product_{name}{suffix}", None)) is not None:
                formulas[operation] = formula
    if (linear := getattr(torch.ops.mkldnn, "_linear_pointwise", None)) is not None:
        formulas[linear] = _linear_formula
    return formulas


class FlopCounter(TorchDispatchMode):
    """Counts the floating-point operations of the matrix products inside this block.

    The counts are those of the model: they depend neither on the kernel of attention nor on activations that are
    computed again in the backward pass (`backward=True`; only those operations build a graph there).
    """

    def __init__(self, *, backward: bool = False) -> None:
        super().__init__()
        self.total, self.backward, self.formulas = 0, backward, _formulas()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = self.formulas.get(func.overloadpacket)
        if formula is not None and not (self.backward and torch.is_grad_enabled()):
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def count_step_flops(model: Model, batch: int, draws: int = 1) -> float:
    """Floating-point operations of the matrix products of one training step (forward and backward), counted.

    Times are stratified over the sequences, so a few of them represent a batch. A network is counted at the positions
    where it is evaluated: a masked diffusion needs its head at masks only. Pairs of positions count, masked or not.
    """
    rows = min(ROWS, batch)
    sample = Batch.of(torch.zeros(rows, model.length, dtype=torch.long, device=model.device))
    training = model.training
    model.train()
    with all_pairs_evaluated(), FlopCounter() as forward:
        bound = model.bound(sample, CounterNoise(0, 0, sample.ids, sample.global_index, sample.total), draws)
    with FlopCounter(backward=True) as backward:
        bound.loss.sum().backward()
    model.train(training)
    model.zero_grad(set_to_none=True)
    return (forward.total + backward.total) * batch / rows


def reset_peak_memory() -> None:
    """Reset the peak of memory, where the system allows it."""
    trim()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: reset the peak resident size


def peak_memory_bytes() -> int:
    """The peak resident memory of this process since `reset_peak_memory`; on a GPU, of its allocations.

    Windows does not tell; it is 0 there.
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def machine_speed(size: int = 512, seconds: float = 0.2) -> float:
    """FLOPs per second of processor time in matrix products, measured for `seconds`."""
    a = torch.ones(size, size)
    done, begun = 0, time.process_time()
    while (passed := time.process_time() - begun) < seconds or not done:
        a @ a
        done += 1
    return done * 2 * size**3 / passed


WARM_UP = 2


class Bare(nn.Module):
    """A bare transformer; `block` is the number of positions that are sampled at once."""

    def __init__(self, network: NetworkConfig, vocab_size: int, length: int, block: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size + 1, network.width)
        self.trunk = Backbone(network, length, reads_time=False, reach=network.neighbours if block == length else 0)
        self.head = LinearHead(network.width, vocab_size)
        self.causal = block == 1

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.trunk(self.embedding(tokens), causal=self.causal))


@dataclass(frozen=True)
class Bench:
    """The measured cost of a system; seconds are processor seconds, medians over rounds."""

    name: str
    parameters: int
    train_tokens_per_cpu_second: float
    train_step_over_bare: float
    """Training step / bare step, the median of neighbouring pairs."""
    step_flops: float
    sample_steps: int
    nfe: float
    sample_tokens_per_cpu_second: float
    latency_seconds: float
    """Wall time of a single text."""
    evaluation_over_bare: float
    """Sampling / as many forward passes of the bare network."""
    peak_bytes: int


def bench(name: str, model: Model, network: NetworkConfig, *, batch: int, steps: int, rounds: int) -> Bench:
    """Train and sample a model for a few rounds, each followed by the bare network, so that load affects both alike."""
    device, length = model.device, model.length
    tokens = torch.randint(model.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)
    bare = Bare(network, model.vocab_size, length, model.block).to(device)
    bare_optimizer = torch.optim.AdamW(bare.parameters(), lr=1e-4, fused=True)
    trainer = Trainer(model, ema=0.999)

    def our_step() -> None:
        trainer.train_step(Batch.of(tokens, first=trainer.step * batch), 0.0)

    def bare_step() -> None:
        bare_optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(bare(tokens).flatten(0, 1), tokens.flatten()).backward()
        bare_optimizer.step()

    flops = count_step_flops(model, batch)
    reset_peak_memory()
    ours, ratio = _paired(our_step, bare_step, rounds)
    memory = peak_memory_bytes()
    rng = torch.Generator(device).manual_seed(0)
    drawn = generate(model, n=batch, steps=steps, rng=rng)  # also a warm-up
    started = time.process_time()
    drawn = generate(model, n=batch, steps=steps, rng=rng)
    sampling = time.process_time() - started
    single = generate(model, n=1, steps=steps, rng=rng)
    return Bench(
        name=name,
        parameters=sum(weight.numel() for weight in model.parameters()),
        train_tokens_per_cpu_second=batch * length / ours,
        train_step_over_bare=ratio,
        step_flops=flops,
        sample_steps=steps,
        nfe=drawn.nfe,
        sample_tokens_per_cpu_second=batch * length / sampling,
        latency_seconds=single.seconds,
        evaluation_over_bare=sampling / (drawn.nfe * _forward_seconds(bare, tokens)),
        peak_bytes=memory,
    )


def _paired(ours: Callable[[], None], bare: Callable[[], None], rounds: int) -> tuple[float, float]:
    """CPU seconds of ours, and the ratio to the bare one: medians, because the machine may be shared."""
    for _ in range(WARM_UP):
        ours()
        bare()
    pairs = [(_cpu_seconds(ours), _cpu_seconds(bare)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs)


def _forward_seconds(bare: Bare, tokens: Tensor) -> float:
    def forward() -> None:
        with torch.no_grad():
            bare(tokens)

    forward()
    return statistics.median(_cpu_seconds(forward) for _ in range(5))


def _cpu_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return max(time.process_time() - started, 1e-9)
