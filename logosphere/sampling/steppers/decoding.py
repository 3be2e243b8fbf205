"""The decoding loops of published masked models: LLaDA, Dream, SDAR, Fast-dLLM and Fast-dLLM v2.

A step draws a token at every masked position of the current block, scores it by a confidence, and commits some:

| loop | drawn from | confidence | committed |
|---|---|---|---|
| LLaDA | softmax(l/T) | p(token), without T, or random | masks // steps, the remainder in the first steps |
| Dream | the same with top-k and top-p | p(token) of that, its margin or negative entropy | floor(masks (1 - s/t)) |
| Dream, origin | the same | none | each with probability 1 - s/t |
| SDAR | the same | p(token) of that | all above the threshold, at least block // steps |
| Fast-dLLM | softmax(l/T) | p(token), without T | all from the threshold on, at least the best |
| Fast-dLLM v2 | softmax(l/T), top-p | p(token) of that | as Fast-dLLM, one part of the block after another |

(Nie et al. 2025; Ye et al. 2025; Cheng et al. 2025; Wu et al. 2025.) Tokens are drawn by inverting the distribution
function in float64, the distribution of argmax l/T + Gumbel noise in float64, which `gumbel` computes instead.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.wrappers import check_filters, filter_logits
from logosphere.processes.base import Process, uniform_grid
from logosphere.processes.capabilities import Unmasking
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Evaluate, JointDraws, PredictionUse, Stepper, require
from logosphere.sampling.steppers.unmasking import (
    UNMASKING,
    entropy_order,
    gumbel_scores,
    margin_order,
    select_best,
    unpack,
)
from logosphere.types import Float, Int64, Logits, Positions, State, Times

MINIMUM = -1e9
"""A confidence below all others, but above that of positions that cannot be committed."""


def gumbel_max(out: Logits, temperature: float, noise: Noise) -> Int64[Tensor, " N"]:
    """argmax e^l / (-log u)^T in float64, a draw from softmax(l/T); T = 0 is the likeliest token (Nie et al. 2025)."""
    if temperature == 0:
        return out.argmax(-1)
    u = noise.uniform(*out.shape).to(out.device)
    return (out.double() - temperature * (-u.log()).log()).argmax(-1)


# ---- confidence ------------------------------------------------------------------------------------------------------


def probability_order(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The probability of the drawn token, in float64."""
    return out.double().softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)


CONFIDENCES: dict[str, Callable[[Logits, Int64[Tensor, " N"]], Float[Tensor, " N"]]] = {
    "probability": probability_order,
    "margin": margin_order,
    "entropy": entropy_order,
}
"""(logits, drawn tokens) -> confidence; 'random' needs noise, and 'order' is the position from the right."""


# ---- what is committed -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Where a block is in its steps."""

    masked: Int64[Tensor, "B 1"]
    """Masks that remain in the block."""
    size: Int64[Tensor, "B 1"]
    """Positions of the block that are not given."""
    t: Float[Tensor, "B 1"]
    s: Float[Tensor, "B 1"]

    @property
    def is_last(self) -> Tensor:
        return self.s == 0


Commit = Callable[[Float[Tensor, "B L"], Progress, Noise], Positions]
"""(scores, -inf where nothing can be committed; progress; noise) -> committed positions."""


def commit_evenly(scores: Tensor, progress: Progress, noise: Noise) -> Positions:
    """masks // steps at a time, one more in the first masks % steps of them (LLaDA).

    With m masks and r steps left this is ceil(m/r), r = t/(t - s) in equal steps: while one more is due, m = q r + (as
    many as are still due).
    """
    left = progress.t.double() / (progress.t - progress.s).double().clamp_min(1e-9)
    left = torch.where((left - left.round()).abs() < 0.01, left.round(), left)  # times are float32
    due = (progress.masked / left.clamp_min(1.0) - 1e-9).ceil().long()
    return select_best(scores, torch.where(progress.is_last, progress.masked, due))


