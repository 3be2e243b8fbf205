"""Samplers of latent diffusion as published: steps of equal length in the time of the whole schedule.

A path is the part of a schedule down to a finite log-SNR and has a time of its own; published samplers count in the
time of the schedule, on [0, 1].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.processes.gaussian.latent import LatentDiffusion
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.types import Float, State, Times


def latent_path(process: Process) -> LatentDiffusion:
    """The path of latent diffusion, or a sentence."""
    if not isinstance(process, LatentDiffusion):
        raise UserError(
            "This sampler needs latent diffusion such as tencdm or ld4lg; use the ancestral sampler or ddim here."
        )
    return process


def own_time(path: LatentDiffusion, t: float) -> float:
    """The time of the path's schedule at which the whole schedule has the time t, or the nearest on the path."""
    return float(path.schedule.restricted_time(torch.tensor(t, dtype=torch.float64)).clamp(0, 1))


@dataclass(frozen=True)
class EvenTimes:
    """n times 1, …, end + (1 - end)/n of the whole schedule, equally far apart; after the last the latents are read."""

    path: LatentDiffusion
    end: float = 0.0

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        whole = torch.linspace(1, self.end, steps + 1, dtype=torch.float64)
        own = self.path.schedule.restricted_time(whole).clamp(0, 1)
        times = (T_DECODE + (1 - T_DECODE) * own).float()
        times[0], times[-1] = 1.0, 0.0
        return times


@dataclass(frozen=True)
class EulerMaruyama(Stepper):
    """The reverse SDE (Song et al. 2021) by Euler's method: TEncDM and COSMOS.

        z' = z + (½ β z + β score) dt + √(β dt) ε,    score = (α x̂ - z)/σ²,    β = -d log α²/dt = σ² · (-dλ/dt)

    The last step goes to the time `end` of the whole schedule and returns its mean. β is taken at the time `latest`
    where t is later: it is infinite at t = 1.
    """

    end: float
    latest: float = 0.95

    def check(self, process: Process) -> None:
        latent_path(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = latent_path(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, seen, now, then = ask(z, t, where), z[where], t[where].double(), s[where].double()
        own, next_own = ((time - T_DECODE) / (1 - T_DECODE) for time in (now, then))
        last = then == 0
        step = (own - torch.where(last, own_time(path, self.end), next_own))[:, None].clamp_min(0)
        early = own.clamp_max(own_time(path, self.latest))
        spent = (torch.sigmoid(-path.schedule.logsnr(early)) * path.schedule.slope(early))[:, None] * step
        alpha, sigma = path.alpha_sigma(t[where])
        score = (alpha * path.predict_x0(out, seen, t[where]) - seen) / sigma.square()
        mean = seen + spent.float() * (seen / 2 + score)
        drawn = spent.sqrt().float() * noise.for_positions(where).normal(*seen.shape)
        moved = z.clone()
        moved[where] = torch.where(last[:, None], mean, mean + drawn)
        return moved
