"""Training of a classifier of noisy states: -log p(y | z_t), with z_t ~ q(z_t | x) all the way from noise to x."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.classifier import NoisyClassifier, classifier_input
from logosphere.noise import Drawn, Noise
from logosphere.shapes import Float, Int64
from logosphere.training.auxiliary import AuxiliaryStep, train_auxiliary
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch, State, Times


def train_classifier(
    classifier: NoisyClassifier,
    model: Model,
    batches: Iterable[Batch],
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    seed: int = 0,
) -> Iterator[AuxiliaryStep]:
    """Teach a classifier the labels of batches as the noise of a model leaves them; the model stays as it is."""
    rng = torch.Generator(model.device).manual_seed(seed)

    def loss(batch: Batch) -> Float[Tensor, ""]:
        return F.nll_loss(_asked(classifier, model, batch, Drawn(rng, len(batch))), _labels(batch))

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
    """Mean nats per label, and how often the likeliest is right, over the whole way from noise to text."""
    rng, nats, right, count = torch.Generator(model.device).manual_seed(seed), 0.0, 0, 0
    for given in batches:
        batch = given.to(model.device)
        told, labels = _asked(classifier, model, batch, Drawn(rng, len(batch))), _labels(batch)
        nats += float(F.nll_loss(told, labels, reduction="sum"))
        right += int((told.argmax(-1) == labels).sum())
        count += len(batch)
    return nats / count, right / count


def _asked(classifier: NoisyClassifier, model: Model, batch: Batch, noise: Noise) -> Float[Tensor, "B C"]:
    z, t = _on_the_way(model, batch, noise)
    with torch.no_grad():
        rows = classifier_input(model.process, model.denoiser, z, t)
    return classifier(rows, t)


def _on_the_way(model: Model, batch: Batch, noise: Noise) -> tuple[State, Times]:
    """States as samplers meet them: at even times, block after block; of continuous paths, as their networks did."""
    process = model.process
    if not isinstance(process.codec, TokenCodec):
        free = process.codec.expand_to_states(torch.ones_like(batch.free))
        z, t, _ = process.sample_zt(process.codec.encode(batch.tokens), noise.quantiles(1, 1)[:, 0], free, noise)
        return z, t
    blocks = model.length // model.block
    left = noise.quantiles(1, 1)[:, 0] * blocks  # how many blocks are still to be written
    place = torch.arange(blocks, device=left.device).repeat_interleave(model.block)
    t = (left - (blocks - 1 - place)).clamp(0, 1).float()
    return process.corrupt(batch.tokens, t, noise), t


def _labels(batch: Batch) -> Int64[Tensor, " B"]:
    if batch.condition is None or batch.condition.labels is None:
        raise UserError("A classifier is trained on examples with labels, such as labelled:FILE or digits.")
    return batch.condition.labels
