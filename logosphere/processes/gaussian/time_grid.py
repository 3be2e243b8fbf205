"""Where the steps of a Gaussian sampler lie, whatever distribution times had in training."""

import math
from typing import Literal

import torch
from torch import Tensor

from logosphere.logsnr.schedules import LogSNR
from logosphere.processes.time_sampler import TimeSampler, inverse_cdf
from logosphere.shapes import Float

Spacing = Literal["angle", "logsnr", "information", "time"]


@torch.no_grad()
def spaced_times(
    spacing: Spacing, schedule: LogSNR, time_sampler: TimeSampler, share: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """The schedule's times at these fractions of the way from noise to data.

    The way is measured by the angle arccos α, by λ, by the nats that the clock has seen, or by time itself.
    """
    if spacing == "time":
        return 1 - share
    if spacing == "information":
        nats = time_sampler.measured[1][time_sampler.bin_of][:-1]
        return 1 - inverse_cdf(nats / nats.sum(), share) / (time_sampler.steps - 1)
    start, end = schedule.logsnr(torch.tensor([1.0, 0.0], device=share.device))
    if spacing == "logsnr" and math.isfinite(start):
        return schedule.time(start + (end - start) * share)
    angle = torch.lerp(torch.atan((-start / 2).exp()), torch.atan((-end / 2).exp()), share)
    return schedule.time(-2 * angle.tan().log())
