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

from logosphere.shapes import Float

FIRST_RATE, LAST_RATE = 1e-3, 0.2
"""β₀ and β₁."""
SCHEDULES = ("geometric", "linear", "cosine")
RDLM_FLOOR = 1e-4
"""RDLM's weight of times outside of its window."""


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


def rdlm_time(schedule: str, s: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """RDLM's own time t, at which the fraction s = ∫₀ᵗ β / ∫₀¹ β of the noise is spent."""
    if schedule == "geometric":
        low, high = FIRST_RATE, LAST_RATE
        return torch.log1p((high / low - 1) * s) / math.log(high / low)
    t = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    spent = 1 - noise_left(schedule, 1 - t)
    right = torch.searchsorted(spent, s.double().contiguous()).clamp(1, len(t) - 1)
    fraction = (s - spent[right - 1]) / (spent[right] - spent[right - 1])
    return torch.lerp(t[right - 1], t[right], fraction)


def rdlm_time_density(schedule: str, times: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """The probability of each tabulated time when RDLM's time is uniform, up to the last of them."""
    middle = (times[1:] + times[:-1]) / 2
    edges = rdlm_time(schedule, torch.cat([times[:1], middle, times[-1:]]).double())
    return edges.diff() / edges[-1]


def rdlm_importance_density(
    schedule: str, times: Float[Tensor, " T"], left: float, right: float
) -> Float[Tensor, " T"]:
    """RDLM's importance sampling: weight 1 for left < t < right, 10⁻⁴ elsewhere."""
    t = rdlm_time(schedule, times.double())
    weights = rdlm_time_density(schedule, times) * torch.where((t > left) & (t < right), 1.0, RDLM_FLOOR)
    return weights / weights.sum()
