"""What a bound costs at each end of the path of a latent system, before any denoiser is trained.

The path around latents u = f(x) ends at z = α u + σ ε with SNR e^λ, from which the text is decoded. With a Gaussian
prior in place of the diffusion, p(z) = N(α m, α² Σ + σ² I) with the mean and covariance of the latents of training
texts, and all latents independent,

    -log p(x) ≤ E[-log p(x | z)] + KL(N(α u, σ² I) || N(α m, α² Σ + σ² I))

is a bound (Kingma and Welling 2014) whose second term, the rate, averages to ½ log det(I + e^λ Σ) on the training
texts. By I-MMSE this is what the diffusion costs whose denoiser knows first and second moments alone (the Wiener
filter); a trained denoiser costs less, and one that has learned nothing but the scale of features costs ½ log(1 + e^λ)
for each of them. A bound says something about texts only where the rate is of the order of their entropy.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.codecs.base import Autoencoder
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import counted_positions
from logosphere.model import Model
from logosphere.rng import as_generator
from logosphere.types import Batch, Float

RIDGE = 1e-4
"""Added to the variances, so that few texts give a covariance that can be inverted."""


@dataclass(frozen=True)
class PathEnd:
    """The bound at one end of the path, in nats per token of held-out text (padding is not counted)."""

    logsnr: float
    reconstruction: float
    rate: float
    """KL of z from the Gaussian prior."""
    white_rate: float
    """½ log(1 + e^λ) for every feature: the rate of a denoiser that knows only their scale."""
    accuracy: float
    """Fraction of the tokens that are reconstructed from z."""

    @property
    def total(self) -> float:
        """The bound."""
        return self.reconstruction + self.rate


@torch.no_grad()
def measure_path_ends(
    model: Model,
    train: Iterable[Batch],
    held_out: Iterable[Batch],
    logsnrs: Sequence[float],
    rng: torch.Generator | int,
) -> list[PathEnd]:
    """The bound with a Gaussian prior at these log-SNRs; its moments are those of `train`."""
    codec = model.process.codec
    if not isinstance(codec, Autoencoder):
        raise UserError("The ends of a path are those of a latent system; use ld4lg, planner, tencdm or cosmos.")
    rng, training = as_generator(rng, model.device), model.training
    model.eval()
    try:
        mean, covariance = latent_moments(codec.encode(batch.to(model.device).tokens) for batch in train)
        variances, axes = torch.linalg.eigh(covariance)
        texts = [batch.to(model.device) for batch in held_out]
        if not texts:
            raise UserError("There is nothing to evaluate: the data holds no batch.")
        return [_measure(codec, texts, mean, variances.clamp_min(0), axes, value, rng) for value in logsnrs]
    finally:
        model.train(training)


def latent_moments(latents: Iterable[Float[Tensor, "B N d"]]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "d d"]]:
    """The mean of each latent, and the covariance of features, the same for all latents."""
    count, total, square = 0, None, None
    for u in latents:
        u = u.double()
        products = torch.einsum("bni,bnj->nij", u, u)
        total = u.sum(0) if total is None else total + u.sum(0)
        square = products if square is None else square + products
        count += len(u)
    if total is None or square is None or count < 2:
        raise UserError(f"The moments of latents need at least 2 texts, not {count}.")
    mean = total / count
    covariance = (square / count - mean[:, :, None] * mean[:, None]).mean(0)
    return mean, covariance + RIDGE * torch.eye(len(covariance), dtype=torch.float64, device=covariance.device)


def gaussian_rate(
    u: Float[Tensor, "B N d"], mean: Float[Tensor, "N d"], variances: Tensor, axes: Tensor, logsnr: float
) -> Float[Tensor, " B"]:
    """KL(N(α u, σ² I) || N(α m, α² Σ + σ² I)) with Σ = axes · variances · axesᵀ: after division by σ² only the SNR
    matters."""
    snr = math.exp(logsnr)
    spread = 1 + snr * variances
    distance = snr * ((u.double() - mean) @ axes).square()
    return 0.5 * ((1 + distance) / spread - 1 + spread.log()).sum((1, 2))


def _measure(
    codec: Autoencoder, texts: list[Batch], mean: Tensor, variances: Tensor, axes: Tensor, logsnr: float,
    rng: torch.Generator,
) -> PathEnd:  # fmt: skip
    alpha, sigma = (1 / (1 + math.exp(-logsnr))) ** 0.5, (1 / (1 + math.exp(logsnr))) ** 0.5
    nats, rate, right, count, features = 0.0, 0.0, 0, 0, 0
    for batch in texts:
        u, counted = codec.encode(batch.tokens), counted_positions(batch)
        noise = torch.randn(u.shape, generator=rng, device=rng.device).to(u)
        z = alpha * u + sigma * noise
        nats += float(codec.reconstruction_nll(z, batch.tokens).sum())
        rate += float(gaussian_rate(u, mean, variances, axes, logsnr).sum())
        right += int(((codec.decode(z) == batch.tokens) & counted).sum())
        count, features = count + int(counted.sum()), features + u.numel()
    white = 0.5 * math.log1p(math.exp(logsnr)) * features
    return PathEnd(logsnr, nats / count, rate / count, white / count, right / count)
