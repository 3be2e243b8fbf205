"""Steppers of Gaussian diffusion. All of them go to the end of the path and read the token off there.

Between times they move by a rule of processes.gaussian.updates towards an aim, or solve the probability flow

    z' = (σ'/σ) z + σ' ∫ e^ℓ x̂ dℓ,    ℓ = λ/2 = log α/σ

to second order, with what the network said a step before (DPM-Solver++ 2M) or with a second look (Heun).
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
from logosphere.processes.gaussian.parameterization import MIN_LEVEL
from logosphere.processes.gaussian.updates import Update, ancestral, ddim
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.types import State, Times

Aim = Callable[[GaussianDiffusion, Tensor, State, Tensor, Noise], State]
"""(process, prediction, z, t, noise) -> the clean state to go to, for the positions asked about."""


def expected(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂, the mean."""
    return process.predict_x0(out, z, t)


def drawn(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """The point of a token drawn from p(x | z) (SSD-LM's projection by sampling)."""
    if not process.predicts_tokens or not isinstance(process.codec, Embeddings):
        raise UserError("This sampler draws tokens in every step; use it with networks that predict tokens.")
    return process.codec.rows(categorical(out, noise.uniform(len(out))))


def rounded(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """The row nearest to x̂ (Li et al. 2022: the clamping trick)."""
    if not isinstance(process.codec, Embeddings):
        raise UserError("Only states of single tokens can be rounded to them; use another sampler.")
    return process.codec.rows(process.codec.nearest(process.predict_x0(out, z, t)))


def renormalised(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂ at the length that all embeddings have (Dieleman et al. 2022, CDCD)."""
    if not isinstance(process.codec, Embeddings) or process.codec.norm is None:
        raise UserError("Only embeddings of one length can be brought to it; use another sampler.")
    return process.codec.norm * F.normalize(process.predict_x0(out, z, t), dim=-1)


def clipped(process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
    """x̂ within ±1, as far as bits go (Chen et al. 2022, Bit Diffusion)."""
    return process.predict_x0(out, z, t).clamp(-1, 1)


@dataclass(frozen=True)
class Tempered:
    """x̂ that follows from ε̂/τ: (z - (z - α x̂)/τ)/α (Gulrajani and Hashimoto 2023, Plaid's score temperature)."""

    temperature: float

    def __call__(self, process: GaussianDiffusion, out: Tensor, z: State, t: Tensor, noise: Noise) -> State:
        alpha, _ = process.alpha_sigma(t)
        clean = process.predict_x0(out, z, t)
        return (z - (z - alpha * clean) / self.temperature) / alpha.clamp_min(MIN_LEVEL)


def gaussian(process: Process) -> GaussianDiffusion:
    """A Gaussian diffusion, of latents too, or a sentence."""
    if not isinstance(process, GaussianDiffusion):
        raise UserError(
            "This sampler needs Gaussian diffusion such as plaid or gaussian-ce; use the ancestral sampler here."
        )
    return process


@dataclass(frozen=True)
class Directed(Stepper):
    """Moves towards an aim. With `ahead` it goes that much time further than the network is told (Chen et al. 2022).

    With `greedy` the last step takes the likeliest token instead of a draw.
    """

    move: Update = ancestral
    aim: Aim = expected
    ahead: float = 0.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ahead < 1:
            raise UserError(f"A step goes ahead by a share of the time from 0 to below 1, not {self.ahead}.")

    def check(self, process: Process) -> None:
        gaussian(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = gaussian(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, now, then = ask(z, t, where), t[where], s[where]
        if self.ahead:
            then = torch.where(then > 0, (then - self.ahead).clamp_min(T_DECODE), then)
        moved = z.clone()
        packed = noise.for_positions(where)
        aim = self.aim(path, out, z[where], now, packed)
        moved[where] = path.apply_step(self.move, aim, out, z[where], now, then, packed, greedy=self.greedy)
        return moved


@dataclass(frozen=True)
class Heun(Stepper):
    """Heun's method: the mean of x̂ at both ends of a step; two looks at the network for each but the last."""

    def check(self, process: Process) -> None:
        gaussian(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = gaussian(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, moved = ask(z, t, where), z.clone()
        clean = path.predict_x0(out, z[where], t[where])
        moved[where] = path.apply_step(ddim, clean, out, z[where], t[where], s[where], noise.for_positions(where))
        again = where & (s > 0)
        if not again.any():
            return moved
        seen = ask(moved, s, again)
        after = path.predict_x0(seen, moved[again], s[again])
        mean = (clean[again[where]] + after) / 2
        moved[again] = path.apply_step(ddim, mean, seen, z[again], t[again], s[again], noise.for_positions(again))
        return moved


class Multistep(Stepper):
    """DPM-Solver++ (2M) (Lu et al. 2022): x̂ continued in a straight line from the step before; one look a step."""

    def __init__(self) -> None:
        self.last: Tensor | None = None
        """x̂ of the step before, and how long that was in ℓ; where there was none it was as if infinitely long."""
        self.length: Tensor | None = None

    def check(self, process: Process) -> None:
        gaussian(process)

    def session(self) -> "Stepper":
        return Multistep()

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = gaussian(process), process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, now, then = ask(z, t, where), t[where], s[where]
        clean = path.predict_x0(out, z[where], now)
        if self.last is None or self.length is None:
            self.last = torch.zeros_like(z)
            self.length = torch.full(t.shape, torch.inf, dtype=torch.float64, device=t.device)
        length = ((path.logsnr(then) - path.logsnr(now)) / 2).abs()
        share = torch.where(length.isfinite(), length / (2 * self.length[where]), 0.0)[:, None].float()
        aim = clean + share * (clean - self.last[where])
        moved, last, lengths = z.clone(), self.last.clone(), self.length.clone()
        moved[where] = path.apply_step(ddim, aim, out, z[where], now, then, noise.for_positions(where))
        last[where], lengths[where] = clean, length
        self.last, self.length = last, lengths
        return moved
