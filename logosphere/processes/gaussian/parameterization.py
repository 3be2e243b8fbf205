"""Parameterizations of the network of a Gaussian diffusion, and the clean state that follows from its output.

With z = α x + σ ε these are equivalent:

    x0      x̂ itself                         eps     ε̂ = (z - α x̂)/σ
    v       v̂ = α ε̂ - σ x̂                   score   -ε̂/σ = (α x̂ - z)/σ²
    tokens  logits of p(token), x̂ = Σ_k p_k e_k: CDCD's score interpolation, Plaid's categorical reparameterisation

`predict_x0` and `from_x0` are inverse to each other. The squared error of the output is that of x̂ times `loss_scale`.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

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
