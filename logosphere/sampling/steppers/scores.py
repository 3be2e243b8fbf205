"""Steps on scores as SEDD takes them (Lou et al. 2024): ratios s_y = p_t(y)/p_t(z) keep the mass the network gave them.

    Euler      p(y) = [y = z] + τ (r_t(z) s_y - [y = z] Σ_k r_t(z) s_k)
    analytic   p(y) = (s_y - b_ts(y) Σ_k s_k) (a_s/a_t) · q(z_t = z | z_s = y)

Ratios of a network need not come from any distribution over tokens. `Leaping` and the ancestral step normalise them
first, these two do not: where the ratios at a mask add up to more than they should, more masks are lifted. Large steps
can make entries negative; these count as 0, and what is left is normalised.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.sampling.steppers.jumps import jumping
from logosphere.types import Float, Logits, State, Times

Mass = Float[Tensor, "N K"]


def ratios(process: DiscreteDiffusion, out: Logits, z: State, t: Float[Tensor, " N"]) -> Mass:
    """p_t(y)/p_t(z) for every state y, 1 at y = z: the network's own where it predicts ratios, else those of x̂."""
    mixing, own = process.mixing, z[:, None]
    if process.parameterization.normalised:
        q = mixing.marginal(process.context_probs(out, z, t), t)
        return q / q.gather(1, own)
    found = F.pad(out.exp(), (0, int(mixing.has_mask)))
    return found.scatter(1, own, 1.0)


def euler_step(process: DiscreteDiffusion, score: Mass, z: State, t: Tensor, s: Tensor) -> Mass:
    """Probabilities of z_s by one Euler step of the backward rates."""
    mixing, own = process.mixing, z[:, None]
    rate = torch.where(mixing.is_mask(z), mixing.mask_rate(t), mixing.uniform_rate(t)) * (t - s)
    moved = (rate[:, None] * score).scatter(1, own, 0.0)
    return moved.scatter(1, own, 1 - moved.sum(1, keepdim=True)).clamp_min(0)


def analytic_step(process: DiscreteDiffusion, score: Mass, z: State, t: Tensor, s: Tensor) -> Mass:
    """Probabilities of z_s by Tweedie's formula: the inverse of the noise from s to t applied to the score."""
    mixing, states = process.mixing, torch.arange(score.shape[1], device=z.device).expand(len(z), -1)
    stayed, added = mixing.transition(states, t[:, None], s[:, None])
    earlier = (score.double() - added * score.double().sum(1, keepdim=True)) / stayed
    into = stayed * (states == z[:, None]) + added.gather(1, z[:, None])
    return (earlier * into).clamp_min(0)


@dataclass(frozen=True)
class Scored(Stepper):
    """Euler or analytic steps on raw scores; the last step, to t = 0, is always analytic and never leaves a mask.

    At times without any signal, where no ratio says anything, the step is the ancestral one.
    """

    analytic: bool = False

    def check(self, process: Process) -> None:
        jumping(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = jumping(process)
        where = path.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, here, late, early = ask(z, t, where), z[where], t[where].double(), s[where].double()
        blind = path.mixing.signal(late) == 0
        late = torch.where(blind, (late + early) / 2, late)
        score = ratios(path, out, here, late.to(out.dtype)).double()
        mass = analytic_step(path, score, here, late, early)
        if not self.analytic:
            mass = torch.where(early[:, None] > 0, euler_step(path, score, here, late, early), mass)
        if path.mask is not None:
            mass[early == 0, path.mask] = 0.0
        drawn = categorical(mass.log(), noise.for_positions(where).uniform(len(mass)))
        if bool(blind.any()):
            plain = path.step(out, here, t[where], s[where], noise.for_positions(where))
            drawn = torch.where(blind, plain, drawn)
        return z.masked_scatter(where, drawn)
