"""Speed and memory of a system beside the bare network it is built on.

The bare network has an embedding, the same blocks, a head and a cross-entropy at every position: nothing that knows of
diffusion. What a system takes beyond it is what its mathematics costs.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.evaluation.costs import count_step_flops, peak_memory_bytes, reset_peak_memory
from logosphere.model import Model
from logosphere.networks.backbone import Backbone, LinearHead
from logosphere.networks.config import NetworkConfig
from logosphere.sampling.generate import generate
from logosphere.training.trainer import Trainer
from logosphere.types import Batch

WARM_UP = 2


class Bare(nn.Module):
    """A transformer and nothing else; `block` is the number of positions that are written at once."""

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
    """What a system costs; seconds are processor seconds, medians over rounds."""

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
    """Train and sample a model for a few rounds, each beside the bare network so that both meet the same machine."""
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
