"""Reconstruction of texts from their latents, compared with latents of other texts, their mean, and noise.

An autoregressive decoder generates good text from any latents. The increase of its loss when latents are replaced
measures the information in them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs.autoencoder import Autoencoder
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.types import Batch, Bool


@dataclass(frozen=True)
class Reconstruction:
    """Accuracy and negative log-likelihood of a decoder given latents."""

    accuracy: float
    """Fraction of tokens reconstructed from clean latents; padding is not counted."""
    exact_match: float
    """Fraction of sequences reconstructed exactly."""
    nats: dict[str, float]
    """-log p(text | latents) per token: own latents, another text's (shuffled), the batch mean, and noise (random)."""


@torch.no_grad()
def measure_reconstruction(model: Model, batches: Iterable[Batch], rng: torch.Generator) -> Reconstruction:
    """Measure a latent system on the sequences of `batches`, each of at least 2."""
    codec = model.process.codec
    if not isinstance(codec, Autoencoder):
        raise UserError("Reconstruction needs a latent system; use ld4lg, planner, tencdm or cosmos.")
    matches: list[Tensor] = []
    counted: list[Tensor] = []
    nats: dict[str, list[Tensor]] = {"own": [], "shuffled": [], "mean": [], "random": []}
    training = model.training
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(model.device)
            tokens = batch.tokens
            counted.append(_counted_positions(batch))
            u = codec.encode(tokens)
            matches.append(codec.decode(u) == tokens)
            noise = torch.randn(u.shape, generator=rng, device=rng.device).to(u)
            variants = {"own": u, "shuffled": u.roll(1, 0), "mean": u.mean(0).expand_as(u), "random": noise}
            for name, latents in variants.items():
                nats[name].append(codec.reconstruction_nll(latents, tokens))
    finally:
        model.train(training)
    if not matches:
        raise UserError("There is nothing to evaluate: the data holds no batch.")
    agree, counts = torch.cat(matches), torch.cat(counted)
    means = {name: float(torch.cat(parts).sum() / counts.sum()) for name, parts in nats.items()}
    return Reconstruction(float(agree[counts].float().mean()), float((agree | ~counts).all(1).float().mean()), means)


def _counted_positions(batch: Batch) -> Bool[Tensor, "B L"]:
    """The positions of real tokens and of the first EOS, without padding."""
    if batch.token_count is None:
        return torch.ones_like(batch.tokens, dtype=torch.bool)
    return torch.arange(batch.tokens.shape[1], device=batch.token_count.device) < batch.token_count[:, None]
