"""The cost of a training as an estimate: parameters, FLOPs, memory, disk and time.

FLOPs per token are n 6 P + m 12 depth · width · length: forward 2 for each weight, backward twice that (Kaplan et al.
2020), and the same for scores and mixing of attention, of all pairs of positions whatever the mask. A network states
n, the positions, and m, the pairs a token (`Denoiser.evaluations`): both are 1 by default, for every noisy copy of a
sequence (draws); block diffusion reads 2 · length positions, n = 2 and m = 4. Memory is 20 bytes a parameter (weights,
gradients, two moments and the average; divided by the processes with --shard), ACTIVATIONS numbers for each position,
block and feature, and the logits.

P counts parameters that take part in matrix products, so not the embedding table, unless the head is tied to it. The
estimate does not model kernels, communication or input; all three are contained in the fraction of the peak that is
reached.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from logosphere.data.datasets import is_dataset
from logosphere.data.text8 import is_letters
from logosphere.errors import UserError
from logosphere.geometry.bridge_tables import coarse_tables
from logosphere.networks.base import Evaluations
from logosphere.networks.heads import TiedHead
from logosphere.networks.precision import find_precision
from logosphere.parallel.process_group import find_device
from logosphere.runs.config import TrainConfig
from logosphere.runs.settings import SILENT, Display
from logosphere.runs.train_data import open_with_display
from logosphere.systems import build

STATE_BYTES = 20
ACTIVATIONS = 19
"""Numbers kept for the backward pass, per token, block and feature (counted by benchmarks/scaling.py)."""
LOGITS = 5
"""Copies of the logits, in float32."""
REACHED = 0.4
"""Fraction of a GPU's peak that such trainings reach."""
GPUS = {"A100": 312e12, "H100": 989e12}
"""Peak in bfloat16, dense."""
GPU_MEMORY = 80e9
"""Memory of one of them, of its larger version."""
CHECKPOINT_BYTES, MERGED_BYTES, BEST_BYTES = 16, 8, 4
"""Bytes a parameter on disk: weights, average and two moments of a checkpoint; with --shard the first two once more,
merged; and the best average."""
LARGE = 1 << 18
"""Numbers of a tensor from which a dry run does not allocate it."""
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
    disk_bytes: int
    """Largest size of the run folder: the best average and two checkpoints, of which one replaces the other."""

    @property
    def memory(self) -> float:
        return self.state_bytes + self.activation_bytes

    @property
    def tokens(self) -> int | None:
        """Tokens of all steps."""
        return None if self.steps is None else self.steps * self.tokens_per_step

    @property
    def flops(self) -> int | None:
        """FLOPs of all steps."""
        return None if self.tokens is None else self.tokens * self.flops_per_token

    def seconds(self, flops_per_second: float) -> float | None:
        """Time for all steps at this speed; None for a training that has a time instead of steps."""
        return None if self.flops is None else self.flops / flops_per_second

    def days(self, gpu: str, gpus: int) -> float | None:
        seconds = self.seconds(GPUS[gpu] * REACHED * gpus)
        return None if seconds is None else seconds / 86_400


def cost(recipe: TrainConfig, vocab_size: int, processes: int = 1, conditions: Mapping[str, int] | None = None) -> Cost:
    """The cost of a recipe with a vocabulary of this size, shared by so many processes.

    `conditions` is what the network must be built for to read those of the corpus (`Corpus.conditions`).
    """
    return costs_by_processes(recipe, vocab_size, (processes,), conditions)[processes]


def costs_by_processes(
    recipe: TrainConfig, vocab_size: int, sizes: Iterable[int], conditions: Mapping[str, int] | None = None
) -> dict[int, Cost]:
    """The cost of a recipe for each number of processes; parameters are counted once."""
    size = _network_size(recipe, vocab_size, conditions or {})
    return {processes: _cost(recipe, vocab_size, size, processes) for processes in sizes}


