"""Clocks: which of the tabulated times are drawn, and how often.

The bound is a sum over tabulated times, and any law of drawing them leaves it unbiased. In training times are drawn as
told, or where there is something to learn: in proportion to their nats and to the square of the share of what there is
to know that states tell already. Where neighbours tell nothing yet, nats are only noise in the gradient. A bound is
always measured at times drawn in proportion to the root mean square of the nats of a sequence: the calmest estimate.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.noise import running_sum
from logosphere.shapes import Float, Int64

BINS = 32
FLOOR, LAST = 0.08, 0.02
"""These shares of draws stay spread evenly and on the last step, so that no step is forgotten."""
LEAST = 1e-4
"""What states tell is taken for at least this much: a new network may read nothing out of any of them."""
FALL, NEVER = 1e-3, 1e-9
"""A bare warp: nats by which the cross-entropy is taken to fall in every bin, and the probability of the last step."""
MEASURED, FEWEST = 1 / 8, 1 / 256
"""A split clock: the fraction of draws of the last step in a bound, and the smallest in training (one of 256)."""
MEMORY = 0.95
"""Decay of the measurements, per training step."""


def locate(p: Float[Tensor, " T"], w: Float[Tensor, "..."]) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."]]:
    """The step at the quantile w of the law p, and one over its probability."""
    step = torch.searchsorted(running_sum(p, 0), w.contiguous()).clamp_max(len(p) - 1)
    return step, 1 / p[step]


def place(p: Float[Tensor, " T"], w: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same quantile between steps, from 0 to their number."""
    edges = F.pad(running_sum(p, 0), (1, 0))
    right = torch.searchsorted(edges, w.contiguous(), right=True).clamp(1, len(p))
    return right - 1 + ((w - edges[right - 1]) / (edges[right] - edges[right - 1]).clamp_min(1e-12)).clamp(0, 1)


