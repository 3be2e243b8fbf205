"""A clock that learns where the information is: times are drawn in proportion to the nats measured there.

The bound is a sum over tabulated times. Any law of drawing them leaves it unbiased; the calmest estimate comes from
drawing each in proportion to the root mean square of its nats, and training goes where there is something to learn.
"""

import torch
from torch import Tensor, nn

from logosphere.shapes import Float, Int64

BINS = 32
FLOOR = 0.1
"""This share of draws stays spread evenly, so that no step is forgotten."""
MEMORY = 0.95
"""Decay of the measurements, per training step."""


class InformationClock(nn.Module):
    """Probabilities of steps 0 … T-1, constant within bins of neighbours; the last step has a bin of its own."""

    measured: Tensor
    """Mean squares of the nats in each bin."""
    seen: Tensor
    bin_of: Tensor
    pending: Tensor

    def __init__(self, steps: int, *, learns: bool = True):
        super().__init__()
        self.steps, self.learns = steps, learns
        bins = min(BINS, steps - 1)
        place = torch.arange(steps - 1) * bins // (steps - 1)
        self.register_buffer("bin_of", torch.cat([place, torch.tensor([bins])]), persistent=False)
        self.register_buffer("measured", torch.ones(bins + 1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(bins + 1, dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(2, bins + 1, dtype=torch.float64), persistent=False)

    def probabilities(self) -> Float[Tensor, "T"]:
        """How likely each step is to be drawn."""
        p = self.measured.sqrt()[self.bin_of]
        return (1 - FLOOR) * p / p.sum() + FLOOR / self.steps

    def locate(self, w: Float[Tensor, "..."]) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."]]:
        """The step at the quantile w, and one over its probability."""
        p = self.probabilities()
        step = torch.searchsorted(p.cumsum(0), w.contiguous()).clamp_max(self.steps - 1)
        return step, 1 / p[step]

    def observe(self, step: Int64[Tensor, "N"], nats: Float[Tensor, "N"]) -> None:
        """Note what steps cost; it counts from the next `settle` on, however a batch was cut."""
        if self.learns:
            values = torch.stack([nats.detach().double().square(), torch.ones_like(nats, dtype=torch.float64)])
            self.pending.index_add_(1, self.bin_of[step], values)

    def settle(self) -> None:
        """Take what was observed since the last time into account."""
        if not self.learns:
            return
        squares, count = self.pending
        fresh = squares / count.clamp_min(1)
        # An average over what was seen; the first measurements replace the even start at once.
        weight = torch.where(count > 0, (1 - MEMORY) / (1 - MEMORY ** (self.seen + 1)), 0.0)
        self.measured += weight * (fresh - self.measured)
        self.seen += count > 0
        self.pending.zero_()
