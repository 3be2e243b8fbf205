"""Discrete diffusion as a jump process: leaps over a stretch of time at the rates of its beginning.

The forward rate from y to j is β_t(j) with β = -a'/a on the mask, or -a'/(a V) on every token. Time turned around,

    rate(z → y) = β_t(z) q_t(y | x̂) / q_t(z | x̂),

the score of SEDD made of the predicted token x̂. In time τ a position jumps with probability 1 - exp(-τ Σ rate), to
a state drawn in proportion to the rates: τ-leaping (Campbell et al. 2022, τLDR) with at most one jump for a position,
which unlike Euler's 1 + τ·rate never leaves the probabilities.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.noise import Noise, categorical
from logosphere.processes.base import Process
from logosphere.processes.interpolating import Interpolating
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.shapes import Float
from logosphere.types import Logits, State, Times


def jumping(process: Process) -> Interpolating:
    """The process as a jump process, or a sentence."""
    if not isinstance(process, Interpolating):
        raise UserError("This sampler makes jumps and needs discrete diffusion such as mdlm; use ancestral here.")
    return process


def forward_rates(process: Interpolating, z: State, t: Float[Tensor, "N"]) -> Float[Tensor, "N K"]:
    """The rates z → j of noise at time t, 0 at j = z; the mask is the last state."""
    speed = process.schedule.slope(t) / process.schedule.signal(t)
    if process.mask is None:
        rates = (speed / process.vocab_size)[:, None].expand(-1, process.vocab_size)
    else:
        rates = torch.zeros(len(z), process.vocab_size + 1, dtype=t.dtype, device=t.device)
        rates[:, process.mask] = speed
    return rates.scatter(1, z[:, None], 0.0)


def backward_rates(process: Interpolating, out: Logits, z: State, t: Float[Tensor, "N"]) -> Float[Tensor, "N K"]:
    """The rates z → y of the model, 0 at y = z."""
    slope, noise = process.schedule.slope(t)[:, None], process.schedule.noise(t)[:, None]
    if process.mask is not None:
        rates = torch.where((z == process.mask)[:, None], slope / noise * out.softmax(-1), 0.0)
        return torch.nn.functional.pad(rates, (0, 1))
    alone = (out - process.inform(torch.zeros_like(out), z, t)).softmax(-1)
    signal, own = process.schedule.signal(t)[:, None], z[:, None]
    q = signal * alone + noise / process.vocab_size
    rates = slope / signal / process.vocab_size * q / q.gather(1, own)
    return rates.scatter(1, own, 0.0)


def leap(z: State, rates: Float[Tensor, "N K"], duration: Float[Tensor, "N"], noise: Noise) -> State:
    """At most one jump."""
    jumps = noise.uniform(len(z)) < -torch.expm1(-(rates.sum(1) * duration).double())
    z = z.clone()
    z[jumps] = categorical(rates[jumps].log(), noise.uniform(int(jumps.sum())))
    return z


@dataclass(frozen=True)
class Leaping(Stepper):
    """A leap back from t to s (predictor), then `corrections` leaps at s with the sum of both rates (corrector).

    Forward and backward rates together have q_s as their stationary law, so a corrector repairs what leaps have broken;
    each costs an evaluation and lasts `duration` times the step. The last step is the posterior's, as no rate is finite
    at t = 0.
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
        where = path.wanted(z, falls)
        if where.any():
            out, before = ask(z, t, where), z
            z = z.clone()
            first = t[where] == 1  # no rate is finite at t = 1 either, where uniform states know nothing
            exact = (ends[where]) | first
            rates = backward_rates(path, out, before[where], torch.where(first, 0.5, t[where]))
            leapt = leap(before[where], rates, (t - s)[where], noise)
            z[where] = torch.where(exact, path.step(out, before[where], t[where], s[where], noise), leapt)
        for _ in range(self.corrections):
            z = self._corrected(path, ask, z, t, s, falls & ~ends, noise)
        return z

    def _corrected(
        self, path: Interpolating, ask: Ask, z: State, t: Times, s: Times, among: Tensor, noise: Noise
    ) -> State:
        where = path.wanted(z, among)
        if not among.any():
            return z
        rates = torch.zeros(*z.shape, path.codec.states, dtype=s.dtype, device=s.device)
        rates[among] = forward_rates(path, z[among], s[among])
        if where.any():
            rates[where] = rates[where] + backward_rates(path, ask(z, s, where), z[where], s[where])
        moved = z.clone()
        moved[among] = leap(z[among], rates[among], (self.duration * (t - s))[among], noise)
        return moved