class TimeSampler(nn.Module):
    """Probabilities of steps 0 … T-1: for training given as `drawn`, or learned from what steps cost.

    With `warped` training draws times so that the cross-entropy falls evenly (CDCD's time warp; `bare`: without the
    draws that are spread evenly or spent on the last step), with `calm` as bounds
    are measured, where costs scatter (Nichol and Dhariwal 2021; Multinomial Diffusion). With `split` all steps but the
    last are drawn alike, and the last with a fraction of its own (Plaid).
    `base` is the law under which an importance-weighted loss is an average. Measurements are kept in bins of
    neighbours; the last step has a bin of its own.
    """

    base: Tensor
    measured: Tensor
    """In each bin the means of nats², nats and cross-entropy."""
    seen: Tensor
    bin_of: Tensor
    pending: Tensor
    drawn: Tensor | None

    def __init__(
        self,
        base: Float[Tensor, " T"],
        drawn: Float[Tensor, " T"] | None = None,
        *,
        warped: bool = False,
        calm: bool = False,
        split: bool = False,
        bare: bool = False,
        bins: int = BINS,
    ):
        super().__init__()
        self.warped, self.calm, self.split, self.bare = warped, calm, split, bare
        self.steps = len(base)
        bins = min(bins, self.steps - 1)
        place = torch.arange(self.steps - 1) * bins // (self.steps - 1)
        self.register_buffer("base", base.double(), persistent=False)
        self.register_buffer("drawn", None if drawn is None else drawn.double(), persistent=False)
        self.register_buffer("bin_of", torch.cat([place, torch.tensor([bins])]), persistent=False)
        self.register_buffer("measured", torch.ones(3, bins + 1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(bins + 1, dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(4, bins + 1, dtype=torch.float64), persistent=False)

    def probabilities(self, together: int = 1) -> Float[Tensor, " T"]:
        """How likely each step is to be drawn, when so many positions share it."""
        if self.drawn is not None and self.training:
            return self.drawn
        if self.split:
            last = self._last(together) if self.training else MEASURED
            return F.pad(self.base.new_full((self.steps - 1,), (1 - last) / (self.steps - 1)), (0, 1), value=last)
        squares, cost, doubt = self.measured
        if self.training and self.warped and self.bare:
            return self._bare(doubt)
        if self.training and self.warped:
            cost = F.pad(-torch.gradient(doubt[:-1])[0], (0, 1)).clamp_min(0) + 1e-3 * doubt.mean()
        elif self.training and not self.calm:
            most = doubt[self.seen > 0].max() if bool(self.seen.any()) else torch.inf
            cost = cost * (1 - doubt / most).square().clamp_min(LEAST)
        else:
            cost = ((squares - cost.square()).clamp_min(0) / together + cost.square()).sqrt()
        return self._shares(cost)

    def _bare(self, doubt: Float[Tensor, " b"]) -> Float[Tensor, " T"]:
        """p ∝ the fall of the cross-entropy within each bin, so that t = F⁻¹(w) with F = cross-entropy / its range."""
        known = self.seen > 0
        doubt = torch.where(known, doubt, doubt[known].mean() if bool(known.any()) else 0.0)
        fall = (-torch.gradient(doubt[:-1])[0]).clamp_min(0) + FALL
        p = F.pad(fall, (0, 1))[self.bin_of]
        p = (1 - NEVER) * p / p.sum()
        p[-1] = NEVER
        return p

    def _last(self, together: int) -> float:
        """The fraction of draws of the last step: s_l/(s_l + s), the running deviations of the costs of sequences.

        Costs of positions that share a time scatter on their own; means of other steps scatter with the time as well.
        """
        squares, means, _ = self.measured
        scatter, seen = (squares - means.square()).clamp_min(0) / together, self.seen[:-1] > 0
        if not bool(seen.any()):
            return FEWEST
        others = (scatter[:-1][seen].mean() + means[:-1][seen].var(correction=0)).sqrt()
        last = scatter[-1].sqrt()
        return min(max(float(last / (last + others + 1e-8)), FEWEST), 1 - FEWEST)

    def pace(self) -> Float[Tensor, " T"]:
        """The share of its way that a position with a clock of its own spends at each step: even in nats, or as told.

        It shapes the path itself, so it is the same in training, in bounds and in samplers.
        """
        return self._shares(self.measured[1]) if self.drawn is None else self.drawn

    def _shares(self, cost: Float[Tensor, " b"]) -> Float[Tensor, " T"]:
        """Steps in proportion to what their bins cost; what was never seen is taken for average."""
        p = torch.where(self.seen > 0, cost, cost[self.seen > 0].mean() if bool(self.seen.any()) else 1.0)[self.bin_of]
        # A network that knows nothing yet has the same doubt everywhere, and nothing to prefer.
        p = torch.where(p.sum() > 1e-9, p / p.sum().clamp_min(1e-9), 1 / self.steps)
        p = (1 - FLOOR - LAST) * p + FLOOR / self.steps
        p[-1] += LAST
        return p

    def locate(self, w: Float[Tensor, "..."], together: int = 1) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."]]:
        """The step at the quantile w, and one over its probability."""
        return locate(self.probabilities(together), w)

    def within(
        self, w: Float[Tensor, "..."], together: int = 1
    ) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
        """As `locate`, for steps that are intervals: also how much of the step lies before the quantile."""
        p = self.probabilities(together)
        ends = running_sum(p, 0)
        step = torch.searchsorted(ends, w.contiguous()).clamp_max(self.steps - 1)
        return step, ((w - ends[step]) / p[step] + 1).clamp(0, 1), 1 / p[step]

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times from 1 to 0 between which equal shares of the measured nats lie; step i of T stands for 1 - i/T."""
        nats = self.measured[1][self.bin_of][:-1].cpu()
        wanted = torch.arange(steps, dtype=nats.dtype) / steps
        return F.pad(1 - place(nats / nats.sum(), wanted) / self.steps, (0, 1)).float()

    def worth(self, step: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Nats of the bound for each nat of cross-entropy, as measured at this step."""
        _, nats, cross_entropy = self.measured[:, self.bin_of[step]]
        return nats / cross_entropy.clamp_min(1e-9)

    def observe(self, step: Int64[Tensor, " N"], nats: Float[Tensor, " N"], cross_entropy: Float[Tensor, " N"]) -> None:
        """Note what steps cost; it counts from the next `settle` on, however a batch was cut."""
        nats, cross_entropy = nats.detach().double(), cross_entropy.detach().double()
        values = torch.stack([nats.square(), nats, cross_entropy, torch.ones_like(nats)])
        self.pending.index_add_(1, self.bin_of[step], values)

    def update_statistics(self) -> None:
        """Take what was observed since the last time into account."""
        count = self.pending[3]
        fresh = self.pending[:3] / count.clamp_min(1)
        # An average over what was seen; the first measurements replace the even start at once.
        weight = torch.where(count > 0, (1 - MEMORY) / (1 - MEMORY ** (self.seen + 1)), 0.0)
        self.measured += weight * (fresh - self.measured)
        self.seen += count > 0
        self.pending.zero_()


def uniform_density(steps: int) -> Float[Tensor, " T"]:
    """Every step alike."""
    return torch.full((steps,), 1 / steps, dtype=torch.float64)
