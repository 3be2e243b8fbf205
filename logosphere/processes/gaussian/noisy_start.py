"""Where a Gaussian path begins: at the clean state e, or at x_0 ~ N(e, s₀² I) (Li et al. 2022, Diffusion-LM).

In the second case z_t = α_t x_0 + σ_t ε, the network predicts x_0, and tokens are read off x_0 by p(x | x_0). The bound
for x_0 instead of e, and q(x_0 | e) against p(x_0 | z_first) = N(x̂, s² I), give

    -log p(x) ≤ E[-log p(x | x_0) + |x_0 - x̂(z_first)|²/2s² + (d/2)(log s²/s₀² - 1)] + diffusion and prior of x_0

for every s. Here s² = s₀² σ²/(σ² + α² s₀²) at the first time, the variance of x_0 given z_first and e; s₀ = σ_first.
States of training are pairs [e, x_0], because the first step of Diffusion-LM is trained to predict e.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.rng import Noise
from logosphere.types import Bool, Float, State


@dataclass(frozen=True)
class NoisyStart:
    """x_0 ~ N(e, `deviation`²) in `width` coordinates, where the path begins with α_first² = 1 - `deviation`²."""

    deviation: float
    width: int

    @property
    def variance(self) -> float:
        """s₀²."""
        return self.deviation**2

    @property
    def last_variance(self) -> float:
        """s²."""
        return self.variance / (2 - self.variance)

    def pair(self, row: State, where: Bool[Tensor, "..."], noise: Noise) -> State:
        """[e, x_0], the same state twice where there is no noise."""
        return torch.cat([row, self.blurred(row, where, noise)], -1)

    def blurred(self, row: State, where: Bool[Tensor, "..."], noise: Noise) -> State:
        """x_0."""
        return row + torch.where(where[..., None], self.deviation, 0.0) * noise.normal(*row.shape)

    def row(self, u: State) -> State:
        """e, of a pair or of itself."""
        return u[..., : self.width]

    def beginning(self, u: State) -> State:
        """x_0 of a pair; a row is its own beginning."""
        return u[..., -self.width :]

    def first_step_nll(self, error: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """E[log q(x_0 | e)] - log p(x_0 | z_first), given |x_0 - x̂|²."""
        return error / (2 * self.last_variance) + self.width / 2 * (math.log(self.last_variance / self.variance) - 1)

    def drawn(self, clean: State, noise: Noise) -> State:
        """x_0 ~ p(x_0 | z_first)."""
        return clean + math.sqrt(self.last_variance) * noise.normal(*clean.shape)

    def expected(self, row: State, z: State, alpha: Tensor, sigma: Tensor) -> State:
        """E[x_0 | z, e] = e + α s₀²/(σ² + α² s₀²) (z - α e); e itself where there is no noise."""
        gain = alpha * self.variance / (sigma.square() + alpha.square() * self.variance)
        return torch.where(sigma > 0, row + gain * (z - alpha * row), row)