def _cost(recipe: TrainConfig, vocab_size: int, size: "NetworkSize", processes: int) -> Cost:
    network, evaluated = recipe.network, size.evaluations
    matrices = 6 * (size.parameters - size.table)
    attention = 12 * network.depth * network.width * recipe.length
    rows = -(-recipe.batch // (processes * recipe.accumulate))
    half = find_precision(recipe.precision, find_device(recipe.device)) == torch.bfloat16
    kept = network.depth * network.width * (1 if recipe.recompute else ACTIVATIONS) * (2 if half else 4)
    checkpoint = CHECKPOINT_BYTES + (MERGED_BYTES if recipe.shard else 0)
    return Cost(
        parameters=size.parameters,
        flops_per_token=round(evaluated.positions * matrices + evaluated.pairs * attention),
        tokens_per_step=recipe.batch * recipe.length,
        steps=recipe.steps,
        state_bytes=STATE_BYTES * size.parameters / (processes if recipe.shard else 1),
        activation_bytes=round(
            rows * recipe.length * (evaluated.positions * kept + 4 * recipe.draws * LOGITS * vocab_size)
        ),
        disk_bytes=(2 * checkpoint + BEST_BYTES) * size.parameters,
    )


def estimate(config: TrainConfig, processes: int = 1, display: Display = SILENT) -> Cost:
    """The cost of a training that is shared by so many processes."""
    return estimates(config, (processes,), display)[processes]


def estimates(config: TrainConfig, sizes: Iterable[int], display: Display = SILENT) -> dict[int, Cost]:
    """The cost of a training for each number of processes that share it."""
    sizes = tuple(sizes)
    if min(sizes) < 1:
        raise UserError(f"The number of processes must be at least 1, not {min(sizes)}.")
    vocab_size, conditions = _vocabulary(config, display)
    return costs_by_processes(config, vocab_size, sizes, conditions)


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
    corpus = open_with_display(config.data, config.tokenizer, display, config.column)
    return corpus.tokenizer.size, corpus.conditions


@dataclass(frozen=True)
class NetworkSize:
    """What the cost of a model depends on."""

    parameters: int
    table: int
    """Parameters of embedding tables, which take part in no product."""
    evaluations: Evaluations


class WithoutLargeTensors(TorchFunctionMode):
    """Tensors that `torch.empty` makes, as parameters are, are on the meta device from LARGE numbers on.

    They have a shape and no memory, so that neither memory nor time depends on the size of a network. Small ones are
    computed as usual.
    """

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            if math.prod(size) >= LARGE:
                return func(*args, **(kwargs | {"device": "meta"}))
        return func(*args, **kwargs)


def _network_size(recipe: TrainConfig, vocab_size: int, conditions: Mapping[str, int]) -> NetworkSize:
    """The size of a model, extrapolated from the two smallest networks (one and two blocks, and those of a decoder)."""
    least, depth = 1 + (recipe.network.decoder_depth or 0), recipe.network.depth
    counts: list[int] = []
    evaluated: list[tuple[float, float]] = []  # summed over blocks, because only the sums are linear in the depth
    for small in (least, least + 1):
        size = vars(replace(recipe.network, depth=small)) | dict(conditions)
        with WithoutLargeTensors(), coarse_tables():
            model = build(
                recipe.system, vocab_size=vocab_size, length=recipe.length, preset=recipe.preset,
                **size, **recipe.system_options(),
            )  # fmt: skip
        assert model.denoiser is not None  # it was built with a network
        stated = model.denoiser.evaluations(recipe.draws)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
        evaluated.append((small * stated.positions, small * stated.pairs))
    tied = any(isinstance(m, TiedHead) for m in model.modules())  # then the table is the matrix of the head
    table = 0 if tied else sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    positions, pairs = ((a + (depth - least) * (b - a)) / depth for a, b in zip(*evaluated, strict=True))
    parameters = counts[0] + (depth - least) * (counts[1] - counts[0])
    return NetworkSize(parameters, table, Evaluations(positions, pairs))
