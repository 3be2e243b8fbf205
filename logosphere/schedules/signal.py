"""Schedules of discrete processes: the signal level a_t, a monotone function of time with derivative and inverse.

Every schedule has a_0 = 1 exactly. Most are continuous there and end at a_1 = 0. The noise that others start with
(`start`) is counted by a reconstruction term, and the signal that they leave at t = 1 by a prior term, so that bounds
stay bounds.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from logosphere.errors import UserError, suggest
from logosphere.types import Float

Number = Float[Tensor, "..."]


class Schedule(ABC):
    """The signal level a_t, which falls from 1 to 0."""

    @property
    def start(self) -> float:
        """The noise right after t = 0: 0 for continuous schedules."""
        return 0.0

    @property
    @abstractmethod
    def time_power(self) -> float:
        """Times drawn as w^time_power with w uniform have noise levels that fall like w² or faster near 0.

        The integrand of a bound in continuous time grows like 1/noise there, and this keeps its variance finite.
        """

    def times_at(self, w: Number) -> tuple[Number, Number]:
        """Times for quantiles w, and dt/dw."""
        return w**self.time_power, self.time_power * w ** (self.time_power - 1)

    def signal(self, t: Number) -> Number:
        """a_t."""
        return 1 - self.noise(t)

    @abstractmethod
    def noise(self, t: Number) -> Number:
        """1 - a_t, without cancellation near t = 0."""

    @abstractmethod
    def slope(self, t: Number) -> Number:
        """-da/dt, which is not negative."""

    @abstractmethod
    def time(self, noise: Number) -> Number:
        """The inverse: the time at which 1 - a_t = noise."""


@dataclass(frozen=True)
class Polynomial(Schedule):
    """a_t = 1 - t^p; p = 1 is the linear schedule (MDLM's log-linear one with its cut-off taken to 0)."""

    power: float = 1.0

    def __post_init__(self) -> None:
        if self.power <= 0:
            raise UserError(f"The power of a polynomial schedule must be positive, not {self.power}.")

    @property
    def time_power(self) -> float:
        return max(1.0, 2 / self.power)

    def noise(self, t: Number) -> Number:
        return t**self.power

    def slope(self, t: Number) -> Number:
        return self.power * t ** (self.power - 1)

    def time(self, noise: Number) -> Number:
        return noise ** (1 / self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """a_t = cos(π t / 2) (D3PM, appendix A.3, with its offset taken to 0)."""

    @property
    def time_power(self) -> float:
        return 1.0

    def signal(self, t: Number) -> Number:
        return torch.sin(math.pi / 2 * (1 - t))  # exactly 0 at t = 1, which the cosine of a rounded π/2 is not

    def noise(self, t: Number) -> Number:
        # Each form is exact at its own end.
        return torch.where(t < 0.5, 2 * torch.sin(math.pi / 4 * t) ** 2, 1 - self.signal(t))

    def slope(self, t: Number) -> Number:
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def time(self, noise: Number) -> Number:
        return (4 / math.pi * torch.asin((noise / 2).sqrt())).clamp_max(1.0)


@dataclass(frozen=True)
class SineNoise(Schedule):
    """a_t = 1 - cos(π (1 - t)/2), that is noise sin(π t/2): the schedule that MD4 calls cosine (Shi et al. 2024)."""

    @property
    def time_power(self) -> float:
        return 2.0

    def signal(self, t: Number) -> Number:
        # Each form is exact at its own end.
        return torch.where(t < 0.5, 1 - self.noise(t), 2 * torch.sin(math.pi / 4 * (1 - t)) ** 2)

    def noise(self, t: Number) -> Number:
        return torch.sin(math.pi / 2 * t)

    def slope(self, t: Number) -> Number:
        return math.pi / 2 * torch.sin(math.pi / 2 * (1 - t))

    def time(self, noise: Number) -> Number:
        return 2 / math.pi * torch.asin(noise.clamp_max(1.0))


@dataclass(frozen=True)
class Squeezed(Schedule):
    """a_t = (1 - 2ε) a + ε of another schedule, with a jump at t = 0 (Shi et al. 2024, MD4: ε = 1e-4)."""

    inner: Schedule
    eps: float

    def __post_init__(self) -> None:
        if not 0 < self.eps < 0.5:
            raise UserError(f"eps, the noise at the start and the signal at the end, must be 0 to 0.5, not {self.eps}.")

    @property
    def start(self) -> float:
        return self.eps

    @property
    def time_power(self) -> float:
        return self.inner.time_power

    def noise(self, t: Number) -> Number:
        return torch.where(t > 0, self.eps + (1 - 2 * self.eps) * self.inner.noise(t), 0.0)

    def slope(self, t: Number) -> Number:
        return (1 - 2 * self.eps) * self.inner.slope(t)

    def time(self, noise: Number) -> Number:
        return self.inner.time(((noise - self.eps) / (1 - 2 * self.eps)).clamp(0, 1))


@dataclass(frozen=True)
class Truncated(Schedule):
    """A schedule that ends at a_1 = `final` rather than 0; with the linear one this is the log-linear schedule.

    σ = -log(1 - (1 - ε) t) in SEDD and MDLM, with ε = 1e-3. The signal at the end is counted by a prior term.
    """

    inner: Schedule
    final: float

    def __post_init__(self) -> None:
        if not 0 <= self.final < 1:
            raise UserError(f"The final signal must be at least 0 and below 1, not {self.final}.")

    @property
    def time_power(self) -> float:
        return self.inner.time_power

    def noise(self, t: Number) -> Number:
        return (1 - self.final) * self.inner.noise(t)

    def slope(self, t: Number) -> Number:
        return (1 - self.final) * self.inner.slope(t)

    def time(self, noise: Number) -> Number:
        return self.inner.time(noise / (1 - self.final))


RAMP = 0.01
"""The fraction of time in which a geometric schedule rises from no noise to its lowest level."""


@dataclass(frozen=True)
class Geometric(Schedule):
    """a_t = exp(-σ_t) with σ from `low` to `high` in equal ratios (Lou et al. 2024, SEDD).

    The paper starts at a_0 = exp(-low) < 1, which is ramp=0. By default a short ramp leads there from 1, so that the
    first tokens lost are counted by the integral; the signal exp(-high) at the end is counted by a prior term.
    """

    low: float = 1e-4
    high: float = 20.0
    ramp: float = RAMP

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise UserError(f"A geometric schedule needs 0 < low < high, not {self.low} and {self.high}.")
        if not 0 <= self.ramp < 1:
            raise UserError(f"The ramp of a geometric schedule is a fraction of the time below 1, not {self.ramp}.")

    @property
    def start(self) -> float:
        return 0.0 if self.ramp else -math.expm1(-self.low)

    @property
    def time_power(self) -> float:
        return 2.0

    def times_at(self, w: Number) -> tuple[Number, Number]:
        """Times at which the noise is w² of its final value: for most of the time this schedule has almost no noise."""
        span = -math.expm1(-self.high) - self.start
        t = self.time(self.start + span * w**2)
        return t, span * 2 * w / self.slope(t)

    def _sigma(self, t: Number) -> Number:
        return self.low * (self.high / self.low) ** ((t - self.ramp).clamp_min(0) / (1 - self.ramp))

    def noise(self, t: Number) -> Number:
        later = -torch.expm1(-self._sigma(t))
        if not self.ramp:
            return torch.where(t > 0, later, 0.0)
        return torch.where(t < self.ramp, -math.expm1(-self.low) * t / self.ramp, later)

    def slope(self, t: Number) -> Number:
        sigma = self._sigma(t)
        later = math.log(self.high / self.low) / (1 - self.ramp) * sigma * torch.exp(-sigma)
        return later if not self.ramp else torch.where(t < self.ramp, -math.expm1(-self.low) / self.ramp, later)

    def signal(self, t: Number) -> Number:
        return torch.where(t < self.ramp if self.ramp else t <= 0, 1 - self.noise(t), torch.exp(-self._sigma(t)))

    def time(self, noise: Number) -> Number:
        first = -math.expm1(-self.low)
        sigma = -torch.log1p(-noise.clamp(first, 1 - math.exp(-self.high)))
        later = self.ramp + (1 - self.ramp) * torch.log(sigma / self.low) / math.log(self.high / self.low)
        return torch.where(noise < first, noise / first * self.ramp, later.clamp_max(1.0))


@dataclass(frozen=True)
class Tabulated(Schedule):
    """Signal levels at the times k/T, k = 0 … T, and straight lines between them."""

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        falls = all(later <= earlier for earlier, later in pairwise(self.levels))
        if len(self.levels) < 2 or self.levels[0] != 1 or self.levels[-1] < 0 or not falls:
            raise UserError("A table of signal levels must begin at 1 and fall monotonically, never below 0.")

    @property
    def time_power(self) -> float:
        return 2.0

    def _table(self, like: Number) -> Float[Tensor, " n"]:
        """Noise levels, copied to each device once: a copy in every step would synchronise it."""
        tables: dict[torch.device, Tensor] = self.__dict__.setdefault("_tables", {})
        if like.device not in tables:
            tables[like.device] = 1 - torch.tensor(self.levels, dtype=torch.float64, device=like.device)
        return tables[like.device]

    def _bracket(self, t: Number) -> tuple[Number, Number, Number]:
        """Noise at both ends of the interval that holds t, and the fraction of the interval before t."""
        table, steps = self._table(t), len(self.levels) - 1
        left = (t.double() * steps).floor().long().clamp(0, steps - 1)
        return table[left], table[left + 1], t.double() * steps - left

    def noise(self, t: Number) -> Number:
        left, right, fraction = self._bracket(t)
        return torch.lerp(left, right, fraction).to(t.dtype)

    def signal(self, t: Number) -> Number:
        return (1 - self.noise(t.double())).to(t.dtype)

    def slope(self, t: Number) -> Number:
        left, right, _ = self._bracket(t)
        return ((right - left) * (len(self.levels) - 1)).to(t.dtype)

    def time(self, noise: Number) -> Number:
        table, steps = self._table(noise), len(self.levels) - 1
        right = torch.searchsorted(table, noise.double().contiguous()).clamp(1, steps)
        fraction = (noise - table[right - 1]) / (table[right] - table[right - 1]).clamp_min(1e-300)
        return ((right - 1 + fraction.clamp(0, 1)) / steps).to(noise.dtype)


def from_betas(betas: Sequence[float]) -> Tabulated:
    """The schedule of a chain of T = len(betas) steps that replace a token with probability β (D3PM)."""
    if not betas or not all(0 <= beta <= 1 for beta in betas):
        raise UserError("Every β of a schedule must lie between 0 and 1, otherwise its signal is not monotone.")
    levels = [1.0]
    for beta in betas:
        levels.append(levels[-1] * (1 - beta))
    return Tabulated(tuple(levels))


def cosine_betas(steps: int, largest: float = 0.999) -> list[float]:
    """β_t of cos((t/T + s)/(1 + s) · π/2), s = 0.008, at most `largest`.

    D3PM clips β at 0.999. Multinomial Diffusion keeps at least 0.001 of the squared cosine in a step and then takes the
    root, so that its last β is 1 - √0.001 = 0.968.
    """

    def level(step: int) -> float:
        return math.cos((step / steps + 0.008) / 1.008 * math.pi / 2)

    return [min(largest, 1 - level(step) / level(step - 1)) for step in range(1, steps + 1)]


def mutual_information(p: Sequence[float], points: int = 1000) -> Tabulated:
    """Signal levels at which uniform noise leaves 1 - t of the information on the token (D3PM, appendix A.4).

    I(z_t; x) = H(z_t) - Σ_x p(x) H(z_t | x) for tokens of frequencies p; found by bisection at `points` times. With
    masks I = a_t H(x), so that the same rule is the linear schedule.
    """
    if len(p) < 2 or min(p) < 0 or not 0.999 < sum(p) < 1.001 or max(p) >= 1:
        raise UserError("The frequencies of a mutual-information schedule must be probabilities of several tokens.")
    probabilities = torch.tensor(p, dtype=torch.float64)

    def information(a: Tensor) -> Tensor:
        u = (1 - a) / len(p)
        marginal = torch.special.entr(a[:, None] * probabilities + u[:, None]).sum(1)
        return marginal - torch.special.entr(a + u) - (len(p) - 1) * torch.special.entr(u)

    target = torch.linspace(1, 0, points + 1).double()[1:-1] * torch.special.entr(probabilities).sum()
    low, high = torch.zeros_like(target), torch.ones_like(target)
    for _ in range(60):
        middle = (low + high) / 2
        enough = information(middle) > target
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return Tabulated((1.0, *((low + high) / 2).tolist(), 0.0))


SCHEDULES: dict[str, Schedule] = {
    "linear": Polynomial(1.0),
    "quadratic": Polynomial(2.0),
    "cosine": Cosine(),
    "md4-cosine": SineNoise(),
    "log-linear": Truncated(Polynomial(1.0), 1e-3),
    "geometric": Geometric(),
}
NAMES = [*SCHEDULES, "polynomial:2", "log-linear:0.001", "geometric:0.0001,20", "geometric:0.0001,20,0"]


def find_schedule(name: str | Sequence[float]) -> Schedule:
    """The schedule of a name, with parameters after a colon; a list of numbers holds the β of the steps of a chain."""
    if not isinstance(name, str):
        return from_betas(name)
    if name in SCHEDULES:
        return SCHEDULES[name]
    family, _, numbers = name.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if family == "polynomial" and len(values) == 1:
        return Polynomial(values[0])
    if family == "log-linear" and len(values) == 1:
        return Truncated(Polynomial(1.0), values[0])
    if family == "geometric" and len(values) in (2, 3):
        return Geometric(*values)
    raise UserError(f"There is no schedule '{name}'.{suggest(name, NAMES)}")
