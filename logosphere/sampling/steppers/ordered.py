"""Ordered steppers: draw every hidden token, commit the best and hide the rest again.

They write good text in few steps, but what they write is not a draw from the model: they prefer what is likely.
MaskGIT (Chang et al. 2022), LLaDA (Nie et al. 2025) and Dream (Ye et al. 2025) are fixed counts by three orders; a
threshold (Wu et al. 2025, Fast-dLLM) and a budget of entropy (Ben-Hamu et al. 2025, EB) let the count adapt.

On the sphere, positions that take turns wait at the start or stand at their vertices (processes/spherical/any_order.py): a network
that knows such states answers about those that wait as about masks, and is read by the same orders.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.noise import Noise, categorical, running_sum
from logosphere.processes.base import Process
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.sampling.steppers.base import (
    Ask,
    Level,
    Stepper,
    best,
    field,
    log_probability,
    masked,
    perturbed,
    still_hidden,
)
from logosphere.shapes import Float, Int64
from logosphere.types import Logits, Positions, State, Times

Order = Callable[[Logits, Int64[Tensor, " N"]], Float[Tensor, " N"]]
"""(prediction, tokens drawn) -> score; the highest are committed first."""

CLIPPED = 100.0
"""Log-probabilities below -100 add nothing to an entropy, but 0 · (-inf) would spoil it."""


def likelihood_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The log-probability of the token drawn (LLaDA's low-confidence remasking)."""
    return log_probability(out, drawn)


def margin_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """How far the likeliest token is ahead of the second, in probability (Dream's margin order)."""
    first, second = out.softmax(-1).topk(2, -1).values.unbind(-1)
    return first - second


def entropy_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Minus the entropy: how little doubt there is, whatever was drawn (Dream's entropy order)."""
    log_p = out.log_softmax(-1).clamp_min(-CLIPPED)
    return (log_p.exp() * log_p).sum(-1)


def random_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """No preference; with temperature 1 a random order."""
    return torch.zeros_like(out[:, 0])


Count = Callable[[Float[Tensor, "B L"], Int64[Tensor, "B 1"]], Int64[Tensor, "B 1"]]
"""(scores from best to worst, -inf behind the last hidden position; what the schedule asks for) -> commits."""


def scheduled(falling: Float[Tensor, "B L"], due: Int64[Tensor, "B 1"]) -> Int64[Tensor, "B 1"]:
    """As many as the schedule asks for."""
    return due


@dataclass(frozen=True)
class Above:
    """All tokens of more than this probability, and at least one (for `likelihood_order`)."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise UserError(f"The threshold of confidence must lie between 0 and 1, not at {self.probability}.")

    def __call__(self, falling: Tensor, due: Tensor) -> Tensor:
        return (falling.exp() > self.probability).sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class WithinEntropy:
    """The longest run of positions with Σ H - max H <= budget, in nats, and at least one (for `entropy_order`).

    Σ H - max H bounds what positions committed together can have known of each other (Ben-Hamu et al. 2025, EB).
    """

    budget: float = 0.1

    def __post_init__(self) -> None:
        if not self.budget >= 0:
            raise UserError(f"The budget of entropy must not be negative, not {self.budget}.")

    def __call__(self, falling: Tensor, due: Tensor) -> Tensor:
        entropy = -falling
        others = running_sum(entropy, 1) - entropy  # entropies rise, so the last of a run is its largest
        fits = (others <= self.budget) & entropy.isfinite()
        return fits.sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class Ordered(Stepper):
    """Commit the best positions first; `temperature` is that of the order, 0 for the plain one.

    With `greedy` the likeliest tokens are taken instead of drawn ones (LLaDA at temperature 0).
    """

    order: Order = likelihood_order
    count: Count = scheduled
    temperature: float = 0.0
    greedy: bool = False

    def check(self, process: Process) -> None:
        _hiding(process)
        if self.temperature < 0:
            raise UserError(f"The temperature of the order must not be negative, not {self.temperature}.")

    @property
    def adaptive(self) -> bool:
        return self.count is not scheduled

    def steps(self, length: int, steps: int) -> int:
        return length if self.adaptive else steps

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """The common clock for all: whose turn it is, is what the order decides."""
        return rows[:, None]

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        falls = t > s
        where = process.needs_prediction(z, falls)
        if not where.any():
            return z
        out = ask(z, where.float() if isinstance(process, SphericalDiffusion) else t, where)
        drawn = out.argmax(-1) if self.greedy else categorical(out, noise.at(where).uniform(len(out)))
        scores = perturbed(field(where, self.order(out, drawn), -torch.inf), self.temperature, noise)
        hidden = where.sum(1, keepdim=True)
        due = (hidden - still_hidden(_hiding(process), s, falls)).clamp_min(0)
        count = self.count(scores.sort(1, descending=True).values, due)
        last = torch.where(falls, s, 0.0).amax(1, keepdim=True) == 0
        chosen = where & best(scores, torch.where(last, hidden, count))
        written = process.codec.encode(torch.zeros_like(where, dtype=torch.long).masked_scatter(where, drawn))
        return torch.where(chosen.view(*chosen.shape, *[1] * (z.dim() - 2)), written, z)


def _hiding(process: Process) -> Level:
    """Which share of the positions is hidden at a time, of a process that hides whole tokens; or a sentence."""
    if not isinstance(process, SphericalDiffusion):
        return masked(process)[0].noise
    if process.turns is None or process.turns.together > 1:
        raise UserError(
            "This sampler chooses whose turn it is, but positions of this model do not take turns by whole tokens; it "
            "needs masked diffusion such as mdlm, or rdlm-heat with path=any-order and no base. Use ancestral here."
        )
    return lambda t: t
