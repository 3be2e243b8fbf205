"""Steppers of masked diffusion that only unmask: first hitting and ordered unmasking.

Ordered unmasking draws a token at every masked position, commits the best and leaves the others masked. It gives good
text in few steps, but no samples from the model distribution: it prefers likely tokens. MaskGIT (Chang et al. 2022),
LLaDA (Nie et al. 2025) and Dream (Ye et al. 2025) commit fixed counts by three orders; a threshold (Wu et al. 2025,
Fast-dLLM) and a budget of entropy (Ben-Hamu et al. 2025, EB) adapt the count.

On the sphere any-order diffusion has positions at the start or at a vertex (processes/spherical/times.py). The
predictions at the start are used like those at masks, by the same orders.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.capabilities import Unmasking
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise, categorical, running_sum
from logosphere.sampling.steppers.base import (
    Evaluate,
    JointDraws,
    PredictionUse,
    Requirement,
    Stepper,
    draw_tokens,
    require,
)
from logosphere.types import Float, Int64, Logits, Positions, State, Times


def _is_masked(process: Process) -> bool:
    return isinstance(process, DiscreteDiffusion) and process.unmasks_tokens


MASKED = Requirement("masked diffusion such as mdlm", _is_masked)
MASKED_TIME_FREE = Requirement("masked diffusion without time conditioning such as mdlm", _is_masked)
UNMASKING = Requirement(
    "masked diffusion such as mdlm, or rdlm-heat with path=any-order and without base",
    lambda process: isinstance(process, Unmasking) and process.unmasks_tokens,
)

MIN_LOG_P = -100.0
"""Smaller log-probabilities add nothing to an entropy, but 0 · (-inf) is not a number."""


# ---- counts and scores ---------------------------------------------------------------------------------------------


def count_masked(process: Unmasking, s: Times, among: Positions) -> Int64[Tensor, "B 1"]:
    """ceil((1 - a_s) n): how many of the n positions `among` are still masked at time s."""
    fraction = process.masked_fraction(torch.where(among, s, 0.0).amax(1, keepdim=True))
    # Times are rounded to float32, so 7/13 of 13 may come out a little above 7 and must not become 8.
    return (fraction.double() * among.sum(1, keepdim=True) - 1e-4).ceil().long()


def unpack(where: Positions, values: Float[Tensor, " N"], fill: float) -> Float[Tensor, "B L"]:
    """Packed values at their positions."""
    return torch.full(where.shape, fill, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def gumbel_scores(scores: Float[Tensor, "B L"], temperature: float, noise: Noise) -> Float[Tensor, "B L"]:
    """scores/τ + Gumbel noise: the n best of them are n draws from softmax(scores/τ) without replacement.

    τ = 0 is the plain order (Kool et al. 2019).
    """
    if temperature == 0:
        return scores
    return scores.double() / temperature - (-noise.uniform(*scores.shape).log()).log()


def select_best(scores: Float[Tensor, "B L"], count: Int64[Tensor, "B 1"]) -> Positions:
    """The `count` positions of each row with the highest scores."""
    return scores.argsort(dim=1, descending=True, stable=True).argsort(1) < count


def log_probability(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log p of the drawn tokens."""
    return out.log_softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)


# ---- one position at a time, and ordered unmasking -------------------------------------------------------------------


@dataclass(frozen=True)
class FirstHitting(Stepper):
    """Unmasks one position chosen at random: no error of time discretisation (Zheng et al. 2024)."""

    needs = MASKED_TIME_FREE
    time_free = True
    keeps_tokens = True

    def steps(self, length: int, steps: int) -> int:
        return length

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out = evaluate(z, t, where)
        scores = torch.where(where, noise.uniform(*where.shape), -1.0)
        chosen = torch.zeros_like(where).scatter(1, scores.argmax(1, keepdim=True), True) & where
        z = z.clone()
        z[chosen] = categorical(out[chosen[where]], noise.for_positions(chosen).uniform(int(chosen.sum())))
        return z


first_hitting = FirstHitting()

Order = Callable[[Logits, Int64[Tensor, " N"]], Float[Tensor, " N"]]
"""(prediction, drawn tokens) -> score; the highest are committed first."""