def commit_by_time(scores: Tensor, progress: Progress, noise: Noise) -> Positions:
    """floor(masks (1 - s/t)), and all in the last step (Dream)."""
    share = 1 - (progress.s / progress.t.clamp_min(1e-9)).double()
    due = (progress.masked * share).floor().long()
    return select_best(scores, torch.where(progress.is_last, progress.masked, due))


def commit_independently(scores: Tensor, progress: Progress, noise: Noise) -> Positions:
    """Each with probability 1 - s/t (Dream, origin)."""
    share = 1 - (progress.s / progress.t.clamp_min(1e-9)).double()
    return (noise.uniform(*scores.shape) < share) | progress.is_last


@dataclass(frozen=True)
class CommitAbove:
    """All from a probability on, and at least the best; with `scheduled` at least block // steps of them (SDAR)."""

    threshold: float = 0.9
    scheduled: bool = False
    strict: bool = False
    """Only above the probability (Fast-dLLM v2, SDAR)."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UserError(f"threshold is a probability above 0 and at most 1, not {self.threshold}.")

    def __call__(self, scores: Tensor, progress: Progress, noise: Noise) -> Positions:
        above = scores > self.threshold if self.strict else scores >= self.threshold
        if not self.scheduled:
            return above | select_best(scores, torch.ones_like(progress.masked))
        due = _scheduled_count(progress)
        enough = above.sum(1, keepdim=True) >= due
        chosen = torch.where(enough, above, select_best(scores, due))
        return torch.where(progress.is_last, scores > -torch.inf, chosen)


def commit_block_share(scores: Tensor, progress: Progress, noise: Noise) -> Positions:
    """block // steps, one more in the first steps (SDAR's static strategy)."""
    return select_best(scores, torch.where(progress.is_last, progress.masked, _scheduled_count(progress)))


def _scheduled_count(progress: Progress) -> Int64[Tensor, "B 1"]:
    """size // steps, one more in the first size % steps of the block's equal steps."""
    width = (progress.t - progress.s).clamp_min(1e-9)
    steps, index = (1 / width).round().long(), ((1 - progress.t) / width).round().long()
    return progress.size // steps + (index < progress.size % steps).long()


