"""Schedules of a fixed number of steps, given by their variances β_k, as published before time was continuous."""

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.logsnr.schedules import LogSNR, Number, Sqrt
from logosphere.shapes import Float

LARGEST_BETA = 0.999
"""β is cut here, so that no step loses everything (Nichol and Dhariwal 2021)."""


class Stepwise(LogSNR):
    """λ_k = log ᾱ_k/(1 - ᾱ_k), ᾱ_k = Π_{j ≤ k} (1 - β_j), at the times k/(T - 1), k = 0 … T - 1; straight in between.

    Time 0 is after the first step and time 1 after the last.
    """

    table: Tensor

    def __init__(self, betas: Float[Tensor, " T"]):
        super().__init__()
        kept = torch.log1p(-betas.double()).cumsum(0)
        self.register_buffer("table", kept - torch.log(-torch.expm1(kept)), persistent=False)
        self.steps = len(betas)

    def _at(self, t: Number) -> tuple[Tensor, Number]:
        """The step before a time, and how far it lies behind."""
        place = t.double().clamp(0, 1) * (self.steps - 1)
        before = place.long().clamp_max(self.steps - 2)
        return before, place - before

    def logsnr(self, t: Number) -> Number:
        before, share = self._at(t)
        return torch.lerp(self.table[before], self.table[before + 1], share)

    def slope(self, t: Number) -> Number:
        before, _ = self._at(t)
        return (self.table[before] - self.table[before + 1]) * (self.steps - 1)

    def time(self, logsnr: Number) -> Number:
        rising, wanted = -self.table, -logsnr.double().contiguous()
        after = torch.searchsorted(rising, wanted).clamp(1, self.steps - 1)
        share = (wanted - rising[after - 1]) / (rising[after] - rising[after - 1])
        return ((after - 1 + share) / (self.steps - 1)).clamp(0, 1)


def sqrt_steps(steps: int) -> Stepwise:
    """β_k = min(1 - f((k + 1)/T)/f(k/T), 0.999), f(t) = 1 - √(t + 10⁻⁴) (Li et al. 2022, Diffusion-LM; T = 2000)."""
    if steps < 2:
        raise UserError(f"A schedule needs at least 2 steps, not {steps}.")
    left = 1 - (torch.arange(steps + 1, dtype=torch.float64) / steps + Sqrt.OFFSET).sqrt()
    return Stepwise((1 - left[1:] / left[:-1]).clamp_max(LARGEST_BETA))
