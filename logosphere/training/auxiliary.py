"""Training of auxiliary networks on a frozen model: a remasker, or a classifier of noisy states.

Remasker (Meshchaninov et al. 2025, G-Star): z_t ~ q(z_t | x) at a random time; one step straight to s = 0 samples x̂;
the label of a position is [x̂ ≠ x]; and

    loss = -Σ_i log p(label_i | x̂),     over all positions that are not known.

Classifier: loss = -log p(y | z_t), with z_t ~ q(z_t | x) at times from noise to data.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError, check_count
from logosphere.inputs import DataLike
from logosphere.model import Model, bind_condition
from logosphere.networks.backbone import Backbone
from logosphere.networks.base import PosteriorHead
from logosphere.networks.classifier import NoisyClassifier, Remasker, classifier_input
from logosphere.networks.placement import unplace_network
from logosphere.networks.transformer import FullTransformer
from logosphere.rng import GeneratorNoise, Noise
from logosphere.training.fit import training_loop
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import adamw, decay_groups, lr_at, optimizer_step
from logosphere.types import Batch, Float, Int64, Positions, State, Times, Tokens

BATCH = 32
"""Sequences of a step, where a data set is given in place of batches."""


@dataclass(frozen=True)
class AuxiliaryStep:
    """The result of one step."""

    step: int
    loss: float
    """The mean loss, in nats."""
    seconds: float


class AuxiliaryTrainer:
    """Minimises a loss of batches over the weights of one network."""

    def __init__(
        self, network: nn.Module, model: Model, loss: Callable[[Batch], Float[Tensor, ""]], optim: OptimizerConfig
    ):
        if optim.name == "muon":
            raise UserError(f"The auxiliary networks are trained by adamw, not by {optim.name}.")
        self.network, self.device, self.loss, self.step = network, model.device, loss, 0
        self.parameters, self.optim = [p.requires_grad_(True) for p in network.parameters()], optim
        self.optimizer = adamw(decay_groups(self.parameters, optim), optim)

    def train_step(self, batch: Batch, done: float) -> AuxiliaryStep:
        started = time.perf_counter()
        batch = batch.to(self.device)
        self.network.train()
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.optim.clip or math.inf, foreach=True)
        optimizer_step(self.optimizer, lr_at(self.optim, self.step, done))
        self.network.eval()
        self.step += 1
        return AuxiliaryStep(self.step, loss.item(), time.perf_counter() - started)


def train_auxiliary(
    network: nn.Module,
    model: Model,
    batches: DataLike,
    loss: Callable[[Batch], Float[Tensor, ""]],
    *,
    steps: int,
    optim: OptimizerConfig,
) -> Iterator[AuxiliaryStep]:
    """Minimise the loss of batches over the weights of `network` alone, for `steps` steps."""
    model.eval()
    given = model.sequence_format.read_for_training(batches, BATCH, 0)
    yield from training_loop(AuxiliaryTrainer(network, model, loss, optim), given, check_count("steps", steps))
    network.requires_grad_(False)


@dataclass(frozen=True)
class RemaskerStep:
    """The result of one step."""

    step: int
    loss: float
    """Nats per position."""
    wrong: float
    """Fraction of the sampled tokens that were wrong."""
    seconds: float


def train_remasker(
    model: Model,
    batches: DataLike,
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    seed: int = 0,
) -> Iterator[RemaskerStep]:
    """Train the remasker of a model (system g-star) for `steps` steps; its denoiser is frozen."""
    remasker = model.remasker
    if not isinstance(remasker, Remasker) or model.denoiser is None:
        raise UserError("This model has no remasker; build the system g-star, or use with_remasker(model).")
    _inherit(remasker, model)
    rng = torch.Generator(model.device).manual_seed(seed)
    wrong = 0.0

    def loss(batch: Batch) -> Float[Tensor, ""]:
        nonlocal wrong
        sampled = resample(model, batch, rng)
        missed = (sampled != batch.tokens).float()[batch.free]
        wrong = missed.mean().item()
        return F.binary_cross_entropy_with_logits(remasker(sampled)[batch.free], missed)

    optim = OptimizerConfig(lr=1e-3, warmup=20) if optim is None else optim
    for done in train_auxiliary(remasker, model, batches, loss, steps=steps, optim=optim):
        yield RemaskerStep(done.step, done.loss, wrong, done.seconds)


@torch.no_grad()
def resample(model: Model, batch: Batch, rng: torch.Generator) -> Tokens:
    """Sequences noised at random times and sampled in a single step to s = 0."""
    noise = GeneratorNoise(rng, len(batch))
    t = noise.low_discrepancy_times(1, 1)[:, 0].float().expand(batch.tokens.shape)
    t = torch.where(batch.free, t, 0.0)
    z = model.process.corrupt(batch.tokens, t, noise)
    where: Positions = model.process.needs_prediction(z, batch.free)
    assert model.denoiser is not None
    predict = model.denoiser if batch.condition is None else bind_condition(model.denoiser, batch.condition)
    out = predict(z, t, batch.tokens, where)
    z[where] = model.process.step(out, z[where], t[where], torch.zeros_like(t[where]), noise)
    return z


def _inherit(remasker: Remasker, model: Model) -> None:
    """Initialise with the first blocks of the denoiser, unless the remasker has been trained before."""
    denoiser = None if model.denoiser is None else unplace_network(model.denoiser)
    inner = denoiser.inner if isinstance(denoiser, PosteriorHead) else denoiser
    untrained = not bool(remasker.head.weight.any())
    if not untrained or not isinstance(inner, FullTransformer) or inner.reads_time or inner.conditioner is not None:
        return
    if isinstance(inner.trunk, Backbone):
        remasker.inherit(inner.stem, inner.trunk)


def train_classifier(
    classifier: NoisyClassifier,
    model: Model,
    batches: Iterable[Batch],
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    seed: int = 0,
) -> Iterator[AuxiliaryStep]:
    """Train a classifier on the labels of batches and the noisy states of a model, which is frozen."""
    rng = torch.Generator(model.device).manual_seed(seed)

    def loss(batch: Batch) -> Float[Tensor, ""]:
        return F.nll_loss(_classify(classifier, model, batch, GeneratorNoise(rng, len(batch))), _labels(batch))

    yield from train_auxiliary(
        classifier,
        model,
        batches,
        loss,
        steps=steps,
        optim=OptimizerConfig(lr=1e-3, warmup=20) if optim is None else optim,
    )


@torch.no_grad()
def measure_classifier(
    classifier: NoisyClassifier, model: Model, batches: Iterable[Batch], seed: int = 0
) -> tuple[float, float]:
    """Mean nats per label and accuracy, averaged over times from noise to data."""
    rng, nats, right, count = torch.Generator(model.device).manual_seed(seed), 0.0, 0, 0
    for given in batches:
        batch = given.to(model.device)
        log_p, labels = _classify(classifier, model, batch, GeneratorNoise(rng, len(batch))), _labels(batch)
        nats += float(F.nll_loss(log_p, labels, reduction="sum"))
        right += int((log_p.argmax(-1) == labels).sum())
        count += len(batch)
    return nats / count, right / count


def _classify(classifier: NoisyClassifier, model: Model, batch: Batch, noise: Noise) -> Float[Tensor, "B C"]:
    z, t = _noisy_states(model, batch, noise)
    with torch.no_grad():
        rows = classifier_input(model.process, model.denoiser, z, t)
    return classifier(rows, t)


def _noisy_states(model: Model, batch: Batch, noise: Noise) -> tuple[State, Times]:
    """States as in sampling: uniform times, block after block; for continuous paths, as in training of the network."""
    process = model.process
    if not process.codec.is_discrete:
        free = process.codec.expand_to_states(torch.ones_like(batch.free))
        z, t, _ = process.sample_zt(
            process.codec.encode(batch.tokens), noise.low_discrepancy_times(1, 1)[:, 0], free, noise
        )
        return z, t
    blocks = model.length // model.block
    left = noise.low_discrepancy_times(1, 1)[:, 0] * blocks  # how many blocks are not yet sampled
    place = torch.arange(blocks, device=left.device).repeat_interleave(model.block)
    t = (left - (blocks - 1 - place)).clamp(0, 1).float()
    return process.corrupt(batch.tokens, t, noise), t


def _labels(batch: Batch) -> Int64[Tensor, " B"]:
    if batch.condition is None or batch.condition.labels is None:
        raise UserError("A classifier needs examples with labels, such as --data labelled:FILE or --data digits.")
    return batch.condition.labels
