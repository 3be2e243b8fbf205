"""Remasking by choice: write the whole sequence, then hide the n = ceil((1 - a_s) L) most doubtful positions.

What is doubtful:
    a second network says so      G-Star (Meshchaninov et al. 2025): logits of "this token is wrong", at all positions
    it was unlikely when drawn    conf-star
    it is unlikely now            P2 (Peng et al. 2025), planned by the denoiser: it judges all tokens in each step

With doubts/τ + Gumbel noise as scores, τ → ∞ is Star (with exact counts) and τ = 0 is strict, which costs variety.
None of these is a draw from the model.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import (
    Ask,
    Stepper,
    best,
    log_probability,
    masked,
    moving,
    perturbed,
    still_hidden,
)
from logosphere.types import Float, State, Times, Tokens

Critic = Callable[[Tokens], Float[Tensor, "B L"]]
"""Tokens -> logits of being wrong."""


class Rewriting(Stepper):
    """Write everything, hide the worst. With `review` tokens are judged anew in each step, not only when drawn."""

    def __init__(self, critic: Critic | None = None, *, temperature: float = 1.0, review: bool = False):
        if temperature < 0:
            raise UserError(f"The temperature of remasking must not be negative, not {temperature}.")
        self.critic, self.temperature, self.review = critic, temperature, review
        self.unfiltered = review  # filters would keep of a written token's prediction the token alone
        self.surety: Tensor | None = None
        self._asked = 0

    def session(self) -> Stepper:
        return Rewriting(self.critic, temperature=self.temperature, review=self.review)

    def check(self, process: Process) -> None:
        masked(process)

    @property
    def asked(self) -> int:
        return self._asked

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        schedule, mask = masked(process)
        active = moving(t, s)
        where = active if self.review else active & (z == mask)
        surety = torch.zeros(z.shape, dtype=torch.float64, device=z.device) if self.surety is None else self.surety
        if where.any():
            out = ask(z, t, where)
            if self.review:  # what a token says of itself is no judgement of it
                out = out - process.add_evidence(torch.zeros_like(out), z[where], t[where])
            drawn = categorical(out, noise.for_positions(where).uniform(len(out)))
            z = torch.where(z == mask, z.masked_scatter(where, drawn), z)
            surety = surety.masked_scatter(where, log_probability(out, z[where]).double())
        self.surety = surety
        count = still_hidden(schedule.noise, s, active)
        if not count.any():
            return z
        doubt = torch.where(active, self._doubt(z, surety), -torch.inf)
        return torch.where(active & best(perturbed(doubt, self.temperature, noise), count), mask, z)

    def _doubt(self, written: Tokens, surety: Float[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        if self.critic is None:
            return -surety
        self._asked += len(written)
        with torch.no_grad():
            return self.critic(written).double()
