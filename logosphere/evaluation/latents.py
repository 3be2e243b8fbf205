"""How much of a text its latents carry, and how much its decoder would have said without them.

A decoder from left to right writes good text from any latents at all. What its latents are worth is what it loses when
they are those of another text, their mean, or noise.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs.autoencoder import Autoencoder
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.shapes import Bool
from logosphere.types import Batch


@dataclass(frozen=True)
class Reading:
    """What a decoder makes of latents, averaged over tokens."""

    accuracy: float
    """Share of tokens that are read back right from clean latents; what fills up short texts does not count."""
    whole: float
    """Share of sequences that are."""
    nats: dict[str, float]
    """-log p(text | latents) per token: its own latents, another text's (shuffled), their mean, and noise (random)."""


@torch.no_grad()
def reading(model: Model, batches: Iterable[Batch], rng: torch.Generator) -> Reading:
    """Measure a latent system on the sequences of `batches`, each of at least 2."""
    codec = model.process.codec
    if not isinstance(codec, Autoencoder):
        raise UserError("Only latent systems have latents to read; use ld4lg, planner, tencdm or cosmos.")
    right: list[Tensor] = []
    counted: list[Tensor] = []
    nats: dict[str, list[Tensor]] = {"own": [], "shuffled": [], "mean": [], "random": []}
    training = model.training
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(model.device)
            tokens = batch.tokens
            counted.append(_counted(batch))
            u = codec.encode(tokens)
            right.append(codec.decode(u) == tokens)
            noise = torch.randn(u.shape, generator=rng, device=rng.device).to(u)
            others = {"own": u, "shuffled": u.roll(1, 0), "mean": u.mean(0).expand_as(u), "random": noise}
            for name, latents in others.items():
                nats[name].append(codec.nats(latents, tokens))
    finally:
        model.train(training)
    if not right:
        raise UserError("There is nothing to read: the data holds no batch.")
    agree, counts = torch.cat(right), torch.cat(counted)
    means = {name: float(torch.cat(parts).sum() / counts.sum()) for name, parts in nats.items()}
    return Reading(float(agree[counts].float().mean()), float((agree | ~counts).all(1).float().mean()), means)


def _counted(batch: Batch) -> Bool[Tensor, "B L"]:
    """The tokens of the texts, of which the first end is one, without what fills them up."""
    if batch.units is None:
        return torch.ones_like(batch.tokens, dtype=torch.bool)
    return torch.arange(batch.tokens.shape[1], device=batch.units.device) < batch.units[:, None]
