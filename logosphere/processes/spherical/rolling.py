"""Clocks that differ between positions: each sets out at its own time, and all run equally fast.

With offsets δ_i from 0 (the first) to 1 (the last) and a share σ of the whole time by which they are spread, position i
has covered the share

    q_i(τ) = (τ - σ δ_i) / (1 - σ),  cut at 0 and 1,

of its way when the common clock shows τ. With σ = 0 all move together, as in the papers. As σ goes to 1 one position
moves at a time, between neighbours that are clean or untouched: masked diffusion in the same order. Offsets do not
depend on the data, so that for each of them there is a bound, and their mean bounds the mixture (Jensen):

    -log p(x) = -log E_δ p_δ(x) ≤ E_δ[NELBO_δ(x)]

From left to right the window of moving positions slides over the text (Ruhe et al. 2024, rolling diffusion).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from logosphere.rng import Noise
from logosphere.types import Float, Int64, Positions

Order = Literal["random", "left-to-right"]


@dataclass(frozen=True)
class RollingOffsets:
    """How positions set out; states that spell one token (`together` of them) do so at once."""

    spread: float
    """σ"""
    order: Order = "random"
    together: int = 1

    def offsets(self, free: Positions, noise: Noise) -> Float[Tensor, "B M"]:
        """δ: the ranks of the free positions, new for each sequence, evenly over [0, 1]."""
        count = free.sum(1, keepdim=True) // self.together
        return (ranks(free, self.order, noise, self.together) / (count - 1).clamp_min(1)).clamp_max(1).double()

    def covered(self, tau: Float[Tensor, "..."], offsets: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """q, not cut: below 0 a position waits, from 1 on it is done."""
        return (tau - self.spread * offsets) / (1 - self.spread)


def ranks(free: Positions, order: Order, noise: Noise, together: int = 1) -> Int64[Tensor, "B M"]:
    """The place of each free position in the order, from 0, new for each sequence; others come after all of these.

    States that spell one token (`together` of them) have one place.
    """
    free = free[:, ::together]
    place = torch.arange(free.shape[1], device=free.device).double().expand(free.shape)
    wish = noise.uniform(*free.shape) if order == "random" else place
    return torch.where(free, wish, torch.inf).argsort(1).argsort(1).repeat_interleave(together, 1)
