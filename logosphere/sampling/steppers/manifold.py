"""Steppers on the sphere and on the simplex: other steps than the process's own, and those of the papers."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.processes.base import Process
from logosphere.processes.simplex.bfn import BFNPath
from logosphere.processes.simplex.flow_matching import TangentFlow
from logosphere.processes.simplex.process import DeterministicPath, EulerPath, SimplexProcess
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.steps import SphericalStep, geodesic
from logosphere.processes.spherical.times import noise_left, noise_rate
from logosphere.rng import Noise
from logosphere.sampling.steppers.base import (
    Evaluate,
    GreedyLastStep,
    PointwiseStepper,
    PredictionUse,
    Requirement,
    Stepper,
    ancestral,
    require,
)
from logosphere.types import Float, Logits, Positions, State, Times

RDLM_END = 1e-5
"""RDLM's sampler stops this far from the end of its time."""


def _is_noisy(path: object) -> bool:
    return isinstance(path, DeterministicPath) and not path.deterministic


def _is_deterministic_flow(process: Process) -> bool:
    return (
        isinstance(process, SimplexProcess)
        and isinstance(process.path, DeterministicPath)
        and not _is_noisy(process.path)
    )


def _has_euler_steps(process: Process) -> bool:
    return isinstance(process, SimplexProcess) and isinstance(process.path, EulerPath) and not _is_noisy(process.path)


SPHERE = Requirement("diffusion on the sphere: rdlm or rdlm-heat", lambda p: isinstance(p, SphericalDiffusion))
DETERMINISTIC_FLOW = Requirement("fisher-flow, or dirichlet-flow with churn=0", _is_deterministic_flow)
EULER_STEPS = Requirement("fisher-flow, dirichlet-flow with churn=0, or ddsm with predicts=score", _has_euler_steps)
EULER_FLOW = Requirement(EULER_STEPS.description, lambda p: _has_euler_steps(p) or isinstance(p, TangentFlow))
"""The ancestral step of a tangent flow is an Euler step already."""
BAYESIAN_FLOW = Requirement(
    "a Bayesian flow network: bfn", lambda p: isinstance(p, SimplexProcess) and isinstance(p.path, BFNPath)
)


@dataclass(frozen=True)
class SphericalStepper(PointwiseStepper):
    """Moves all positions jointly by an update of processes/spherical/steps.py, also where the process is any-order."""

    needs = SPHERE

    update: SphericalStep

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        return require(process, SphericalDiffusion, self.needs).joint_grid(steps)

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        return require(process, SphericalDiffusion, self.needs).joint_position_times(rows, free, noise)

    def move(self, process: Process, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        return require(process, SphericalDiffusion, self.needs).apply_step(self.update, out, z, t, s, noise)


@dataclass(frozen=True)
class GeodesicRandomWalk(Stepper):
    """RDLM's sampler (Jo and Hwang 2025): M equal steps of its own time τ from 0 to 1 - 10⁻⁵,

        X ← exp_X(γ_τ Σ_k p_k log_X(e_k) dτ + √(β_τ dτ) z)

    the last one included, and then the largest coordinate of X among the tokens, independently of the
    network's prediction.
    """

    needs = SPHERE

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        tau = torch.arange(steps, dtype=torch.float64) * ((1 - RDLM_END) / steps)
        return F.pad(require(process, SphericalDiffusion, self.needs).time_of(tau), (0, 1))

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        return rows[:, None]

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = require(process, SphericalDiffusion, self.needs), t > s
        if not where.any():
            return z
        out, x, moved = evaluate(z, t, where), z[where], z.clone()
        stepped = self.step(path, out, x, t[where], s[where], noise.for_positions(where))
        token = stepped[..., : path.num_classes].argmax(-1)
        vertex = F.one_hot(token, z.shape[-1]).to(z.dtype)
        moved[where] = torch.where((s[where] == 0)[..., None], vertex, stepped)
        return moved

    @staticmethod
    def step(path: SphericalDiffusion, out: Logits, x: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """One step with the drift and the noise of its beginning."""
        now = path.schedule_time(t)
        then = torch.where(s == 0, 1 - RDLM_END, path.schedule_time(s))
        left, rate = noise_left(path.schedule, 1 - now), noise_rate(path.schedule, 1 - now)
        spent = 1 - left
        p = path.probabilities(out)
        return geodesic(path.bridge, p, p.argmax(-1), x, spent, spent + rate * (then - now), noise).to(x.dtype)


@dataclass(frozen=True)
class HeunFlow(Stepper):
    """Heun's method: the mean of the velocities at both ends of a step; two evaluations per step, one in the last.

    The mean is taken in the ambient space, and the point is then projected, which keeps the second order.
    """

    needs = DETERMINISTIC_FLOW

    @property
    def prediction_use(self) -> PredictionUse:
        return "means"

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        flow, where = require(process, SimplexProcess, self.needs), process.needs_prediction(z, t > s)
        path: object = flow.path
        assert isinstance(path, DeterministicPath)
        if not where.any():
            return z
        out, ahead = evaluate(z, t, where), z.clone()
        # Where s = 0 this decodes the token.
        ahead[where] = flow.step(out, z[where], t[where], s[where], noise.for_positions(where))
        again = where & (s > 0)
        if not again.any():
            return ahead
        now, then, here = flow.fraction(t[again]), flow.fraction(s[again]), z[again]
        first = path.velocity(out[again[where]], here, now)
        second = path.velocity(evaluate(ahead, s, again), ahead[again], then)
        moved = ahead.clone()
        moved[again] = path.project(here + (then - now)[:, None] * (first + second) / 2)
        return moved


@dataclass(frozen=True)
class EulerFlow(PointwiseStepper):
    """Equal steps of Euler's method; the last one ends in the token of which the path then is most certain."""

    needs = EULER_STEPS

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        flow = require(process, SimplexProcess, self.needs)
        path: object = flow.path
        assert isinstance(path, EulerPath)
        return F.pad(flow.time(path.euler_times(torch.arange(steps) / steps)), (0, 1))

    def move(self, process: Process, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        flow = require(process, SimplexProcess, self.needs)
        path: object = flow.path
        assert isinstance(path, EulerPath)
        now, then = flow.fraction(t), flow.fraction(s)
        corner = F.one_hot(path.final_token(out, z, now), z.shape[-1]).to(z.dtype)
        return torch.where((s == 0)[:, None], corner, path.euler(out, z, now, then, noise))


@dataclass(frozen=True)
class BayesianFlow(Stepper):
    """n messages at equal times, then the likeliest token: n + 1 evaluations (Graves et al. 2023, BFN)."""

    needs = BAYESIAN_FLOW

    def steps(self, length: int, steps: int) -> int:
        return steps + 1

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        fractions = torch.arange(steps) / max(1, steps - 1)
        return F.pad(require(process, SimplexProcess, self.needs).time(fractions), (0, 1))

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        return GreedyLastStep(ancestral)(process, evaluate, z, t, s, noise)
