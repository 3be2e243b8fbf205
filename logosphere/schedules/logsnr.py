"""Schedules of Gaussian diffusion: the log-signal-to-noise ratio λ_t = log α_t² / σ_t², which falls from data to noise.

With α_t² + σ_t² = 1 everything follows from λ: α² = sigmoid(λ), σ² = sigmoid(-λ), SNR = e^λ. Adding a constant to λ is
what tan-d schedules (TEncDM: λ - 2 log d), LD4LG's `scale` (λ + 2 log scale) and time shifts do: `Shifted` covers all.

Everything here computes in float64: e^λ spans ten orders of magnitude, and bounds weigh errors by its slope.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError, suggest
from logosphere.types import Float

Number = Float[Tensor, "..."]

LARGEST_BETA = 0.999
"""β is clipped here, so that no step loses all signal (Nichol and Dhariwal 2021)."""


class LogSNR(nn.Module, ABC):
    """λ_t on [0, 1], falling; the ends may be infinite (no noise at all at 0, no signal at 1)."""

    @abstractmethod
    def logsnr(self, t: Number) -> Number:
        """λ_t."""

    @abstractmethod
    def slope(self, t: Number) -> Number:
        """-dλ/dt, which is positive."""

    @abstractmethod
    def time(self, logsnr: Number) -> Number:
        """The inverse: the time at which λ_t has this value."""

    def restricted_time(self, t: Number) -> Number:
        """The time of this schedule at time t of the schedule that it restricts; t if it restricts none."""
        return t

    def variance_loss(self, t: Float[Tensor, " B"], nats: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """A loss that trains the shape of a learned schedule to reduce the variance of the bound; 0 if it is fixed."""
        return torch.zeros_like(nats)


class Cosine(LogSNR):
    """α = cos(πt/2): λ = -2 log tan(πt/2) (Nichol and Dhariwal 2021, without their offset)."""

    def logsnr(self, t: Number) -> Number:
        half = math.pi / 2 * t.double()
        # cos(π/2 t) as a sine of 1 - t, which is exactly 0 at t = 1
        return 2 * (torch.sin(math.pi / 2 * (1 - t.double())).log() - half.sin().log())

    def slope(self, t: Number) -> Number:
        return 2 * math.pi / torch.sin(math.pi * t.double().minimum(1 - t.double())).clamp_min(0)

    def time(self, logsnr: Number) -> Number:
        return 2 / math.pi * torch.atan((-logsnr.double() / 2).exp())


class Sqrt(LogSNR):
    """α² = f(t)/f(0), f(t) = 1 - √((t + ε)/(1 + ε)), ε = 10⁻⁴ (Li et al. 2022, Diffusion-LM; f(1) made exactly 0)."""

    OFFSET = 1e-4

    def _f(self, t: Number) -> Number:
        # 1 - √r = (1 - r)/(1 + √r), which keeps its digits near t = 1
        root = ((t.double() + self.OFFSET) / (1 + self.OFFSET)).sqrt()
        return (1 - t.double()) / (1 + self.OFFSET) / (1 + root)

    def logsnr(self, t: Number) -> Number:
        start = self._f(torch.zeros((), dtype=torch.float64))
        f = self._f(t)
        return f.log() - (start - f).clamp_min(0).log()

    def slope(self, t: Number) -> Number:
        start, f = self._f(torch.zeros((), dtype=torch.float64)), self._f(t)
        falling = 0.5 / ((t.double() + self.OFFSET) * (1 + self.OFFSET)).sqrt()
        return falling * start / (f * (start - f))

    def time(self, logsnr: Number) -> Number:
        start = self._f(torch.zeros((), dtype=torch.float64))
        root = 1 - start * torch.sigmoid(logsnr.double())
        return ((1 + self.OFFSET) * root.square() - self.OFFSET).clamp(0, 1)


class LinearBeta(LogSNR):
    """α² = exp(-B), B = b₀ t + (b₁ - b₀) t²/2 + `offset` (Song et al. 2021, VP; LD4LG's beta_linear is 0, 20, 10⁻⁴)."""

    def __init__(self, first: float = 0.1, last: float = 20.0, offset: float = 0.0):
        super().__init__()
        if not 0 <= first < last or offset < 0:
            raise UserError("A linear-beta schedule needs rates 0 ≤ first < last and an offset that is not negative.")
        self.first, self.last, self.offset = first, last, offset

    def _integrated_beta(self, t: Number) -> Number:
        t = t.double()
        return self.offset + self.first * t + 0.5 * (self.last - self.first) * t.square()

    def logsnr(self, t: Number) -> Number:
        return -torch.expm1(self._integrated_beta(t)).log()

    def slope(self, t: Number) -> Number:
        return (self.first + (self.last - self.first) * t.double()) / -torch.expm1(-self._integrated_beta(t))

    def time(self, logsnr: Number) -> Number:
        spent = (F.softplus(-logsnr.double()) - self.offset).clamp_min(0)
        grows = self.last - self.first
        return ((self.first**2 + 2 * grows * spent).sqrt() - self.first) / grows


class Sigmoid(LogSNR):
    """α² = (σ(b) - σ(2bt - b)) / (σ(b) - σ(-b)) (Jabri et al. 2022; b = 3 in LD4LG)."""

    def __init__(self, bend: float = 3.0):
        super().__init__()
        if bend <= 0:
            raise UserError(f"The bend of a sigmoid schedule must be above 0, not {bend}.")
        self.bend = bend

    def _parts(self, t: Number) -> tuple[Number, Number]:
        """α² and σ², by tanh: σ(x) = (1 + tanh(x/2))/2; differences of tanh keep their digits at both ends."""
        b, t = self.bend / 2, t.double()
        # tanh b - tanh x = sinh(b - x) / (cosh b cosh x)
        scale = 2 * math.tanh(b) * math.cosh(b) * torch.cosh(b * (2 * t - 1))
        return torch.sinh(2 * b * (1 - t)) / scale, torch.sinh(2 * b * t) / scale

    def logsnr(self, t: Number) -> Number:
        signal, noise = self._parts(t)
        return signal.log() - noise.log()

    def slope(self, t: Number) -> Number:
        """2b (coth 2bt + coth 2b(1 - t)), with b halved as above."""
        b, t = self.bend, t.double()
        return b * (1 / torch.tanh(b * t) + 1 / torch.tanh(b * (1 - t)))

    def time(self, logsnr: Number) -> Number:
        b = self.bend / 2
        level = math.tanh(b) * (1 - 2 * torch.sigmoid(logsnr.double()))
        return 0.5 + torch.atanh(level) / (2 * b)


class Linear(LogSNR):
    """λ falls in a straight line from `highest` to `lowest`."""

    def __init__(self, highest: float, lowest: float):
        super().__init__()
        check_ends(highest, lowest)
        self.highest, self.lowest = highest, lowest

    def logsnr(self, t: Number) -> Number:
        return self.highest + (self.lowest - self.highest) * t.double()

    def slope(self, t: Number) -> Number:
        return torch.full_like(t.double(), self.highest - self.lowest)

    def time(self, logsnr: Number) -> Number:
        return (self.highest - logsnr.double()) / (self.highest - self.lowest)


class Shifted(LogSNR):
    """λ_t + shift."""

    def __init__(self, inner: LogSNR, shift: float):
        super().__init__()
        self.inner, self.shift = inner, shift

    def logsnr(self, t: Number) -> Number:
        return self.inner.logsnr(t) + self.shift

    def slope(self, t: Number) -> Number:
        return self.inner.slope(t)

    def time(self, logsnr: Number) -> Number:
        return self.inner.time(logsnr - self.shift)


class Restricted(LogSNR):
    """The part of a schedule between two values of λ, rescaled to [0, 1]; infinite ends become finite."""

    def __init__(self, inner: LogSNR, highest: float | None = None, lowest: float | None = None):
        super().__init__()
        ends = inner.logsnr(torch.tensor([0.0, 1.0])).tolist()
        high, low = ends[0] if highest is None else highest, ends[1] if lowest is None else lowest
        if not ends[1] <= low < high <= ends[0]:
            raise UserError(
                f"The log-SNR of this schedule runs from {ends[0]:.3g} to {ends[1]:.3g}; it cannot run from {high:.3g} "
                f"to {low:.3g}."
            )
        self.inner = inner
        self.first = float(inner.time(torch.tensor(high, dtype=torch.float64)))
        self.last = 1.0 if lowest is None else float(inner.time(torch.tensor(low, dtype=torch.float64)))

    def _inner_time(self, t: Number) -> Number:
        return self.first + (self.last - self.first) * t.double()

    def logsnr(self, t: Number) -> Number:
        return self.inner.logsnr(self._inner_time(t))

    def slope(self, t: Number) -> Number:
        return (self.last - self.first) * self.inner.slope(self._inner_time(t))

    def time(self, logsnr: Number) -> Number:
        return (self.inner.time(logsnr) - self.first) / (self.last - self.first)

    def restricted_time(self, t: Number) -> Number:
        return (self.inner.restricted_time(t) - self.first) / (self.last - self.first)


class Stepwise(LogSNR):
    """λ_k = log ᾱ_k/(1 - ᾱ_k), ᾱ_k = Π_{j ≤ k} (1 - β_j), at the times k/(T - 1), k = 0 … T - 1; linear in between.

    Time 0 is after the first step and time 1 after the last.
    """

    table: Tensor

    def __init__(self, betas: Float[Tensor, " T"]):
        super().__init__()
        kept = torch.log1p(-betas.double()).cumsum(0)
        self.register_buffer("table", kept - torch.log(-torch.expm1(kept)), persistent=False)
        self.steps = len(betas)

    def _bracket(self, t: Number) -> tuple[Tensor, Number]:
        """The step before a time, and the fraction of the interval before the time."""
        position = t.double().clamp(0, 1) * (self.steps - 1)
        before = position.long().clamp_max(self.steps - 2)
        return before, position - before

    def logsnr(self, t: Number) -> Number:
        before, fraction = self._bracket(t)
        return torch.lerp(self.table[before], self.table[before + 1], fraction)

    def slope(self, t: Number) -> Number:
        before, _ = self._bracket(t)
        return (self.table[before] - self.table[before + 1]) * (self.steps - 1)

    def time(self, logsnr: Number) -> Number:
        rising, target = -self.table, -logsnr.double().contiguous()
        after = torch.searchsorted(rising, target).clamp(1, self.steps - 1)
        fraction = (target - rising[after - 1]) / (rising[after] - rising[after - 1])
        return ((after - 1 + fraction) / (self.steps - 1)).clamp(0, 1)


SCHEDULES: dict[str, LogSNR] = {
    "cosine": Cosine(),
    "sqrt": Sqrt(),
    "linear-beta": LinearBeta(),
    "sigmoid": Sigmoid(),
}


def find_logsnr(name: str, *, shift: float = 0.0, highest: float | None = None, lowest: float | None = None) -> LogSNR:
    """The schedule of a name; `linear` (in λ) needs both ends."""
    if name == "linear":
        if highest is None or lowest is None:
            raise UserError("The linear schedule needs the highest and the lowest log-SNR.")
        return Linear(highest + shift, lowest + shift)
    if name not in SCHEDULES:
        raise UserError(f"There is no log-SNR schedule '{name}'.{suggest(name, [*SCHEDULES, 'linear'])}")
    found = SCHEDULES[name] if shift == 0 else Shifted(SCHEDULES[name], shift)
    return found if highest is None and lowest is None else Restricted(found, highest, lowest)


def sqrt_steps(steps: int) -> Stepwise:
    """β_k = min(1 - f((k + 1)/T)/f(k/T), 0.999), f(t) = 1 - √(t + 10⁻⁴) (Li et al. 2022, Diffusion-LM; T = 2000)."""
    if steps < 2:
        raise UserError(f"A schedule needs at least 2 steps, not {steps}.")
    remaining = 1 - (torch.arange(steps + 1, dtype=torch.float64) / steps + Sqrt.OFFSET).sqrt()
    return Stepwise((1 - remaining[1:] / remaining[:-1]).clamp_max(LARGEST_BETA))


def check_ends(highest: float, lowest: float) -> None:
    """Raise UserError unless the log-SNR falls between finite ends, as learned and linear schedules need."""
    if not (math.isfinite(highest) and math.isfinite(lowest) and highest > lowest):
        raise UserError(f"The log-SNR must fall between two finite ends, not from {highest} to {lowest}.")
