"""What the network of a Gaussian diffusion predicts, and how the clean state follows from it.

With z = α x + σ ε these are the same statement:

    x0      x̂ itself                         eps     ε̂ = (z - α x̂)/σ
    v       v̂ = α ε̂ - σ x̂                   score   -ε̂/σ = (α x̂ - z)/σ²
    tokens  logits of p(token), x̂ = Σ_k p_k e_k: CDCD's score interpolation, Plaid's categorical reparameterisation

`clean` and `answer` are inverse to each other; x̂ - x is the error of each of them but for a factor (`factor`).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from logosphere.types import Float, State

Level = Float[Tensor, "... 1"]

LEAST = 1e-4
"""α or σ below this are taken for it where one must divide by them."""


class Prediction(ABC):
    """A way to say x̂."""

    @abstractmethod
    def clean(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        """x̂ from what the network said."""

    @abstractmethod
    def answer(self, clean: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        """What the network should have said."""

    @abstractmethod
    def factor(self, alpha: Level, sigma: Level) -> Level:
        """|error of the answer|² / |x̂ - x|²."""


class CleanState(Prediction):
    """x0."""

    def clean(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return out

    def answer(self, clean: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return clean

    def factor(self, alpha: Level, sigma: Level) -> Level:
        return torch.ones_like(alpha)


class Velocity(Prediction):
    """v (Salimans and Ho 2022): x̂ = α z - σ v̂."""

    def clean(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return alpha * z - sigma * out

    def answer(self, clean: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (alpha * z - clean) / sigma.clamp_min(LEAST)

    def factor(self, alpha: Level, sigma: Level) -> Level:
        return 1 / sigma.clamp_min(LEAST).square()


class NoiseState(Prediction):
    """ε (Ho et al. 2020): x̂ = (z - σ ε̂)/α."""

    def clean(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return (z - sigma * out) / alpha.clamp_min(LEAST)

    def answer(self, clean: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (z - alpha * clean) / sigma.clamp_min(LEAST)

    def factor(self, alpha: Level, sigma: Level) -> Level:
        return (alpha / sigma.clamp_min(LEAST)).square()


class Score(Prediction):
    """∇ log p(z) (Song et al. 2021): x̂ = (z + σ² score)/α."""

    def clean(self, out: Tensor, z: State, alpha: Level, sigma: Level) -> State:
        return (z + sigma.square() * out) / alpha.clamp_min(LEAST)

    def answer(self, clean: State, z: State, alpha: Level, sigma: Level) -> Tensor:
        return (alpha * clean - z) / sigma.clamp_min(LEAST).square()

    def factor(self, alpha: Level, sigma: Level) -> Level:
        return (alpha / sigma.clamp_min(LEAST).square()).square()


STATES: dict[str, Prediction] = {
    "x0": CleanState(),
    "v": Velocity(),
    "eps": NoiseState(),
    "score": Score(),
}
"""Predictions that are states, by name; logits of tokens are the other way."""
