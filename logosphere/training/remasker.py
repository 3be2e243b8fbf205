"""Training of a remasker on a frozen denoiser (Meshchaninov et al. 2025, G-Star).

z_t ~ q(z_t | x) at a random time; one step straight to s = 0 writes x̂; the label of a position is [x̂ ≠ x]; and

    loss = -Σ_i log p(label_i | x̂),     over all positions that were not given.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model, bind_condition
from logosphere.networks.backbone import Backbone
from logosphere.networks.classifier import Remasker
from logosphere.networks.transformer import FullTransformer
from logosphere.networks.wrappers import PosteriorHead
from logosphere.noise import Drawn
from logosphere.shapes import Float
from logosphere.training.auxiliary import train_auxiliary
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch, Positions, Tokens


@dataclass(frozen=True)
class RemaskerStep:
    """What one step did."""

    step: int
    loss: float
    """Nats per position."""
    wrong: float
    """Share of the tokens that were wrong."""
    seconds: float


def train_remasker(
    model: Model,
    batches: Iterable[Batch | Tokens],
    *,
    steps: int,
    optim: OptimizerConfig | None = None,
    seed: int = 0,
) -> Iterator[RemaskerStep]:
    """Train the remasker of a model (system g-star) for `steps` steps; its denoiser stays as it is."""
    remasker = model.remasker
    if not isinstance(remasker, Remasker) or model.denoiser is None:
        raise UserError("This model has no remasker; build the system g-star, or use with_remasker(model).")
    _inherit(remasker, model)
    rng = torch.Generator(model.device).manual_seed(seed)
    wrong = 0.0

    def loss(batch: Batch) -> Float[Tensor, ""]:
        nonlocal wrong
        written = rewritten(model, batch, rng)
        missed = (written != batch.tokens).float()[batch.free]
        wrong = missed.mean().item()
        return F.binary_cross_entropy_with_logits(remasker(written)[batch.free], missed)

    optim = OptimizerConfig(lr=1e-3, warmup=20) if optim is None else optim
    for done in train_auxiliary(remasker, model, batches, loss, steps=steps, optim=optim):
        yield RemaskerStep(done.step, done.loss, wrong, done.seconds)


@torch.no_grad()
def rewritten(model: Model, batch: Batch, rng: torch.Generator) -> Tokens:
    """Sequences with a random share of their tokens hidden and written anew, all at once."""
    noise = Drawn(rng, len(batch))
    t = noise.quantiles(1, 1)[:, 0].float().expand(batch.tokens.shape)
    t = torch.where(batch.free, t, 0.0)
    z = model.process.corrupt(batch.tokens, t, noise)
    where: Positions = model.process.needs_prediction(z, batch.free)
    assert model.denoiser is not None
    predict = model.denoiser if batch.condition is None else bind_condition(model.denoiser, batch.condition)
    out = predict(z, t, batch.tokens, where)
    z[where] = model.process.step(out, z[where], t[where], torch.zeros_like(t[where]), noise)
    return z


def _inherit(remasker: Remasker, model: Model) -> None:
    """Begin with the denoiser's first blocks, unless the remasker has been trained before."""
    inner = model.denoiser.inner if isinstance(model.denoiser, PosteriorHead) else model.denoiser
    untrained = not bool(remasker.head.weight.any())
    if not untrained or not isinstance(inner, FullTransformer) or inner.reads_time or inner.conditioner is not None:
        return
    if isinstance(inner.trunk, Backbone):
        remasker.inherit(inner.stem, inner.trunk)
