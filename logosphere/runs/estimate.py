"""What a training will cost, before it is begun: parameters, arithmetic, memory, time.

FLOPs per token are 6 P + 12 depth · width · length: forward 2 for each weight, backward twice that (Kaplan et al.
2020), and the same for scores and mixing of attention. Memory is 20 bytes a parameter (weights, gradients, two moments
and the average; shared out with --shard), ACTIVATIONS numbers for each token, block and feature, and the logits.

P counts parameters that take part in products of matrices, so not the table of embeddings. The model is an estimate: it
knows nothing of kernels, networks or input, which are summed up in the share of the peak that is reached.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from logosphere.runs.config import TrainConfig
from logosphere.systems import build

STATE_BYTES = 20
ACTIVATIONS = 19
"""Numbers that are kept for the backward pass, per token, block and feature (benchmarks/scaling.py counts them)."""
LOGITS = 5
"""Copies of the logits, in float32."""
REACHED = 0.4
"""Share of a GPU's peak that trainings of this kind reach."""
GPUS = {"A100": 312e12, "H100": 989e12}
"""Peak in bfloat16, dense."""
CPU_REACHED = 0.65
"""Share of its speed in products of matrices that a processor reaches (benchmarks/scaling.py)."""


@dataclass(frozen=True)
class Cost:
    """The bill."""

    parameters: int
    flops_per_token: int
    """Of training."""
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
    parameters, table = _parameters(recipe, vocab_size, conditions or {})
    network = recipe.network
    attention = 12 * network.depth * network.width * recipe.length
    rows = -(-recipe.batch // (processes * recipe.accumulate))
    half = recipe.precision == "bfloat16"
    kept = network.depth * network.width * (1 if recipe.recompute else ACTIVATIONS) * (2 if half else 4)
    return Cost(
        parameters=parameters,
        flops_per_token=6 * (parameters - table) + attention,
        tokens_per_step=recipe.batch * recipe.length,
        steps=recipe.steps,
        state_bytes=STATE_BYTES * parameters / (processes if recipe.shard else 1),
        activation_bytes=rows * recipe.length * (kept + 4 * LOGITS * vocab_size),
    )


def _parameters(recipe: TrainConfig, vocab_size: int, conditions: Mapping[str, int]) -> tuple[int, int]:
    """All parameters, and those of the table of embeddings; from networks of one and two blocks, soon built."""
    counts = []
    for depth in (1, 2):
        size = vars(replace(recipe.network, depth=depth)) | dict(conditions)
        model = build(
            recipe.system, vocab_size=vocab_size, length=recipe.length, preset=recipe.preset,
            **size, **recipe.system_options(),
        )  # fmt: skip
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    table = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    return counts[0] + (recipe.network.depth - 1) * (counts[1] - counts[0]), table


def machine_speed(size: int = 512, seconds: float = 0.2) -> float:
    """FLOPs per second of processor time in products of matrices, measured for a moment."""
    a = torch.ones(size, size)
    done, begun = 0, time.process_time()
    while (passed := time.process_time() - begun) < seconds or not done:
        a @ a
        done += 1
    return done * 2 * size**3 / passed
