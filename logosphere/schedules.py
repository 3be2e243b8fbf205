"""How much of the signal is left at time t: monotone maps with derivative and inverse.

Every schedule has exact ends, signal(0) = 1 and signal(1) = 0, so that no bound has to forget a term there.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError, nearest
from logosphere.shapes import Float

Number = Float[Tensor, "..."]


class Schedule(ABC):
    """The signal level a_t, which falls from 1 to 0."""

    @property
    @abstractmethod
    def warp(self) -> float:
        """Times drawn as w^warp with w uniform have noise levels that fall like w² or faster near 0.

        Bounds in continuous time grow like 1/noise there, and this is what keeps their variance finite.
        """

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
    def warp(self) -> float:
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
    def warp(self) -> float:
        return 1.0

    def signal(self, t: Number) -> Number:
        return torch.sin(math.pi / 2 * (1 - t))  # exactly 0 at t = 1, which the cosine of a rounded π/2 is not

    def noise(self, t: Number) -> Number:
        # Each form is exact at its own end.
        return torch.where(t < 0.5, 2 * torch.sin(math.pi / 4 * t) ** 2, 1 - self.signal(t))

    def slope(self, t: Number) -> Number:
        return math.pi / 2 * torch.sin(math.pi / 2 * t)

    def time(self, noise: Number) -> Number:
        return 4 / math.pi * torch.asin((noise / 2).sqrt())


SCHEDULES: dict[str, Schedule] = {
    "linear": Polynomial(1.0),
    "quadratic": Polynomial(2.0),
    "cosine": Cosine(),
}


def schedule(name: str) -> Schedule:
    """A schedule by its name, for recipes."""
    if name not in SCHEDULES:
        raise UserError(f"There is no schedule '{name}'.{nearest(name, SCHEDULES)}")
    return SCHEDULES[name]
