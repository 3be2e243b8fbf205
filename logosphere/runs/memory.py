"""Memory of a training that begins with another model, predicted before its first step.

The process already holds the program, the data and the weights. A step adds what it keeps for the backward pass,
measured by the bound of one and of two sequences; gradients, two moments and the average of what is trained; and parts
of the logits. Saving adds a copy of the averaged weights. The sum is a lower estimate: gaps that the allocator keeps
and what evaluation takes for itself are not modelled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from logosphere.allocator import resident_bytes, trim
from logosphere.data.corpus import Corpus
from logosphere.io import MAX_UNMAPPED, file_sha256
from logosphere.model import Model
from logosphere.networks.precision import autocast_to, find_precision
from logosphere.networks.published.base import PublishedNetwork
from logosphere.processes.bound import CHUNK
from logosphere.processes.capabilities import LearnedCodec, LearnedForward, OnlineStatistics
from logosphere.rng import CounterNoise
from logosphere.runs.adaptation import AdaptConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import begin_model
from logosphere.runs.parents import check_autoregressive, open_parent, parent_weights
from logosphere.runs.settings import SILENT, Display
from logosphere.runs.train_data import open_training_data
from logosphere.types import Batch

CHUNKS = 5
"""Arrays of the size of a chunk of logits that exist at a time: logits, probabilities, their gradients."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Bytes that a training takes at its peak, by what they hold."""

    parameters: int
    """Numbers of the network."""
    trained: int
    """Numbers that are trained."""
    held: int
    """Bytes of the process before the first step: the program, the data and the weights."""
    state: int
    """Bytes of two moments and of the average of what is trained."""
    gradients: int
    activations: int
    """Bytes kept for the backward pass, and parts of the logits."""
    saving: int
    """Bytes that saving a checkpoint takes for a moment."""

    @property
    def peak(self) -> int:
        """The largest sum of those that exist at a time."""
        step = max(self.activations, self.gradients)
        return self.held + self.state + max(step, self.gradients + self.saving)

    def summary(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"peak": self.peak}


def can_predict(model: Model) -> bool:
    """Whether the bound can be measured without a change of the model: its process learns nothing from it."""
    process = model.process
    observes = isinstance(process, OnlineStatistics) and len(process.accumulators()) > 0
    return model.denoiser is not None and not observes and not isinstance(process, LearnedForward | LearnedCodec)


def predict_memory(model: Model, config: TrainConfig) -> MemoryPrediction:
    """The memory of a training of this model, which has its weights and no gradients."""
    trim()
    held = resident_bytes()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    numbers = sum(parameter.numel() for parameter in trained)
    one, two = (_kept_bytes(model, config, count) for count in (1, 2))
    rows = -(-config.batch // config.accumulate)
    each, fixed = two - one, max(0, 2 * one - two)
    masked = rows * model.length * model.vocab_size
    logits = CHUNKS * 4 * min(CHUNK, masked)
    size = 4 * numbers
    return MemoryPrediction(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained=numbers,
        held=held,
        state=2 * size + (size if config.ema else 0),
        gradients=size,
        activations=rows * each + 2 * fixed + logits,
        saving=size if size > MAX_UNMAPPED else 2 * size,
    )


def _kept_bytes(model: Model, config: TrainConfig, count: int) -> int:
    """Bytes that the bound of so many sequences keeps for its gradient, apart from weights.

    The backward pass holds gradients of the activations of one block as well, which are as large as these.
    """
    tokens = torch.zeros(count, model.length, dtype=torch.long, device=model.device)
    batch = Batch.of(tokens)
    noise = CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)
    training = model.training
    with _kept_tensors(model) as kept, _recomputed(model, on=False):
        precision = find_precision(config.precision, model.network_device)
        with autocast_to(precision, model.device), torch.random.fork_rng():
            model.train().bound(batch, noise, config.draws)
        total = sum(kept.values())
    model.train(training)
    blocks = max(1, _blocks(model))
    if not config.recompute:
        return total + total // blocks
    width = model.spec.published_size.get("width", 0) if model.spec is not None else 0
    return 2 * total // blocks + 4 * blocks * count * model.length * width


@contextmanager
def _kept_tensors(model: nn.Module) -> Iterator[dict[int, int]]:
    """Address and bytes of every storage that is kept for a backward pass inside this block."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and storage.data_ptr() not in kept:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())  # so that no other storage takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield kept


@contextmanager
def _recomputed(model: nn.Module, *, on: bool) -> Iterator[None]:
    networks = [part for part in model.modules() if isinstance(part, PublishedNetwork)]
    before = [network.recompute for network in networks]
    for network in networks:
        network.recompute = on
    try:
        yield
    finally:
        for network, was in zip(networks, before, strict=True):
            network.recompute = was


def _blocks(model: nn.Module) -> int:
    return sum(len(part) for part in model.modules() if isinstance(part, nn.ModuleList))


def predict_training(
    config: TrainConfig, adapt: AdaptConfig | None = None, display: Display = SILENT
) -> MemoryPrediction:
    """The memory of a training that begins with `config.begin`, for which its model is built and no folder is made."""
    assert config.begin is not None
    parent = open_parent(config.begin, display)
    if adapt is not None:
        check_autoregressive(parent)
    config, corpus = open_training_data(config, display)
    return predict_memory(_begin(config, corpus, adapt), config)


def _begin(config: TrainConfig, corpus: Corpus, adapt: AdaptConfig | None) -> Model:
    assert config.begin is not None
    parent = open_parent(config.begin)
    with parent_weights(parent) as weights:
        return begin_model(config, corpus, parent, Path(weights), file_sha256(weights), adapt)


def describe_memory(found: MemoryPrediction) -> str:
    """One line."""
    share = "all" if found.trained == found.parameters else f"{found.trained:,}"
    return (
        f"Memory at the peak: at least {found.peak / 1e9:.2f} GB ({found.held / 1e9:.2f} GB of program and weights, "
        f"{found.state / 1e9:.2f} GB of moments and averages, {found.gradients / 1e9:.2f} GB of gradients, "
        f"{found.activations / 1e9:.2f} GB of activations and logits). "
        f"Of {found.parameters:,} parameters {share} are trained."
    )
