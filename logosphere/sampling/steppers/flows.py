"""Steppers along flows and diffusions of the simplex: of second order, and those of the papers."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.simplex.bfn import BFNPath
from logosphere.processes.simplex.process import DeterministicPath, EulerPath, SimplexProcess
from logosphere.rng import Noise
from logosphere.sampling.steppers.ancestral import ancestral
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.sampling.steppers.windows import GreedyEnd
from logosphere.types import Float, State, Times


def transported(process: Process) -> tuple[SimplexProcess, DeterministicPath]:
    """A flow without noise, or a sentence."""
    if isinstance(process, SimplexProcess):
        path: object = process.path
        if isinstance(path, DeterministicPath) and path.deterministic:
            return process, path
    raise UserError(
        "This sampler follows a flow without noise: fisher-flow, or dirichlet-flow with churn=0; "
        "use the ancestral sampler here."
    )


@dataclass(frozen=True)
class Downstream(Stepper):
    """Heun's method: the mean of the velocities at both ends of a step; two looks at the network for each but the last.

    The mean is taken in the space around the states, and the point then brought back onto them: of second order too.
    """

    def check(self, process: Process) -> None:
        transported(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        (flow, path), where = transported(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, ahead = ask(z, t, where), z.clone()
        # Where s = 0 this reads the token off.
        ahead[where] = flow.step(out, z[where], t[where], s[where], noise.for_positions(where))
        again = where & (s > 0)
        if not again.any():
            return ahead
        now, then, here = flow.fraction(t[again]), flow.fraction(s[again]), z[again]
        first = path.velocity(out[again[where]], here, now)
        second = path.velocity(ask(ahead, s, again), ahead[again], then)
        moved = ahead.clone()
        moved[again] = path.project(here + (then - now)[:, None] * (first + second) / 2)
        return moved


def _eulerian(process: Process) -> tuple[SimplexProcess, EulerPath]:
    """A flow with the Euler steps of its paper, or a sentence."""
    path: object = process.path if isinstance(process, SimplexProcess) else None
    noisy = isinstance(path, DeterministicPath) and not path.deterministic
    if isinstance(process, SimplexProcess) and isinstance(path, EulerPath) and not noisy:
        return process, path
    raise UserError(
        "The euler-flow sampler is for fisher-flow, dirichlet-flow with churn=0 and ddsm with predicts=score; use the "
        "ancestral sampler here."
    )


@dataclass(frozen=True)
class Euler(Stepper):
    """Equal steps of Euler's method; the last one ends in the token of which the path then is most certain."""

    def check(self, process: Process) -> None:
        _eulerian(process)

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        flow, path = _eulerian(process)
        return F.pad(flow.time(path.euler_times(torch.arange(steps) / steps)), (0, 1))

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        (flow, path), where = _eulerian(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, here, now, then = ask(z, t, where), z[where], flow.fraction(t[where]), flow.fraction(s[where])
        corner = F.one_hot(path.final_token(out, here, now), z.shape[-1]).to(z.dtype)
        ahead = path.euler(out, here, now, then, noise.for_positions(where))
        moved = z.clone()
        moved[where] = torch.where((s[where] == 0)[:, None], corner, ahead)
        return moved


@dataclass(frozen=True)
class Messages(Stepper):
    """A Bayesian flow in n messages at equal times, then the likeliest token: n + 1 looks (Graves et al. 2023)."""

    def check(self, process: Process) -> None:
        if not isinstance(process, SimplexProcess) or not isinstance(process.path, BFNPath):
            raise UserError("The messages sampler is for Bayesian flow networks; use bfn, or the ancestral sampler.")

    def steps(self, length: int, steps: int) -> int:
        return steps + 1

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        self.check(process)
        assert isinstance(process, SimplexProcess)
        shares = torch.arange(steps) / max(1, steps - 1)
        return F.pad(process.time(shares), (0, 1))

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        return GreedyEnd(ancestral)(process, ask, z, t, s, noise)
