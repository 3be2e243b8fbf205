"""Steppers of Gaussian diffusion. All of them follow the path to its end, where the token is decoded.

Between times they move by an update of processes/gaussian/updates.py towards a target x0, or solve the probability flow

    z' = (σ'/σ) z + σ' ∫ e^ℓ x̂ dℓ,    ℓ = λ/2 = log α/σ

to second order, with the prediction of the step before (DPM-Solver++ 2M) or a second evaluation (Heun).

Published samplers of latent diffusion take steps of equal length in the time of the whole schedule on [0, 1]. A path is
the part of a schedule down to a finite log-SNR and has a time of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.embeddings import Embeddings
from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.gaussian.diffusion import T_DECODE, GaussianDiffusion
from logosphere.processes.gaussian.latent import LatentDiffusion
from logosphere.processes.gaussian.updates import MIN_LEVEL, Update, ancestral, ddim
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Evaluate, PointwiseStepper, PredictionUse, Requirement, Stepper, require
from logosphere.types import Float, State, Times

GAUSSIAN = Requirement(
    "Gaussian diffusion such as plaid or gaussian-ce", lambda process: isinstance(process, GaussianDiffusion)
)
LATENT = Requirement("latent diffusion such as tencdm or ld4lg", lambda process: isinstance(process, LatentDiffusion))

X0Target = Callable[[GaussianDiffusion, Tensor, State, Tensor, Noise], State]
"""(process, prediction, z, t, noise) -> the clean state to move towards, for the evaluated positions."""


def expected_x0(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂, the posterior mean."""
    return process.predict_x0(out, z, t)


