"""Steppers of discrete diffusion: τ-leaping, steps on raw scores, and self-correction.

Noise jumps to j at the rate r_t(j) from every state (processes/discrete/mixing.py). With time reversed,

    rate(z → y) = r_t(z) q_t(y | x̂) / q_t(z | x̂),

the score of SEDD for the predicted token x̂. In time τ a position jumps with probability 1 - exp(-τ Σ rate), to a
state drawn in proportion to the rates: τ-leaping (Campbell et al. 2022, τLDR) with at most one jump per position, which
unlike Euler's 1 + τ·rate always gives probabilities.

SEDD's own steps (Lou et al. 2024) use the ratios s_y = p_t(y)/p_t(z) that the network predicts without normalisation:

    Euler      p(y) = [y = z] + τ (r_t(z) s_y - [y = z] Σ_k r_t(z) s_k)
    analytic   p(y) = (s_y - b_ts(y) Σ_k s_k) (a_s/a_t) · q(z_t = z | z_s = y)

These ratios need not belong to any distribution over tokens. `TauLeaping` and the ancestral step normalise them first,
these two do not: where the ratios at a mask add up to more than they should, more positions are unmasked. Large steps
can make entries negative; these count as 0, and the rest is normalised.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Evaluate, Requirement, Stepper, is_active, require
from logosphere.sampling.steppers.unmasking import log_probability, select_best, unpack
from logosphere.types import Float, Logits, Positions, State, Times

DISCRETE = Requirement(
    "discrete diffusion such as mdlm or udlm", lambda process: isinstance(process, DiscreteDiffusion)
)
UNIFORM = Requirement(
    "uniform diffusion such as udlm or gidd",
    lambda process: isinstance(process, DiscreteDiffusion) and process.guides_transitions,
)

Mass = Float[Tensor, "N K"]


# ---- τ-leaping -------------------------------------------------------------------------------------------------------


def forward_rates(process: DiscreteDiffusion, z: State, t: Float[Tensor, " N"]) -> Mass:
    """The rates z → j of noise at time t, 0 at j = z; the mask is the last state."""
    mixing = process.mixing
    rates = mixing.uniform_rate(t)[:, None].expand(-1, mixing.vocab_size)
    if mixing.has_mask:
        rates = torch.cat([rates, mixing.mask_rate(t)[:, None]], 1)
    return rates.scatter(1, z[:, None], 0.0)


def backward_rates(process: DiscreteDiffusion, out: Logits, z: State, t: Float[Tensor, " N"]) -> Mass:
    """The rates z → y of the model, 0 at y = z."""
    mixing, own = process.mixing, z[:, None]
    q = mixing.marginal(process.parameterization.context_probs(mixing, out, z, t), t)
    into = torch.where(mixing.is_mask(z), mixing.mask_rate(t), mixing.uniform_rate(t))[:, None]
    return torch.where(into > 0, into * q / q.gather(1, own), 0.0).scatter(1, own, 0.0)


def leap(z: State, rates: Mass, duration: Float[Tensor, " N"], noise: Noise) -> State:
    """At most one jump."""
    jumps = noise.uniform(len(z)) < -torch.expm1(-(rates.sum(1) * duration).double())
    z = z.clone()
    z[jumps] = categorical(rates[jumps].log(), noise.for_positions(jumps).uniform(int(jumps.sum())))
    return z


@dataclass(frozen=True)
class TauLeaping(Stepper):
    """A leap back from t to s (predictor), then `corrections` leaps at s with the sum of both rates (corrector).

    The stationary distribution of forward and backward rates together is q_s, so a corrector reduces the error of the
    leaps. Each costs one evaluation and lasts `duration` times the step. The last step is the ancestral one, because
    no rate is finite at t = 0.
    """

    needs = DISCRETE

    corrections: int = 0
    duration: float = 0.5

    def __post_init__(self) -> None:
        if self.corrections < 0 or self.duration <= 0:
            raise UserError(
                f"A corrector needs corrections >= 0 and duration > 0, not {self.corrections} and {self.duration}."
            )

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = require(process, DiscreteDiffusion, self.needs)
        moving = t > s
        ends = moving & (s == 0)
        where = path.needs_prediction(z, moving)
        if where.any():
            out, before = evaluate(z, t, where), z
            z = z.clone()
            first = t[where] == 1  # no rate is finite at t = 1 either, where uniform states carry no information
            exact = (ends[where]) | first
            rates = backward_rates(path, out, before[where], torch.where(first, 0.5, t[where]))
            leapt = leap(before[where], rates, (t - s)[where], noise.for_positions(where))
            z[where] = torch.where(
                exact, path.step(out, before[where], t[where], s[where], noise.for_positions(where)), leapt
            )
        for _ in range(self.corrections):
            z = self._correct(path, evaluate, z, t, s, moving & ~ends, noise)
        return z

    def _correct(
        self,
        path: DiscreteDiffusion,
        evaluate: Evaluate,
        z: State,
        t: Times,
        s: Times,
        among: Positions,
        noise: Noise,
    ) -> State:
        where = path.needs_prediction(z, among)
        if not among.any():
            return z
        rates = torch.zeros(*z.shape, path.codec.states, dtype=s.dtype, device=s.device)
        rates[among] = forward_rates(path, z[among], s[among])
        if where.any():
            rates[where] = rates[where] + backward_rates(path, evaluate(z, s, where), z[where], s[where])
        moved = z.clone()
        moved[among] = leap(z[among], rates[among], (self.duration * (t - s))[among], noise.for_positions(among))
        return moved


# ---- raw scores ------------------------------------------------------------------------------------------------------


def ratios(process: DiscreteDiffusion, out: Logits, z: State, t: Float[Tensor, " N"]) -> Mass:
    """p_t(y)/p_t(z) for every state y, 1 at y = z: those of the network where it predicts ratios, else those of x̂."""
    mixing, own = process.mixing, z[:, None]
    if not process.predicts_ratios:
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
class ScoreStepper(Stepper):
    """Euler or analytic steps on raw scores; the last step, to t = 0, is always analytic and leaves no mask.

    At times without signal, where ratios carry no information, the step is the ancestral one.
    """

    needs = DISCRETE

    analytic: bool = False

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = require(process, DiscreteDiffusion, self.needs)
        where = path.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, here, late, early = evaluate(z, t, where), z[where], t[where].double(), s[where].double()
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


# ---- self-correction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelfCorrecting(Stepper):
    """Changes one token per step while the time is held near 0 (von Rütte et al. 2025, GIDD, section 5.4).

    All tokens are drawn at a low temperature, and the change of the highest probability is kept. It is hill climbing;
    the result is no sample from the model distribution.
    """

    needs = UNIFORM

    temperature: float = 0.1

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, active = require(process, DiscreteDiffusion, self.needs), is_active(t, s)
        if not active.any():
            return z
        out = path.add_evidence(
            path.parameterization.context_probs(path.mixing, evaluate(z, t, active), z[active], t[active]).log(),
            z[active],
            t[active],
        )
        drawn = categorical(out / self.temperature, noise.for_positions(active).uniform(len(out)))
        proposed = z.masked_scatter(active, drawn)
        confidence = unpack(active, log_probability(out, drawn), -torch.inf)
        confidence = torch.where(proposed != z, confidence, -torch.inf)
        changed = select_best(confidence, torch.ones_like(z[:, :1])) & (proposed != z)
        return torch.where(changed, proposed, z)