def likelihood_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The log-probability of the drawn token (LLaDA's low-confidence remasking)."""
    return log_probability(out, drawn)


def margin_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The probability of the likeliest token minus that of the second (Dream's margin order)."""
    first, second = out.softmax(-1).topk(2, -1).values.unbind(-1)
    return first - second


def max_probability_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The log-probability of the likeliest token, whichever is drawn (the top-probability order of Kim et al. 2025)."""
    return out.log_softmax(-1).amax(-1)


def entropy_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The negative entropy of the prediction (Dream's entropy order)."""
    log_p = out.log_softmax(-1).clamp_min(MIN_LOG_P)
    return (log_p.exp() * log_p).sum(-1)


def random_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Equal scores; with temperature 1 a random order."""
    return torch.zeros_like(out[:, 0])


Count = Callable[[Float[Tensor, "B L"], Int64[Tensor, "B 1"]], Int64[Tensor, "B 1"]]
"""(scores in decreasing order, -inf after the last masked position; the count of the schedule) -> commits."""


def scheduled(scores: Float[Tensor, "B L"], due: Int64[Tensor, "B 1"]) -> Int64[Tensor, "B 1"]:
    """The count of the schedule."""
    return due


@dataclass(frozen=True)
class ThresholdCommit:
    """All tokens with more than this probability, and at least one (for `likelihood_order`)."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise UserError(f"The confidence threshold must be above 0 and below 1, not {self.probability}.")

    def __call__(self, scores: Tensor, due: Tensor) -> Tensor:
        return (scores.exp() > self.probability).sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class EntropyBudget:
    """The longest run of positions with Σ H - max H <= budget, in nats, and at least one (for `entropy_order`).

    Σ H - max H bounds the mutual information of positions that are committed together (Ben-Hamu et al. 2025, EB).
    """

    budget: float = 0.1

    def __post_init__(self) -> None:
        if not self.budget >= 0:
            raise UserError(f"The entropy budget must not be negative, not {self.budget}.")

    def __call__(self, scores: Tensor, due: Tensor) -> Tensor:
        entropy = -scores
        others = running_sum(entropy, 1) - entropy  # entropies rise, so the last of a run is its largest
        fits = (others <= self.budget) & entropy.isfinite()
        return fits.sum(1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class OrderedUnmasking(Stepper):
    """Commits the positions of the highest scores; `temperature` is that of the order, 0 for the plain order.

    With `greedy` the likeliest tokens are taken instead of drawn ones (LLaDA at temperature 0).
    """

    needs = UNMASKING
    keeps_tokens = True

    order: Order = likelihood_order
    count: Count = scheduled
    temperature: float = 0.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UserError(f"The temperature of the order must not be negative, not {self.temperature}.")

    @property
    def adaptive(self) -> bool:
        return self.count is not scheduled

    @property
    def prediction_use(self) -> PredictionUse:
        return "order"

    def steps(self, length: int, steps: int) -> int:
        return length if self.adaptive else steps

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """One time for all positions: which are unmasked is decided by the order."""
        return rows[:, None]

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        unmasking = require(process, Unmasking, self.needs)
        moving = t > s
        where = process.needs_prediction(z, moving)
        if not where.any():
            return z
        waiting = process.needs_prediction(z, t > 0)  # also those of later blocks, which do not move yet
        out = evaluate(z, unmasking.unmasking_times(t, waiting), where)
        independent = self.greedy and not isinstance(evaluate, JointDraws)
        drawn = out.argmax(-1) if independent else draw_tokens(evaluate, out, where, noise)
        scores = gumbel_scores(unpack(where, self.order(out, drawn), -torch.inf), self.temperature, noise)
        masked = where.sum(1, keepdim=True)
        due = (masked - count_masked(unmasking, s, moving)).clamp_min(0)
        count = self.count(scores.sort(1, descending=True).values, due)
        is_last = torch.where(moving, s, 0.0).amax(1, keepdim=True) == 0
        chosen = where & select_best(scores, torch.where(is_last, masked, count))
        clean = process.codec.encode(torch.zeros_like(where, dtype=torch.long).masked_scatter(where, drawn))
        return torch.where(chosen.view(*chosen.shape, *[1] * (z.dim() - 2)), clean, z)
