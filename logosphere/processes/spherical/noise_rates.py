"""RDLM's noise schedules (Jo and Hwang 2025): the rate β of the noise in the paper's own time τ from 0 to 1.

    geometric   β = β₀^(1-τ) β₁^τ
    linear      β = β₀ + (β₁ - β₀) τ
    cosine      β = β₀ + (β₁ - β₀) sin(πτ/2)

with β₀ = 10⁻³ and β₁ = 0.2. The time of a bridge is the fraction of the noise spent, s = ∫₀^τ β / ∫₀¹ β. Here τ is
given as t = 1 - τ, so that 1 - s keeps its digits near the data, where drifts grow like 1/(1 - s).
"""

import math

import torch
from torch import Tensor

from logosphere.types import Float

FIRST_RATE, LAST_RATE = 1e-3, 0.2
"""β₀ and β₁."""
SCHEDULES = ("geometric", "linear", "cosine")


def noise_left(schedule: str, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 - s: the fraction of the noise that is left at τ = 1 - t."""
    low, rise = FIRST_RATE, LAST_RATE - FIRST_RATE
    match schedule:
        case "geometric":
            ratio = LAST_RATE / FIRST_RATE
            return -ratio / (ratio - 1) * torch.expm1(-t * math.log(ratio))
        case "linear":
            return t * (low + rise * (1 - t / 2)) / (low + rise / 2)
        case _:
            bend = 2 / math.pi
            return (low * t + rise * bend * torch.sin(math.pi / 2 * t)) / (low + rise * bend)


def noise_rate(schedule: str, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """ds/dτ = β / ∫₀¹ β at τ = 1 - t."""
    low, rise = FIRST_RATE, LAST_RATE - FIRST_RATE
    match schedule:
        case "geometric":
            ratio = LAST_RATE / FIRST_RATE
            return math.log(ratio) * ratio / (ratio - 1) * torch.exp(-t * math.log(ratio))
        case "linear":
            return (low + rise * (1 - t)) / (low + rise / 2)
        case _:
            return (low + rise * torch.cos(math.pi / 2 * t)) / (low + rise * 2 / math.pi)
