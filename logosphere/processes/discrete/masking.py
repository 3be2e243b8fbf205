"""Masks of a given number, and masks by chance of which too few or too many are drawn again."""

import torch
from torch import Tensor

from logosphere.rng import Noise, categorical
from logosphere.types import Float, Int64, Positions


def masks_by_count(hidden_count: Int64[Tensor, "B J 1"], free: Positions, noise: Noise) -> Positions:
    """Hide so many of the free positions of each block, all subsets equally likely; at least one is asked for."""
    blocks = (*hidden_count.shape[:2], free.shape[1] // hidden_count.shape[1])
    scores = torch.where(free, noise.uniform(*free.shape), 2.0).view(blocks)
    threshold = scores.sort(2).values.gather(2, hidden_count.clamp_min(1) - 1)
    return ((scores <= threshold) & (hidden_count > 0)).view_as(free) & free


def masks_within(rate: Float[Tensor, "B J"], free: Positions, interval: tuple[float, float], noise: Noise) -> Positions:
    """Hide each free position with probability `rate`, given that the hidden fraction of its block lies in an interval.

    BD3-LM draws masks again until that is so (Arriola et al. 2025, section 5.3). The number of masks then has the
    binomial distribution cut to the interval, and all subsets of that size are equally likely. Where no number fits,
    all are allowed.
    """
    count = free.view(*rate.shape, -1).sum(2, keepdim=True).double()
    number = torch.arange(free.shape[1] // rate.shape[1] + 1, device=rate.device).double()
    p = rate.double().clamp(1e-12, 1 - 1e-12)[..., None]
    log_p = torch.lgamma(count + 1) - torch.lgamma(number + 1) - torch.lgamma((count - number).clamp_min(0) + 1)
    log_p = torch.where(number <= count, log_p + number * p.log() + (count - number) * (-p).log1p(), -torch.inf)
    share = number / count.clamp_min(1)
    fits = (interval[0] <= share) & (share <= interval[1]) & (number <= count)
    log_p = torch.where(fits | ~fits.any(2, keepdim=True), log_p, -torch.inf)
    return masks_by_count(categorical(log_p, noise.uniform(*rate.shape))[..., None], free, noise)
