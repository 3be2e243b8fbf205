"""Parameterizations of the network, updates of a sampler and the spacing of its times.

Parameterizations of the network of a Gaussian diffusion, and the clean state that follows from its output.

With z = α x + σ ε these are equivalent:

    x0      x̂ itself                         eps     ε̂ = (z - α x̂)/σ
    v       v̂ = α ε̂ - σ x̂                   score   -ε̂/σ = (α x̂ - z)/σ²
    tokens  logits of p(token), x̂ = Σ_k p_k e_k: CDCD's score interpolation, Plaid's categorical reparameterisation

`predict_x0` and `from_x0` are inverse to each other. The squared error of the output is that of x̂ times `loss_scale`.

Samplers of Gaussian diffusion: the update from z at λ to λ' > λ given x̂, and the spacing of the times.

- ancestral: a draw from q(z' | z, x̂), which has the mean (α/α')(σ'²/σ²) z + α' c x̂ and the variance c σ'², with
  c = 1 - exp(λ - λ') (Ho et al. 2020)
- ancestral_large: the same mean and the larger variance β = 1 - α²/α'², their other choice (Diffusion-LM, Bit
  Diffusion, LD4LG)
- ddim: z' = α' x̂ + σ' ε̂, a first-order step of the probability flow (Song et al. 2020)
- q_sample: z' = α' x̂ + σ' ε with fresh noise, so that errors of z do not persist (Han et al. 2023, SSD-LM)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from logosphere.processes.time_sampler import TimeSampler, inverse_cdf
from logosphere.rng import Noise
from logosphere.schedules.logsnr import LogSNR
from logosphere.types import Float, State

Level = Float[Tensor, "... 1"]

MIN_LEVEL = 1e-4
"""The smallest α or σ by which a state is divided."""


class Parameterization(ABC):
    """A quantity that the network predicts."""

    @abstractmethod
    def predict_x0(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        """x̂ of an output."""

    @abstractmethod
    def from_x0(self, x0: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        """The output that stands for this x̂."""

    @abstractmethod
    def loss_scale(self, alpha: Level, sigma: Level) -> Level:
        """|error of the output|² / |x̂ - x|²."""


class CleanState(Parameterization):
    """x0."""

    def predict_x0(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return out

    def from_x0(self, x0: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return x0

    def loss_scale(self, alpha: Level, sigma: Level) -> Level:
        return torch.ones_like(alpha)


class Velocity(Parameterization):
    """v (Salimans and Ho 2022): x̂ = α z - σ v̂."""

    def predict_x0(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return alpha * z - sigma * out

    def from_x0(self, x0: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (alpha * z - x0) / sigma.clamp_min(MIN_LEVEL)

    def loss_scale(self, alpha: Level, sigma: Level) -> Level:
        return 1 / sigma.clamp_min(MIN_LEVEL).square()


class NoiseState(Parameterization):
    """ε (Ho et al. 2020): x̂ = (z - σ ε̂)/α."""

    def predict_x0(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return (z - sigma * out) / alpha.clamp_min(MIN_LEVEL)

    def from_x0(self, x0: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (z - alpha * x0) / sigma.clamp_min(MIN_LEVEL)

    def loss_scale(self, alpha: Level, sigma: Level) -> Level:
        return (alpha / sigma.clamp_min(MIN_LEVEL)).square()


class Score(Parameterization):
    """∇ log p(z) (Song et al. 2021): x̂ = (z + σ² score)/α."""

    def predict_x0(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return (z + sigma.square() * out) / alpha.clamp_min(MIN_LEVEL)

    def from_x0(self, x0: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (alpha * x0 - z) / sigma.clamp_min(MIN_LEVEL).square()

    def loss_scale(self, alpha: Level, sigma: Level) -> Level:
        return (alpha / sigma.clamp_min(MIN_LEVEL).square()).square()


PARAMETERIZATIONS: dict[str, Parameterization] = {
    "x0": CleanState(),
    "v": Velocity(),
    "eps": NoiseState(),
    "score": Score(),
}
"""By name. A network that predicts logits of tokens has none of them."""


Update = Callable[[State, State, Level, Level, Noise], State]
"""(x̂, z, λ, λ', noise) -> z', for states with one or two leading axes."""
Spacing = Literal["angle", "logsnr", "information", "time"]


def ancestral(x0: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _alpha_sigma(now, then)
    c = -torch.expm1(now - then)
    kept = (alpha / alpha_then * (sigma_then / sigma).square()).float()
    drawn = (c.clamp_min(0).sqrt() * sigma_then).float() * noise.normal(*z.shape)
    return kept * z + (alpha_then * c).float() * x0 + drawn


def ancestral_large(x0: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _alpha_sigma(now, then)
    c = -torch.expm1(now - then)
    kept = (alpha / alpha_then * (sigma_then / sigma).square()).float()
    # 1 - α²/α'² = (1 - exp(λ - λ')) σ², which keeps its digits where λ and λ' are close
    drawn = (c.clamp_min(0).sqrt() * sigma).float() * noise.normal(*z.shape)
    return kept * z + (alpha_then * c).float() * x0 + drawn


def ddim(x0: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    alpha, sigma, alpha_then, sigma_then = _alpha_sigma(now, then)
    ratio = sigma_then / sigma
    return ratio.float() * z + (alpha_then - ratio * alpha).float() * x0


def q_sample(x0: State, z: State, now: Level, then: Level, noise: Noise) -> State:
    _, _, alpha_then, sigma_then = _alpha_sigma(now, then)
    return alpha_then.float() * x0 + sigma_then.float() * noise.normal(*z.shape)


def _alpha_sigma(now: Level, then: Level) -> tuple[Level, Level, Level, Level]:
    """α and σ before and after the step, float64."""
    parts = [torch.sigmoid(part).sqrt() for part in (now, -now, then, -then)]
    return parts[0], parts[1], parts[2], parts[3]


@torch.no_grad()
def spaced_times(
    spacing: Spacing, schedule: LogSNR, time_sampler: TimeSampler, fraction: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """The schedule's times at these fractions of the path from noise to data.

    The path is measured by the angle arccos α, by λ, by the nats that the time sampler has observed, or by time itself.
    """
    if spacing == "time":
        return 1 - fraction
    if spacing == "information":
        nats = time_sampler.measured[1][time_sampler.bin_of][:-1]
        return 1 - inverse_cdf(nats / nats.sum(), fraction) / (time_sampler.steps - 1)
    start, end = schedule.logsnr(torch.tensor([1.0, 0.0], device=fraction.device))
    if spacing == "logsnr" and math.isfinite(start):
        return schedule.time(start + (end - start) * fraction)
    angle = torch.lerp(torch.atan((-start / 2).exp()), torch.atan((-end / 2).exp()), fraction)
    return schedule.time(-2 * angle.tan().log())
