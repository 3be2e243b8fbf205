"""Costs of a training: an estimate of parameters, FLOPs, memory and time, and measured FLOPs, memory and speed.

FLOPs per token are 6 P + 12 depth · width · length: forward 2 for each weight, backward twice that (Kaplan et al.
2020), and the same for scores and mixing of attention, of all pairs of positions whatever the mask. Block diffusion
reads 2 · length positions, so that this formula holds for each of two positions a token. Memory is 20 bytes a
parameter (weights, gradients, two moments and the average; divided by the processes with --shard), ACTIVATIONS numbers
for each token, block and feature, and the logits.

P counts parameters that take part in matrix products, so not the embedding table. The estimate does not model kernels,
communication or input; all three are contained in the fraction of the peak that is reached.

The measured speed is compared with that of the bare network: an embedding, the same blocks, a head and a cross-entropy
at every position. The ratio is the cost of the diffusion process.
"""

import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from logosphere.allocator import trim
from logosphere.data.datasets import is_dataset
from logosphere.data.text8 import is_letters
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.attention import all_pairs_evaluated
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.networks.heads import LinearHead
from logosphere.networks.precision import find_precision
from logosphere.networks.transformer import BlockTransformer
from logosphere.parallel.process_group import find_device
from logosphere.rng import CounterNoise
from logosphere.runs.config import TrainConfig
from logosphere.runs.settings import SILENT, Display
from logosphere.runs.train import open_with_display
from logosphere.sampling.generate import generate
from logosphere.systems import build
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


def count_step_flops(model: Model, batch: int) -> float:
    """Floating-point operations of the matrix products of one training step (forward and backward), counted.

    Times are stratified over the sequences, so a few of them represent a batch. A network is counted at the positions
    where it is evaluated: a masked diffusion needs its head at masks only. Pairs of positions count, masked or not.
    """
    rows = min(ROWS, batch)
    sample = Batch.of(torch.zeros(rows, model.length, dtype=torch.long, device=model.device))
    training = model.training
    model.train()
    with all_pairs_evaluated(), FlopCounter() as forward:
        bound = model.bound(sample, CounterNoise(0, 0, sample.ids, sample.global_index, sample.total))
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
        Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak resident size


def peak_memory_bytes() -> int:
    """The peak resident memory of this process since `reset_peak_memory`; on a GPU, of its allocations."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


STATE_BYTES = 20
ACTIVATIONS = 19
"""Numbers kept for the backward pass, per token, block and feature (counted by benchmarks/scaling.py)."""
LOGITS = 5
"""Copies of the logits, in float32."""
REACHED = 0.4
"""Fraction of a GPU's peak that such trainings reach."""
GPUS = {"A100": 312e12, "H100": 989e12}
"""Peak in bfloat16, dense."""
CPU_REACHED = 0.65
"""Fraction of its speed in matrix products that a processor reaches (benchmarks/scaling.py)."""


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a training."""

    parameters: int
    flops_per_token: int
    """FLOPs of training."""
    tokens_per_step: int
    steps: int | None
    state_bytes: float
    """Weights, gradients, moments and average on one process."""
    activation_bytes: int
    """On one process."""

    @property
    def memory(self) -> float:
        return self.state_bytes + self.activation_bytes

    def seconds(self, flops_per_second: float) -> float | None:
        """Time for all steps at this speed; None for a training that has a time instead of steps."""
        if self.steps is None:
            return None
        return self.steps * self.tokens_per_step * self.flops_per_token / flops_per_second

    def days(self, gpu: str, gpus: int) -> float | None:
        seconds = self.seconds(GPUS[gpu] * REACHED * gpus)
        return None if seconds is None else seconds / 86_400


def cost(recipe: TrainConfig, vocab_size: int, processes: int = 1, conditions: Mapping[str, int] | None = None) -> Cost:
    """The cost of a recipe with a vocabulary of this size, shared by so many processes.

    `conditions` is what the network must be built for to read those of the corpus (`Corpus.conditions`).
    """
    parameters, table, positions = _parameters(recipe, vocab_size, conditions or {})
    network = recipe.network
    attention = 12 * network.depth * network.width * positions * recipe.length
    rows = -(-recipe.batch // (processes * recipe.accumulate))
    half = find_precision(recipe.precision, find_device(recipe.device)) == torch.bfloat16
    kept = network.depth * network.width * (1 if recipe.recompute else ACTIVATIONS) * (2 if half else 4)
    return Cost(
        parameters=parameters,
        flops_per_token=positions * (6 * (parameters - table) + attention),
        tokens_per_step=recipe.batch * recipe.length,
        steps=recipe.steps,
        state_bytes=STATE_BYTES * parameters / (processes if recipe.shard else 1),
        activation_bytes=rows * recipe.length * (positions * kept + 4 * LOGITS * vocab_size),
    )


def estimate(config: TrainConfig, processes: int = 1, display: Display = SILENT) -> Cost:
    """The cost of a training that is shared by so many processes."""
    if processes < 1:
        raise UserError(f"The number of processes must be at least 1, not {processes}.")
    vocab_size, conditions = _vocabulary(config, display)
    return cost(config, vocab_size, processes, conditions)


def _vocabulary(config: TrainConfig, display: Display) -> tuple[int, dict[str, int]]:
    """The sizes of the vocabulary and of conditions; a text is not fetched where its tokenizer determines both."""
    if not is_dataset(config.data):
        named = {"text8": 27, "byte": 256}
        if config.tokenizer in named:
            return named[config.tokenizer], {}
        if config.tokenizer == "auto" and (config.data in ("text8", "pydoc") or is_letters(config.data)):
            return named["text8"], {}
        if sized := re.fullmatch(r"(?:bpe|wordpiece):([0-9]{1,9})", config.tokenizer):
            return int(sized[1]), {}
    corpus = open_with_display(config.data, config.tokenizer, display)
    return corpus.tokenizer.size, corpus.conditions


def _parameters(recipe: TrainConfig, vocab_size: int, conditions: Mapping[str, int]) -> tuple[int, int, int]:
    """All parameters, those of the embedding table, and the positions per token at which blocks are evaluated.

    Parameters are extrapolated from networks of one and two blocks.
    """
    counts = []
    for depth in (1, 2):
        size = vars(replace(recipe.network, depth=depth)) | dict(conditions)
        model = build(
            recipe.system, vocab_size=vocab_size, length=recipe.length, preset=recipe.preset,
            **size, **recipe.system_options(),
        )  # fmt: skip
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    table = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    positions = 2 if any(isinstance(m, BlockTransformer) for m in model.modules()) else 1  # [noisy ; clean]
    return counts[0] + (recipe.network.depth - 1) * (counts[1] - counts[0]), table, positions


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