def sampled_x0(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """The embedding of a token drawn from p(x | z) (SSD-LM's projection by sampling)."""
    if process.predicts_states or not isinstance(process.codec, Embeddings):
        raise UserError("This sampler draws tokens in every step and needs a network that predicts tokens.")
    return process.codec.rows(categorical(out, noise.uniform(len(out))))


def rounded_x0(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """The embedding nearest to x̂ (Li et al. 2022: the clamping trick)."""
    if not isinstance(process.codec, Embeddings):
        raise UserError("This sampler rounds states to tokens and needs one embedding per token; use ancestral.")
    return process.codec.rows(process.codec.nearest(process.predict_x0(out, z, t)))


def renormalised_x0(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂ rescaled to the common length of the embeddings (Dieleman et al. 2022, CDCD)."""
    if not isinstance(process.codec, Embeddings) or process.codec.norm is None:
        raise UserError("This sampler rescales states and needs embeddings of one length; use ancestral.")
    return process.codec.norm * F.normalize(process.predict_x0(out, z, t), dim=-1)


def clipped_x0(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂ clipped to ±1, the range of bits (Chen et al. 2022, Bit Diffusion)."""
    return process.predict_x0(out, z, t).clamp(-1, 1)


@dataclass(frozen=True)
class ScoreTemperature:
    """x̂ that follows from ε̂/τ: (z - (z - α x̂)/τ)/α (Gulrajani and Hashimoto 2023, Plaid's score temperature)."""

    temperature: float

    def __call__(self, process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
        alpha, _ = process.alpha_sigma(t)
        clean = process.predict_x0(out, z, t)
        return (z - (z - alpha * clean) / self.temperature) / alpha.clamp_min(MIN_LEVEL)


@dataclass(frozen=True)
class GaussianStepper(PointwiseStepper):
    """Moves towards `x0_target`. With `ahead` a step goes that much further in time than the network is evaluated for
    (Chen et al. 2022). With `greedy` the last step takes the likeliest token instead of a draw.
    """

    needs = GAUSSIAN

    update: Update = ancestral
    x0_target: X0Target = expected_x0
    ahead: float = 0.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ahead < 1:
            raise UserError(f"ahead is a fraction of the time, at least 0 and below 1, not {self.ahead}.")

    def move(self, process: Process, out: Tensor, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        path = require(process, GaussianDiffusion, self.needs)
        if self.ahead:
            s = torch.where(s > 0, (s - self.ahead).clamp_min(T_DECODE), s)
        target = self.x0_target(path, out, z, t, noise)
        return path.apply_step(self.update, target, out, z, t, s, noise, greedy=self.greedy)


@dataclass(frozen=True)
class Heun(Stepper):
    """Heun's method: the mean of x̂ at both ends of a step; two evaluations per step, one in the last."""

    needs = GAUSSIAN

    @property
    def prediction_use(self) -> PredictionUse:
        return "means"

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = require(process, GaussianDiffusion, self.needs), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, moved = evaluate(z, t, where), z.clone()
        clean = path.predict_x0(out, z[where], t[where])
        moved[where] = path.apply_step(ddim, clean, out, z[where], t[where], s[where], noise.for_positions(where))
        again = where & (s > 0)
        if not again.any():
            return moved
        out_after = evaluate(moved, s, again)
        after = path.predict_x0(out_after, moved[again], s[again])
        mean = (clean[again[where]] + after) / 2
        moved[again] = path.apply_step(ddim, mean, out_after, z[again], t[again], s[again], noise.for_positions(again))
        return moved


class DPMSolverPP2M(Stepper):
    """DPM-Solver++ (2M) (Lu et al. 2022): x̂ extrapolated linearly from the step before; one evaluation per step."""

    needs = GAUSSIAN

    def __init__(self) -> None:
        self.last: Tensor | None = None
        """x̂ of the step before, and the length of that step in ℓ, infinite where there was none."""
        self.length: Tensor | None = None

    def begin_sampling(self) -> "Stepper":
        return DPMSolverPP2M()

    @property
    def prediction_use(self) -> PredictionUse:
        return "means"

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = require(process, GaussianDiffusion, self.needs), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, now, then = evaluate(z, t, where), t[where], s[where]
        clean = path.predict_x0(out, z[where], now)
        if self.last is None or self.length is None:
            self.last = torch.zeros_like(z)
            self.length = torch.full(t.shape, torch.inf, dtype=torch.float64, device=t.device)
        length = ((path.logsnr(then) - path.logsnr(now)) / 2).abs()
        weight = torch.where(length.isfinite(), length / (2 * self.length[where]), 0.0)[:, None].float()
        target = clean + weight * (clean - self.last[where])
        moved, last, lengths = z.clone(), self.last.clone(), self.length.clone()
        moved[where] = path.apply_step(ddim, target, out, z[where], now, then, noise.for_positions(where))
        last[where], lengths[where] = clean, length
        self.last, self.length = last, lengths
        return moved


# ---- latent diffusion ------------------------------------------------------------------------------------------------


def path_time(path: GaussianDiffusion, t: float) -> float:
    """The time of the path's schedule at which the whole schedule has the time t, or the nearest on the path."""
    return float(path.schedule.restricted_time(torch.tensor(t, dtype=torch.float64)).clamp(0, 1))


@dataclass(frozen=True)
class EvenTimes:
    """n equally spaced times 1, …, end + (1 - end)/n of the whole schedule; after the last the latents are decoded."""

    path: GaussianDiffusion
    end: float = 0.0

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        own = self.path.schedule.restricted_time(torch.linspace(1, self.end, steps + 1, dtype=torch.float64)).clamp(
            0, 1
        )
        times = (T_DECODE + (1 - T_DECODE) * own).float()
        times[0], times[-1] = 1.0, 0.0
        return times


@dataclass(frozen=True)
class EulerMaruyama(PointwiseStepper):
    """The reverse SDE (Song et al. 2021) by Euler's method: TEncDM and COSMOS.

        z' = z + (½ β z + β score) dt + √(β dt) ε,    score = (α x̂ - z)/σ²,    β = -d log α²/dt = σ² · (-dλ/dt)

    The last step goes to the time `end` of the whole schedule and returns its mean. β is that of the time `latest` for
    all later times, because it is infinite at t = 1.
    """

    needs = LATENT

    end: float
    latest: float = 0.95

    def move(self, process: Process, out: Tensor, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        path = require(process, LatentDiffusion, self.needs)
        own, next_own = ((time.double() - T_DECODE) / (1 - T_DECODE) for time in (t, s))
        is_last = s == 0
        step = (own - torch.where(is_last, path_time(path, self.end), next_own))[:, None].clamp_min(0)
        early = own.clamp_max(path_time(path, self.latest))
        variance = (torch.sigmoid(-path.schedule.logsnr(early)) * path.schedule.slope(early))[:, None] * step
        alpha, sigma = path.alpha_sigma(t)
        score = (alpha * path.predict_x0(out, z, t) - z) / sigma.square()
        mean = z + variance.float() * (z / 2 + score)
        return torch.where(is_last[:, None], mean, mean + variance.sqrt().float() * noise.normal(*z.shape))
