"""Steppers on the sphere."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SphericalStep, geodesic
from logosphere.processes.spherical.times import noise_left, noise_rate
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.types import Float, Logits, Positions, State, Times

ENDING = 1e-5
"""RDLM's sampler stops so much before the end of its time."""


@dataclass(frozen=True)
class Moved(Stepper):
    """Moves positions jointly, by a rule of processes.spherical.steps, also for processes with the any-order path."""

    move: SphericalStep

    def check(self, process: Process) -> None:
        _spherical(process)

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        return _spherical(process).joint_grid(steps)

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        return _spherical(process).joint_position_times(rows, free, noise)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = _spherical(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        moved = z.clone()
        moved[where] = path.apply_step(
            self.move, ask(z, t, where), z[where], t[where], s[where], noise.for_positions(where)
        )
        return moved


@dataclass(frozen=True)
class PublishedWalk(Stepper):
    """RDLM's sampler (Jo and Hwang 2025): M equal steps of its own time τ from 0 to 1 - 10⁻⁵,

        X ← exp_X(γ_τ Σ_k p_k log_X(e_k) dτ + √(β_τ dτ) z)

    the last one included, and then the largest coordinate of X among the tokens, whatever the network predicts.
    """

    def check(self, process: Process) -> None:
        _spherical(process)

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        tau = torch.arange(steps, dtype=torch.float64) * ((1 - ENDING) / steps)
        return F.pad(_spherical(process).time_of(tau), (0, 1))

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        return rows[:, None]

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = _spherical(process), t > s
        if not where.any():
            return z
        out, x, moved = ask(z, t, where), z[where], z.clone()
        walked = self.walked(path, out, x, t[where], s[where], noise.for_positions(where))
        token = walked[..., : path.num_classes].argmax(-1)
        vertex = F.one_hot(token, z.shape[-1]).to(z.dtype)
        moved[where] = torch.where((s[where] == 0)[..., None], vertex, walked)
        return moved

    @staticmethod
    def walked(path: SphericalDiffusion, out: Logits, x: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """One step of the walk, with drift and noise as they are at its beginning."""
        now = path.schedule_time(t)
        then = torch.where(s == 0, 1 - ENDING, path.schedule_time(s))
        left, rate = noise_left(path.schedule, 1 - now), noise_rate(path.schedule, 1 - now)
        spent = 1 - left
        p = path.probabilities(out)
        return geodesic(path.bridge, p, p.argmax(-1), x, spent, spent + rate * (then - now), noise).to(x.dtype)


def _spherical(process: Process) -> SphericalDiffusion:
    if not isinstance(process, SphericalDiffusion):
        raise UserError("This sampler moves on a sphere and needs rdlm or rdlm-heat; use the ancestral sampler here.")
    return process
