"""Which times training and evaluation draw.

`TimeSampler` draws the steps of a table or chain. The bound is a sum over tabulated times, and any distribution of the
drawn step leaves it unbiased. In training, steps are drawn from a given distribution, or in proportion to their nats
and to the square of the fraction of the information that states have about their tokens: where states have none, nats
only add noise to the gradient. In evaluation, steps are drawn in proportion to the root mean square of the nats of a
sequence, which minimises the variance of the estimate.

`TrainingTimes` chooses the times of processes in continuous time or of chains without such a table.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError, suggest
from logosphere.rng import Noise, running_sum
from logosphere.types import Bool, Float, Int64

BINS = 32
UNIFORM_FRACTION, LAST_FRACTION = 0.08, 0.02
"""Fractions of the draws that are uniform over all steps, and on the last step, so that every step is measured."""
MIN_INFORMATION = 1e-4
"""Lower limit of the squared fraction of information, which is 0 at every step for an untrained network."""
MIN_FALL, LAST_PROBABILITY = 1e-3, 1e-9
"""With `pure_warp`: the least fall of the cross-entropy in a bin, in nats, and the probability of the last step."""
EVAL_LAST, MIN_LAST = 1 / 8, 1 / 256
"""With `separate_last`: the fraction of draws of the last step in evaluation, and the smallest in training."""
DECAY = 0.95
"""Decay of the running means, per training step."""


def sample_step(p: Float[Tensor, " T"], w: Float[Tensor, "..."]) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."]]:
    """The step at the quantile w of the distribution p, and the inverse of its probability."""
    step = torch.searchsorted(running_sum(p, 0), w.contiguous()).clamp_max(len(p) - 1)
    return step, 1 / p[step]


def inverse_cdf(p: Float[Tensor, " T"], w: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The quantile w of the piecewise constant density p on [0, T]."""
    edges = F.pad(running_sum(p, 0), (1, 0))
    right = torch.searchsorted(edges, w.contiguous(), right=True).clamp(1, len(p))
    return right - 1 + ((w - edges[right - 1]) / (edges[right] - edges[right - 1]).clamp_min(1e-12)).clamp(0, 1)


def uniform_density(steps: int) -> Float[Tensor, " T"]:
    """Equal probabilities of all steps."""
    return torch.full((steps,), 1 / steps, dtype=torch.float64)


def _masked_mean(values: Float[Tensor, " n"], chosen: Bool[Tensor, " n"], default: float) -> Float[Tensor, ""]:
    """The mean of the chosen values, or `default` if none is; not by a selection, whose size a device would report."""
    total = torch.where(chosen, values, 0.0).sum()
    return torch.where(chosen.any(), total / chosen.sum().clamp_min(1), default)


