"""Moves of Gaussian diffusion from z at λ to λ' > λ, given x̂.

- ancestral: a draw from q(z' | z, x̂), which has the mean (α/α')(σ'²/σ²) z + α' c x̂ and the variance c σ'², with
  c = 1 - exp(λ - λ') (Ho et al. 2020)
- wide: the same mean and the larger variance β = 1 - α²/α'², their other choice (Diffusion-LM, Bit Diffusion, LD4LG)
- ddim: z' = α' x̂ + σ' ε̂, a first-order step of the probability flow (Song et al. 2020)
- renoised: z' = α' x̂ + σ' ε with fresh noise, which forgets mistakes (q-sampling; Han et al. 2023, SSD-LM)
"""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.rng import Noise
from logosphere.types import Float, State

Level = Float[Tensor, "... 1"]
Move = Callable[[State, State, Level, Level, Noise], State]
"""(x̂, z, λ, λ', noise) -> z'; all positions of an axis before the last two or one."""


def ancestral(clean: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _levels(now, then)
    share = -torch.expm1(now - then)
    kept = (alpha / alpha_then * (sigma_then / sigma).square()).float()
    drawn = (share.clamp_min(0).sqrt() * sigma_then).float() * noise.normal(*z.shape)
    return kept * z + (alpha_then * share).float() * clean + drawn


def wide(clean: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _levels(now, then)
    share = -torch.expm1(now - then)
    kept = (alpha / alpha_then * (sigma_then / sigma).square()).float()
    # 1 - α²/α'² = (1 - exp(λ - λ')) σ², which keeps its digits where λ and λ' are close
    drawn = (share.clamp_min(0).sqrt() * sigma).float() * noise.normal(*z.shape)
    return kept * z + (alpha_then * share).float() * clean + drawn


def ddim(clean: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _levels(now, then)
    ratio = sigma_then / sigma
    return ratio.float() * z + (alpha_then - ratio * alpha).float() * clean


def renoised(clean: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    _, _, alpha_then, sigma_then = _levels(now, then)
    return alpha_then.float() * clean + sigma_then.float() * noise.normal(*z.shape)


def _levels(now: Level, then: Level) -> tuple[Level, Level, Level, Level]:
    """α and σ at both ends, float64."""
    parts = [torch.sigmoid(part).sqrt() for part in (now, -now, then, -then)]
    return parts[0], parts[1], parts[2], parts[3]
