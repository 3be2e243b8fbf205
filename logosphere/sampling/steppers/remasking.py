"""Remasking by chance (Wang et al. 2025, ReMDM): tokens may be hidden again, so that errors can be mended.

For any 0 <= σ <= min(1, (1 - a_s)/a_t) the step

    z_t = x:     z_s = mask with probability σ
    z_t = mask:  z_s = x̂ with probability (a_s - (1 - σ) a_t) / (1 - a_t)

keeps the marginals q(z_s | x) of masked diffusion (eq. 7), so a model trained as MDLM may be sampled with any σ.
σ = 0 is the ancestral step; σ = 1 - a_s hides every position afresh, whatever z_t was: that is Star. Positions hidden
together are drawn independently, and remasking does so again and again: with cap, rescale and Star the error falls with
the number of steps n only like 1/√n, where that of the ancestral step falls like 1/n.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper, log_probability, masked, moving
from logosphere.types import Float, State, Times

Level = Float[Tensor, "..."]
Sigma = Callable[[Level, Level, Level], Level]
"""(1 - a_t, 1 - a_s, log-probability of each token when it was drawn, inf where there is none) -> σ."""


def largest(noise_t: Level, noise_s: Level) -> Level:
    """min(1, (1 - a_s)/a_t); where nothing is left of the data (a_t = 0) there is nothing to hide, and 1 is allowed."""
    return torch.where(noise_s < 1 - noise_t, noise_s / (1 - noise_t), 1.0)


def chances(sigma: Level, noise_t: Level, noise_s: Level) -> tuple[Level, Level]:
    """The probabilities that a token is hidden and that a mask is lifted."""
    lifted = (noise_t - noise_s + sigma * (1 - noise_t)) / noise_t
    return sigma, torch.where(noise_t > 0, lifted, 0.0)


@dataclass(frozen=True)
class Cap:
    """σ = min(η, σ_max)."""

    eta: float = 0.04

    def __post_init__(self) -> None:
        _check(self.eta)

    def __call__(self, noise_t: Level, noise_s: Level, surety: Level) -> Level:
        return largest(noise_t, noise_s).clamp_max(self.eta)


@dataclass(frozen=True)
class Rescale:
    """σ = η σ_max; η = 1 remasks as much as the marginals allow."""

    eta: float = 0.05

    def __post_init__(self) -> None:
        _check(self.eta)

    def __call__(self, noise_t: Level, noise_s: Level, surety: Level) -> Level:
        return self.eta * largest(noise_t, noise_s)


@dataclass(frozen=True)
class Doubtful:
    """σ_l = σ_max softmax_l(-p_l), p_l the probability of token l when it was drawn (ReMDM-conf).

    Masks are lifted no more often for it, so that a little more stays hidden than the schedule says until the end.
    """

    def __call__(self, noise_t: Level, noise_s: Level, surety: Level) -> Level:
        share = (-surety.exp()).softmax(1).nan_to_num(0.0)  # nothing is revealed: nothing to share
        return largest(noise_t, noise_s) * share


def fresh(noise_t: Level, noise_s: Level, surety: Level) -> Level:
    """σ = 1 - a_s: Star."""
    return noise_s


def forward_backward(noise_t: Level, noise_s: Level, surety: Level) -> Level:
    """σ = (a_s - a_t)/a_t: a step twice as far, and forward again (the corrector of Campbell et al. 2022)."""
    most = largest(noise_t, noise_s)
    return torch.where(noise_t < 1, torch.minimum((noise_t - noise_s) / (1 - noise_t), most), most)


class Remasking(Stepper):
    """The step above, with σ by a rule; positions that are known stay."""

    def __init__(self, sigma: Sigma | None = None):
        self.sigma: Sigma = Cap() if sigma is None else sigma
        self.surety: Tensor | None = None

    def session(self) -> Stepper:
        return Remasking(self.sigma)

    def check(self, process: Process) -> None:
        masked(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        schedule, mask = masked(process)
        active, hidden = moving(t, s), z == mask
        surety = torch.zeros(z.shape, dtype=torch.float64, device=z.device) if self.surety is None else self.surety
        noise_t, noise_s = schedule.noise(t.double()), schedule.noise(s.double())
        sigma = self.sigma(noise_t, noise_s, torch.where(active & ~hidden, surety, torch.inf))
        hide, lift = chances(sigma, noise_t, noise_s)
        u = noise.uniform(*z.shape)
        where, lost = active & hidden, active & ~hidden & (u < hide)
        moved = torch.where(lost, mask, z)
        if where.any():
            lifted = where & (u < lift)
            out = ask(z, t, where)[lifted[where]]
            drawn = categorical(out, noise.for_positions(lifted).uniform(len(out)))
            moved[lifted] = drawn
            self.surety = surety.masked_scatter(lifted, log_probability(out, drawn).double())
        return moved


def _check(eta: float) -> None:
    if not 0 <= eta <= 1:
        raise UserError(f"The strength of remasking must lie between 0 and 1, not at {eta}.")