class TimeSampler(nn.Module):
    """Probabilities of steps 0 … T-1: `fixed` in training, or estimated from the nats of the steps.

    `entropy_warp`: training draws times so that the cross-entropy falls evenly (CDCD's time warp); with `pure_warp`
    without the fractions of draws that are uniform or on the last step. `min_variance`: training draws as evaluation
    does, where costs vary most (Nichol and Dhariwal 2021; Multinomial Diffusion). `separate_last`: the last step has a
    probability of its own and all others are equally likely (Plaid).

    `base` is the distribution under which an importance-weighted loss is an average. Running means are kept in bins of
    neighbouring steps; the last step has a bin of its own.
    """

    base: Tensor
    measured: Tensor
    """Running means of nats², nats and cross-entropy in each bin."""
    seen: Tensor
    """The number of training steps that observed each bin."""
    bin_of: Tensor
    accumulated: Tensor
    """Sums of nats², nats, cross-entropy and 1 since the last update."""
    fixed: Tensor | None

    def __init__(
        self,
        base: Float[Tensor, " T"],
        fixed: Float[Tensor, " T"] | None = None,
        *,
        entropy_warp: bool = False,
        min_variance: bool = False,
        separate_last: bool = False,
        pure_warp: bool = False,
        bins: int = BINS,
    ):
        super().__init__()
        self.entropy_warp, self.min_variance = entropy_warp, min_variance
        self.separate_last, self.pure_warp = separate_last, pure_warp
        self.steps = len(base)
        bins = min(bins, self.steps - 1)
        bin_of = torch.arange(self.steps - 1) * bins // (self.steps - 1)
        self.register_buffer("base", base.double(), persistent=False)
        self.register_buffer("fixed", None if fixed is None else fixed.double(), persistent=False)
        self.register_buffer("bin_of", torch.cat([bin_of, torch.tensor([bins])]), persistent=False)
        self.register_buffer("measured", torch.ones(3, bins + 1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(bins + 1, dtype=torch.float64))
        self.register_buffer("accumulated", torch.zeros(4, bins + 1, dtype=torch.float64), persistent=False)

    # ---- distributions of steps ---------------------------------------------------------------------------------

    def probabilities(self, group_size: int = 1) -> Float[Tensor, " T"]:
        """The probability of each step, when `group_size` positions share one draw."""
        if self.fixed is not None and self.training:
            return self.fixed
        if self.separate_last:
            last = self._last_probability(group_size) if self.training else self.base.new_full((), EVAL_LAST)
            return torch.cat([((1 - last) / (self.steps - 1)).expand(self.steps - 1), last[None]])
        squares, nats, entropy = self.measured
        if self.training and self.entropy_warp and self.pure_warp:
            return self._pure_warp(entropy)
        if self.training and self.entropy_warp:
            weights = F.pad(-torch.gradient(entropy[:-1])[0], (0, 1)).clamp_min(0) + 1e-3 * entropy.mean()
        elif self.training and not self.min_variance:
            seen = self.seen > 0
            largest = torch.where(seen.any(), torch.where(seen, entropy, -torch.inf).max(), torch.inf)
            weights = nats * (1 - entropy / largest).square().clamp_min(MIN_INFORMATION)
        else:
            weights = ((squares - nats.square()).clamp_min(0) / group_size + nats.square()).sqrt()
        return self._normalise(weights)

    def step_allocation(self) -> Float[Tensor, " T"]:
        """The fraction of its path that a position with a time of its own spends at each step: ∝ nats, or `fixed`.

        It defines the path, so it is the same in training, evaluation and sampling.
        """
        return self._normalise(self.measured[1]) if self.fixed is None else self.fixed

    def _normalise(self, weights: Float[Tensor, " b"]) -> Float[Tensor, " T"]:
        """Probabilities of steps in proportion to the weights of their bins; unseen bins have the average weight."""
        seen = self.seen > 0
        p = torch.where(seen, weights, _masked_mean(weights, seen, 1.0))[self.bin_of]
        # An untrained network has the same entropy at every step, and all weights may be 0.
        p = torch.where(p.sum() > 1e-9, p / p.sum().clamp_min(1e-9), 1 / self.steps)
        p = (1 - UNIFORM_FRACTION - LAST_FRACTION) * p + UNIFORM_FRACTION / self.steps
        p[-1] += LAST_FRACTION
        return p

    def _pure_warp(self, entropy: Float[Tensor, " b"]) -> Float[Tensor, " T"]:
        """p ∝ the fall of the cross-entropy within each bin, so that t = F⁻¹(w) with F = cross-entropy / its range."""
        seen = self.seen > 0
        entropy = torch.where(seen, entropy, _masked_mean(entropy, seen, 0.0))
        fall = (-torch.gradient(entropy[:-1])[0]).clamp_min(0) + MIN_FALL
        p = F.pad(fall, (0, 1))[self.bin_of]
        p = (1 - LAST_PROBABILITY) * p / p.sum()
        p[-1] = LAST_PROBABILITY
        return p

    def _last_probability(self, group_size: int) -> Float[Tensor, ""]:
        """s_l/(s_l + s), the standard deviations of the cost of a sequence at the last step and at the others.

        Positions that share a time vary independently; the means of the other steps vary with the time as well.
        """
        squares, means, _ = self.measured
        variance, seen = (squares - means.square()).clamp_min(0) / group_size, self.seen[:-1] > 0
        spread = (means[:-1] - _masked_mean(means[:-1], seen, 0.0)).square()
        others = (_masked_mean(variance[:-1], seen, 0.0) + _masked_mean(spread, seen, 0.0)).sqrt()
        last = variance[-1].sqrt()
        probability = (last / (last + others + 1e-8)).clamp(MIN_LAST, 1 - MIN_LAST)
        return torch.where(seen.any(), probability, MIN_LAST)

    # ---- draws --------------------------------------------------------------------------------------------------

    def sample_step(
        self, w: Float[Tensor, "..."], group_size: int = 1
    ) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."]]:
        """The step at the quantile w, and the inverse of its probability."""
        return sample_step(self.probabilities(group_size), w)

    def sample_interval(
        self, w: Float[Tensor, "..."], group_size: int = 1
    ) -> tuple[Int64[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
        """As `sample_step` for steps that are intervals: the step, the position of w in it, the inverse probability."""
        p = self.probabilities(group_size)
        ends = running_sum(p, 0)
        step = torch.searchsorted(ends, w.contiguous()).clamp_max(self.steps - 1)
        return step, ((w - ends[step]) / p[step] + 1).clamp(0, 1), 1 / p[step]

    def grid(self, steps: int) -> Float[Tensor, " n"]:
        """Times from 1 to 0 with equal fractions of the measured nats between them; step i of T is the time 1 - i/T."""
        nats = self.measured[1][self.bin_of][:-1].cpu()
        quantiles = torch.arange(steps, dtype=nats.dtype) / steps
        return F.pad(1 - inverse_cdf(nats / nats.sum(), quantiles) / self.steps, (0, 1)).float()

    def nats_per_ce(self, step: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Nats of the bound per nat of cross-entropy, as measured at this step."""
        _, nats, cross_entropy = self.measured[:, self.bin_of[step]]
        return nats / cross_entropy.clamp_min(1e-9)

    # ---- measurements -------------------------------------------------------------------------------------------

    def observe(
        self,
        step: Int64[Tensor, " N"],
        nats: Float[Tensor, " N"],
        cross_entropy: Float[Tensor, " N"],
        counted: Bool[Tensor, " N"] | None = None,
    ) -> None:
        """Add observations, which count from the next `update_statistics` on, however a batch was divided.

        Those that are not `counted` are added as zeros: to leave them out, the device would have to be read.
        """
        nats, cross_entropy = nats.detach().double(), cross_entropy.detach().double()
        values = torch.stack([nats.square(), nats, cross_entropy, torch.ones_like(nats)])
        if counted is not None:
            values = torch.where(counted, values, 0.0)
        self.accumulated.index_add_(1, self.bin_of[step], values)

    def update_statistics(self) -> None:
        """Update the running means with the accumulated observations."""
        count = self.accumulated[3]
        means = self.accumulated[:3] / count.clamp_min(1)
        # Bias-corrected: the first observations replace the initial values.
        weight = torch.where(count > 0, (1 - DECAY) / (1 - DECAY ** (self.seen + 1)), 0.0)
        self.measured += weight * (means - self.measured)
        self.seen += count > 0
        self.accumulated.zero_()


TRAINING_TIMES = ("low-variance", "uniform", "independent")


@dataclass(frozen=True)
class TrainingTimes:
    """How training draws times; evaluation always uses "low-variance" over all of (0, 1].

    "low-variance" spreads times evenly over the batch, and in continuous time draws more of them near 0, where the
    bound grows like 1/t, with the weights dt/dw. "uniform" spreads them evenly over [low, high] without weights (MDLM,
    MD4). "independent" draws each independently (D3PM, SEDD, LLaDA).
    """

    kind: str = "low-variance"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in TRAINING_TIMES:
            raise UserError(f"There is no time sampler '{self.kind}'.{suggest(self.kind, TRAINING_TIMES)}")
        if not 0 <= self.low < self.high <= 1:
            raise UserError(f"t_min must be at least 0 and below 1, not {self.low}.")
        if not self.is_uniform and (self.low, self.high) != (0, 1):
            raise UserError(f"t_min={self.low} needs times=uniform or times=independent, not {self.kind}.")

    @property
    def is_uniform(self) -> bool:
        """Whether times are uniform and without weights."""
        return self.kind != "low-variance"

    def quantiles(self, w: Float[Tensor, "B J"], noise: Noise) -> Float[Tensor, "B J"]:
        """The stratified quantiles w, or independent ones in their place."""
        return noise.uniform(*w.shape) if self.kind == "independent" else w

    def time(self, w: Float[Tensor, "B J"]) -> Float[Tensor, "B J"]:
        """The times of quantiles."""
        return self.low + (self.high - self.low) * w


LOW_VARIANCE = TrainingTimes()
