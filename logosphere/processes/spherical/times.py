"""Times on the sphere: the noise schedules of RDLM, and positions with times of their own.

The noise schedules (Jo and Hwang 2025) are the rate β of the noise in the paper's own time τ from 0 to 1:

    geometric   β = β₀^(1-τ) β₁^τ
    linear      β = β₀ + (β₁ - β₀) τ
    cosine      β = β₀ + (β₁ - β₀) sin(πτ/2)

with β₀ = 10⁻³ and β₁ = 0.2. The time of a bridge is the fraction of the noise spent, s = ∫₀^τ β / ∫₀¹ β. Here τ is
given as t = 1 - τ, so that 1 - s keeps its digits near the data, where drifts grow like 1/(1 - s).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.rng import Noise
from logosphere.types import Float, Int64, Positions

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


# ---- times of single positions ------------------------------------------------------------------------------------

Order = Literal["random", "left-to-right"]


def order_positions(
    free: Positions, order: Order, noise: Noise, states_per_token: int = 1, blocks: int = 1
) -> Int64[Tensor, "B M"]:
    """The rank of each free position within its block, from 0, drawn for each sequence; others have larger ranks.

    The states of one token (`states_per_token` of them) have the same rank.
    """
    free = free[:, ::states_per_token]
    place = torch.arange(free.shape[1], device=free.device).double().expand(free.shape)
    key = noise.uniform(*free.shape) if order == "random" else place
    rank = torch.where(free, key, torch.inf).unflatten(1, (blocks, -1)).argsort(2).argsort(2)
    return rank.flatten(1).repeat_interleave(states_per_token, 1)


@dataclass(frozen=True)
class RollingOffsets:
    """Times that differ between positions: each starts to move at its own time, and all move equally fast.

    With offsets δ_i from 0 (the first) to 1 (the last) and `spread` σ, the fraction of the whole time over which the
    positions start, position i has covered the fraction

        q_i(τ) = (τ - σ δ_i) / (1 - σ),  clipped to [0, 1],

    of its path at the time τ of the sampler. With σ = 0 all positions move jointly, as in the papers. As σ goes to 1
    one position moves at a time, while all others are clean or at the start: masked diffusion in the same order.
    Offsets do not depend on the data, so that there is a bound for each of them, and their mean bounds the mixture
    (Jensen):

        -log p(x) = -log E_δ p_δ(x) ≤ E_δ[NELBO_δ(x)]

    From left to right the window of moving positions slides over the text (Ruhe et al. 2024, rolling diffusion). With
    `blocks`, which follow one another, offsets are those within a block.
    """

    spread: float
    order: Order = "random"
    states_per_token: int = 1
    blocks: int = 1

    def offsets(self, free: Positions, noise: Noise) -> Float[Tensor, "B M"]:
        """δ: the ranks of the free positions, drawn for each sequence, evenly over [0, 1]."""
        count = free.unflatten(1, (self.blocks, -1)).sum(2) // self.states_per_token
        count = count.repeat_interleave(free.shape[1] // self.blocks, 1)
        rank = order_positions(free, self.order, noise, self.states_per_token, self.blocks)
        return (rank / (count - 1).clamp_min(1)).clamp_max(1).double()

    def covered(self, tau: Float[Tensor, "..."], offsets: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """q before clipping: below 0 a position waits, from 1 on it is clean."""
        return (tau - self.spread * offsets) / (1 - self.spread)


@dataclass(frozen=True)
class AnyOrder:
    """One position after another, the limit of rolling offsets in closed form.

    A position moves from the start to its vertex while all others stay at the start or at their vertices. Let p be the
    prediction of its token from them. The mixture of bridges is simulated by drawing k from p and then the bridge to
    k, and so a path X costs, with the token decoded at its end,

        log dP(X | x) / dΣ_k p_k P(X | k) - log p(x | X)  =  -log p(x),        p(x | X) ∝ p_x P(X | x)

    for every bridge, every noise and every X: the evidence cancels. Nothing is simulated, neither for the bound nor for
    samples, and one evaluation gives the cost of all positions that may be next. With n positions in random order
    (Uria et al. 2014),

        -log p(x) ≤ Σ_i E[-log p(x_i | those before it)] = E_l[(n/l) Σ_{l waiting} -log p(x_i | the n - l others)]

    This is the bound of masked diffusion with starts in place of masks. The sphere then shapes the training of the
    network, but not its evaluation. From left to right only the next of the waiting positions counts, n times.
    The states of one token (`states_per_token` of them) move at the same time. With `blocks`, which follow one
    another, n is the number of positions of a block.
    """

    order: Order = "random"
    states_per_token: int = 1
    blocks: int = 1

    def share(self, fraction: float | str, progress: float) -> float:
        """The fraction of training sequences with such states after the part `progress`; rising: min(1, 2 progress)."""
        return min(1.0, 2 * progress) if isinstance(fraction, str) else fraction

    def waiting(self, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> tuple[Positions, Float[Tensor, "B M"]]:
        """The positions still at the start after the fraction w of the n moves, and the weight of each of them."""
        rank = order_positions(free, self.order, noise, self.states_per_token, self.blocks)
        count = self._count(free)
        done = (w.repeat_interleave(free.shape[1] // w.shape[1], 1) * count).floor().long().minimum(count - 1)
        weights = count / (count - done) if self.order == "random" else count * (rank == done)
        return free & (rank >= done), weights.expand(free.shape).float()

    def position_times(self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise) -> Float[Tensor, "S B M"]:
        """1 before a position has moved and 0 after it; the moves are spread evenly over the time of the sampler."""
        # Times are rounded: the small number keeps 7 moves from becoming 6.
        moves = (1 - rows[:, None].double()) * self._count(free) + 1e-4
        rank = order_positions(free, self.order, noise, self.states_per_token, self.blocks)
        return (rank >= moves.floor()).float()

    def _count(self, free: Positions) -> Int64[Tensor, "B M"]:
        """The number of tokens that move in the block of each position, at least 1."""
        count = free.unflatten(1, (self.blocks, -1)).sum(2) // self.states_per_token
        return count.clamp_min(1).repeat_interleave(free.shape[1] // self.blocks, 1)


def interval_lengths(times: Tensor, *, chain: bool) -> Float[Tensor, " N"]:
    """The weight of each tabulated time: the step to the next one, or half of the steps to both neighbours."""
    steps = times.diff()
    after = F.pad(steps, (0, 1))
    return after if chain else (after + F.pad(steps, (1, 0))) / 2
