"""Discrete diffusion as a jump process: leaps over a stretch of time at the rates of its beginning.

Noise jumps to j at the rate r_t(j), wherever it stands (processes/discrete/mixing.py). With time turned around,

    rate(z → y) = r_t(z) q_t(y | x̂) / q_t(z | x̂),

the score of SEDD made of the predicted token x̂. In time τ a position jumps with probability 1 - exp(-τ Σ rate), to
a state drawn in proportion to the rates: τ-leaping (Campbell et al. 2022, τLDR) with at most one jump for a position,
which unlike Euler's 1 + τ·rate never leaves the probabilities.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.types import Float, Logits, State, Times


def jumping(process: Process) -> DiscreteDiffusion:
    """The process as a jump process, or a sentence."""
    if not isinstance(process, DiscreteDiffusion):
        raise UserError("This sampler makes jumps and needs discrete diffusion such as mdlm; use ancestral here.")
    return process


def forward_rates(process: DiscreteDiffusion, z: State, t: Float[Tensor, " N"]) -> Float[Tensor, "N K"]:
    """The rates z → j of noise at time t, 0 at j = z; the mask is the last state."""
    mixing = process.mixing
    rates = mixing.uniform_rate(t)[:, None].expand(-1, mixing.vocab_size)
    if mixing.has_mask:
        rates = torch.cat([rates, mixing.mask_rate(t)[:, None]], 1)
    return rates.scatter(1, z[:, None], 0.0)


def backward_rates(process: DiscreteDiffusion, out: Logits, z: State, t: Float[Tensor, " N"]) -> Float[Tensor, "N K"]:
    """The rates z → y of the model, 0 at y = z."""
    mixing, own = process.mixing, z[:, None]
    q = mixing.marginal(process.context_probs(out, z, t), t)
    into = torch.where(mixing.is_mask(z), mixing.mask_rate(t), mixing.uniform_rate(t))[:, None]
    return torch.where(into > 0, into * q / q.gather(1, own), 0.0).scatter(1, own, 0.0)


def leap(z: State, rates: Float[Tensor, "N K"], duration: Float[Tensor, " N"], noise: Noise) -> State:
    """At most one jump."""
    jumps = noise.uniform(len(z)) < -torch.expm1(-(rates.sum(1) * duration).double())
    z = z.clone()
    z[jumps] = categorical(rates[jumps].log(), noise.for_positions(jumps).uniform(int(jumps.sum())))
    return z


@dataclass(frozen=True)
class Leaping(Stepper):
    """A leap back from t to s (predictor), then `corrections` leaps at s with the sum of both rates (corrector).

    Forward and backward rates together have q_s as their stationary distribution, so a corrector repairs errors of
    leaps; each costs an evaluation and lasts `duration` times the step. The last step is the posterior's, as no rate
    is finite at t = 0.
    """

    corrections: int = 0
    duration: float = 0.5

    def check(self, process: Process) -> None:
        jumping(process)
        if self.corrections < 0 or self.duration <= 0:
            raise UserError("A corrector needs a number of corrections that is not negative and a duration above 0.")

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path = jumping(process)
        falls = t > s
        ends = falls & (s == 0)
        where = path.needs_prediction(z, falls)
        if where.any():
            out, before = ask(z, t, where), z
            z = z.clone()
            first = t[where] == 1  # no rate is finite at t = 1 either, where uniform states know nothing
            exact = (ends[where]) | first
            rates = backward_rates(path, out, before[where], torch.where(first, 0.5, t[where]))
            leapt = leap(before[where], rates, (t - s)[where], noise.for_positions(where))
            z[where] = torch.where(
                exact, path.step(out, before[where], t[where], s[where], noise.for_positions(where)), leapt
            )
        for _ in range(self.corrections):
            z = self._corrected(path, ask, z, t, s, falls & ~ends, noise)
        return z

    def _corrected(
        self, path: DiscreteDiffusion, ask: Ask, z: State, t: Times, s: Times, among: Tensor, noise: Noise
    ) -> State:
        where = path.needs_prediction(z, among)
        if not among.any():
            return z
        rates = torch.zeros(*z.shape, path.codec.states, dtype=s.dtype, device=s.device)
        rates[among] = forward_rates(path, z[among], s[among])
        if where.any():
            rates[where] = rates[where] + backward_rates(path, ask(z, s, where), z[where], s[where])
        moved = z.clone()
        moved[among] = leap(z[among], rates[among], (self.duration * (t - s))[among], noise.for_positions(among))
        return moved
