"""Schedules that learn their shape and their ends (Gulrajani and Hashimoto 2023; Kingma et al. 2021, VDM, section 5).

The bound depends on the ends of a schedule and not on its shape; the shape determines the variance of its estimate. So
the ends follow the gradient of the bound, and the shape that of E[nats²].
"""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.schedules.logsnr import LogSNR, Number, check_ends
from logosphere.types import Float

UNITS = 32
MAX_VALUES = 1 << 24
"""Hidden values (times · units) computed at once without a search for equal times: 128 MiB of float64."""
PUBLISHED_UNITS, OUTPUT_SCALE = 1024, 0.01
"""Hidden units of Plaid's schedule, and the factor of their weights."""


class Monotone(LogSNR):
    """λ_t = λ_0 - (λ_0 - λ_1) m(t), where m rises from 0 to 1: a rising function, rescaled."""

    def __init__(self, highest: float, lowest: float):
        super().__init__()
        check_ends(highest, lowest)
        self.ends = nn.Parameter(torch.tensor([highest, lowest]))

    @property
    @abstractmethod
    def units(self) -> int:
        """The number of hidden units, each of which is computed for each time."""

    @abstractmethod
    def _raw(self, t: Number) -> tuple[Number, Number, Number]:
        """The unscaled shape and its first two derivatives."""

    def shape(self, t: Number) -> tuple[Number, Number, Number]:
        """m, m' and m''; a batch has few different times, and each is computed once.

        Finding them stops a device, which computes all times instead, unless this would take much memory.
        """
        (start, end), _, _ = self._raw(torch.arange(2, dtype=torch.float64, device=t.device))
        length = end - start
        if t.device.type != "cpu" and t.numel() * self.units <= MAX_VALUES:
            value, first, second = self._raw(t.detach().double())
            return (value - start) / length, first / length, second / length
        unique, index = t.detach().double().unique(return_inverse=True)
        value, first, second = self._raw(unique)
        return ((value - start) / length)[index], (first / length)[index], (second / length)[index]

    def logsnr(self, t: Number) -> Number:
        fraction = self.shape(t)[0].detach()
        highest, lowest = self.ends.double()
        return highest + (lowest - highest) * fraction

    def slope(self, t: Number) -> Number:
        return (self.ends[0] - self.ends[1]) * self.shape(t)[1].detach()

    def time(self, logsnr: Number) -> Number:
        """By bisection: m rises."""
        with torch.no_grad():
            fraction = (self.ends[0] - logsnr.double()) / (self.ends[0] - self.ends[1])
            low, high = torch.zeros_like(fraction), torch.ones_like(fraction)
            for _ in range(52):
                middle = (low + high) / 2
                above = self.shape(middle)[0] > fraction
                low, high = torch.where(above, low, middle), torch.where(above, middle, high)
            return (low + high) / 2

    def variance_loss(self, t: Float[Tensor, " B"], nats: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """A loss whose gradient is that of E[nats²], times spread evenly (Plaid's, integrated by parts).

        With f(λ) the nats per unit of λ, E[nats²] = ∫ f² |λ'|² dt = ∫ f² |λ'| dλ. At a fixed λ the variation of |λ'| is
        δm' - (m''/m') δm, so that no gradient has to pass through f, that is through the network:

            δ E[nats²] = E[nats² δ{log m' - [m''/m'²] m}],    the bracket held fixed
        """
        value, first, second = self.shape(t)
        return nats.detach().square() * (first.log() - (second / first.square()).detach() * value)


class LearnedTanh(Monotone):
    """m(t) ∝ t + Σ_j s_j tanh k_j (t - c_j) with s_j, k_j > 0; almost linear at initialisation."""

    def __init__(self, highest: float, lowest: float):
        super().__init__(highest, lowest)
        self.heights = nn.Parameter(torch.full((UNITS,), -4.0))
        self.rates = nn.Parameter(torch.full((UNITS,), 8.0))
        self.centres = nn.Parameter((torch.arange(UNITS) + 0.5) / UNITS)

    @property
    def units(self) -> int:
        return UNITS

    def _raw(self, t: Number) -> tuple[Number, Number, Number]:
        height, rate = F.softplus(self.heights.double()), F.softplus(self.rates.double())
        wave = torch.tanh(rate * (t[..., None] - self.centres.double()))
        rise = 1 - wave.square()
        value = t + (height * wave).sum(-1)
        first = 1 + (height * rate * rise).sum(-1)
        second = (-2 * height * rate.square() * wave * rise).sum(-1)
        return value, first, second


class LearnedNetwork(Monotone):
    """m(t) ∝ Σ_j v_j tanh(w_j (t - ½) + b_j), w = softplus(ω), v = 0.01 softplus(ν), ω, b, ν ~ N(0, 1) at first.

    A monotone network with one layer of 1024 units (Gulrajani and Hashimoto 2023, Plaid).
    """

    def __init__(self, highest: float, lowest: float):
        super().__init__(highest, lowest)
        self.rates = nn.Parameter(torch.randn(PUBLISHED_UNITS))
        self.offsets = nn.Parameter(torch.randn(PUBLISHED_UNITS))
        self.heights = nn.Parameter(torch.randn(PUBLISHED_UNITS))

    @property
    def units(self) -> int:
        return PUBLISHED_UNITS

    def _raw(self, t: Number) -> tuple[Number, Number, Number]:
        height, rate = OUTPUT_SCALE * F.softplus(self.heights.double()), F.softplus(self.rates.double())
        wave = torch.tanh(rate * (t[..., None] - 0.5) + self.offsets.double())
        rise = 1 - wave.square()
        first = (height * rate * rise).sum(-1)
        second = (-2 * height * rate.square() * wave * rise).sum(-1)
        return (height * wave).sum(-1), first, second
