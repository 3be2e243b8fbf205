"""Training of a classifier of noisy states: -log p(y | z_t), with z_t ~ q(z_t | x) at times spread over [0, 1]."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.denoisers.classifier import NoisyClassifier
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.noise import Drawn
from logosphere.shapes import Float
from logosphere.training.beside import Taught, taught
from logosphere.training.optim import Optim
from logosphere.types import Batch


def train_classifier(
    classifier: NoisyClassifier,
    model: Model,
    batches: Iterable[Batch],
    *,
    steps: int,
    optim: Optim | None = None,
    seed: int = 0,
) -> Iterator[Taught]:
    """Teach a classifier the labels of batches as the noise of a model leaves them; the model stays as it is."""
    rng = torch.Generator(model.device).manual_seed(seed)

    def loss(batch: Batch) -> Float[Tensor, ""]:
        if batch.condition is None or batch.condition.labels is None:
            raise UserError("A classifier is trained on examples with labels, such as labelled:FILE or digits.")
        noise = Drawn(rng, len(batch))
        t = noise.quantiles(1, 1)[:, 0].float().expand(batch.tokens.shape)
        z = model.process.corrupt(batch.tokens, t, noise)
        return F.nll_loss(classifier(F.one_hot(z, classifier.states).float(), t), batch.condition.labels)

    yield from taught(
        classifier, model, batches, loss, steps=steps, optim=Optim(lr=1e-3, warmup=20) if optim is None else optim
    )