# ---- the loop --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfidenceDecoding(Stepper):
    """One step of a published loop: draw, score, commit (see the table above)."""

    needs = UNMASKING
    keeps_tokens = True

    commit: Commit = commit_evenly
    confidence: str = "probability"
    """probability, margin, entropy, random, or order (from left to right)."""
    tempered: bool = False
    """Whether the confidence is of the distribution after temperature, top-k and top-p."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    order_temperature: float = 0.0
    """alg_temp: positions are drawn from softmax(confidence/alg_temp) without replacement."""
    excluded: tuple[int, ...] = ()
    """Tokens that are never drawn (logits_eos_inf)."""
    delayed: tuple[int, ...] = ()
    """Tokens that are committed after all others (confidence_eos_eot_inf)."""
    top_p_first: bool = False
    """Whether top-p comes before top-k."""
    origin: int = 0
    """The position from which blocks are counted."""
    block: int = 0
    """Positions of a block, where the loop depends on it."""
    part: int = 0
    """Positions of a part of a block; parts are decoded from left to right. 0 for none."""
    first_alone: bool = False
    """Commit the likeliest first token of a block before the others are drawn: it is the answer of the block before."""
    block_steps: int = 0
    """Steps for each block; 0 for the steps that are asked for."""
    greedy: bool = False
    """Temperature 0, whichever is asked for."""
    gumbel: bool = False
    """Draw by Gumbel noise in float64, a number for every token of the vocabulary."""
    end: float = 0.0
    """Where the equal steps of time end; the last step goes to 0 all the same (Dream's eps)."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"The temperature must be finite and at least 0, not {self.temperature}.")
        check_filters(self.top_p, self.top_k, 0.0)

    @property
    def adaptive(self) -> bool:
        return isinstance(self.commit, CommitAbove) or self.commit is commit_block_share

    @property
    def prediction_use(self) -> PredictionUse:
        return "order"

    def steps(self, length: int, steps: int) -> int:
        if self.block_steps:
            return length // self.block * self.block_steps
        return length if isinstance(self.commit, CommitAbove) else steps

    def with_filters(self, temperature: float, top_p: float, top_k: int | None) -> Stepper:
        return replace(self, temperature=0.0 if self.greedy else temperature, top_p=top_p, top_k=top_k)

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        """Equal steps from 1 to `end`, of which the last goes to 0."""
        times = self.end + (1 - self.end) * uniform_grid(steps)
        times[-1] = 0.0
        return times

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """One time for all positions: which are unmasked is decided by the confidence."""
        return rows[:, None]

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        unmasking = require(process, Unmasking, self.needs)
        moving = t > s
        where = process.needs_prediction(z, moving)
        if not where.any():
            return z
        waiting = process.needs_prediction(z, t > 0)  # also those of later blocks, which do not move yet
        out = evaluate(z, unmasking.unmasking_times(t, waiting), where)
        drawn, confidence = self._draw(evaluate, out, where, noise)
        scores = unpack(where, confidence, -torch.inf)
        if self.confidence == "random":
            scores = torch.where(scores > MINIMUM, noise.uniform(*where.shape).to(scores), scores)
        now = self._candidates(where)
        scores = gumbel_scores(scores.masked_fill(~now, -torch.inf), self.order_temperature, noise)
        size = moving.sum(1, keepdim=True)
        progress = Progress(
            where.sum(1, keepdim=True),
            torch.full_like(size, self.block) if self.block else size,
            torch.where(moving, t, 0.0).amax(1, keepdim=True),
            torch.where(moving, s, 0.0).amax(1, keepdim=True),
        )
        chosen = self.commit(scores, progress, noise) & now
        if self.first_alone:
            first = where & (self._offsets(where) % self.block == 0)
            chosen = torch.where(first.any(1, keepdim=True), first, chosen)
            best = drawn if isinstance(evaluate, JointDraws) else out.argmax(-1)
            drawn = torch.where(first[where], best, drawn)
        clean = process.codec.encode(torch.zeros_like(where, dtype=torch.long).masked_scatter(where, drawn))
        return torch.where(chosen.view(*chosen.shape, *[1] * (z.dim() - 2)), clean, z)

    def _draw(
        self, evaluate: Evaluate, out: Logits, where: Positions, noise: Noise
    ) -> tuple[Int64[Tensor, " N"], Float[Tensor, " N"]]:
        """A token for each position, and its confidence."""
        if self.excluded:
            out = out.index_fill(-1, torch.tensor(self.excluded, device=out.device), -torch.inf)
        temperature = self.temperature or 1.0
        if self.top_p_first:
            tempered = filter_logits(filter_logits(out, temperature, self.top_p), top_k=self.top_k)
        else:
            tempered = filter_logits(out, temperature, self.top_p, self.top_k)
        if isinstance(evaluate, JointDraws):
            drawn = evaluate.draw(out, where, noise)
        elif self.temperature == 0:
            drawn = tempered.argmax(-1)
        elif self.gumbel:
            drawn = gumbel_max(tempered, 1.0, noise.for_positions(where))
        else:
            drawn = categorical(tempered, noise.for_positions(where).uniform(len(out)))
        if self.confidence == "random":
            confidence = torch.zeros(len(out), dtype=torch.float64, device=out.device)
        elif self.confidence == "order":
            confidence = -where.nonzero()[:, 1].double()
        else:
            confidence = CONFIDENCES[self.confidence](tempered if self.tempered else out, drawn)
        for token in self.delayed:
            confidence = confidence.masked_fill(drawn == token, MINIMUM)
        return drawn, confidence

    def _candidates(self, where: Positions) -> Positions:
        """Masked positions of the first part of the block that has any."""
        if not self.part:
            return where
        index = (self._offsets(where) % self.block // self.part).expand_as(where)
        return where & (index == torch.where(where, index, where.shape[1]).amin(1, keepdim=True))

    def _offsets(self, where: Positions) -> Int64[Tensor, " L"]:
        return torch.arange(where.shape[1], device=where.device) - self.origin
