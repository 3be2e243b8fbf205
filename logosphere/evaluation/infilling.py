"""The infilling benchmark: gaps cut from held-out text, both sides of which are visible.

Each sequence x has one gap g of a given number of tokens at a uniformly drawn place inside the text, so that at least
one token is visible on either side. Of the same gaps are measured

    bits per gap token    the bound of -log₂ p(x_g | x_visible), divided by the tokens of the gap
    exact match           the fraction of gaps whose sample is the text itself
    token accuracy        the fraction of tokens that are sampled as in the text

A sampler that draws from p matches with the probability Σ_g p(g | x_visible)², averaged over texts (the collision
probability): it is below 1 for the best model, and larger below a temperature of 1. Gaps depend on the seed and the
sample alone, so that models with the same tokenizer and length are measured on the same gaps.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from logosphere.errors import UserError, check_count
from logosphere.evaluation.likelihood import Estimate, concatenate, estimate_bounds, ratio_with_error
from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.rng import CounterNoise
from logosphere.sampling.generate import generate
from logosphere.sampling.sampler import Sampler
from logosphere.types import NO_TOKEN, SIGN, Batch, Condition, Kind

SAMPLED = 32
"""Sequences that are sampled at a time: a fixed number, so that samples do not depend on the batch."""
GAP_STREAM = 3
"""The stream of random numbers of the places of gaps; times and noise have another."""


@dataclass(frozen=True)
class GapResult:
    """What a model does with gaps of one length; each error is one standard error over gaps."""

    tokens: int
    """Tokens of a gap."""
    count: int
    """Gaps measured."""
    exact_match: float
    exact_match_error: float
    accuracy: float
    accuracy_error: float
    bits: float
    """Bits per token of the gap, given the text around it."""
    bits_error: float
    kind: Kind
    """The kind of `bits`."""
    nfe: float
    """Network evaluations per sample."""
    skipped: int
    """Sequences whose text is too short for the gap."""


@dataclass(frozen=True)
class InfillingReport:
    """Results by the length of the gap, and the settings needed to compare them."""

    name: str
    rows: tuple[GapResult, ...]
    draws: int
    steps: int
    sampler: str
    temperature: float
    seed: int
    length: int
    data: str
    tokenizer: str
    weights: str
    precision: str
    """The precision in which the network computed."""
    renoised: bool
    """Whether samples see known tokens as noisy as the others, because the run was trained without known positions."""
    seconds: float

    def __str__(self) -> str:
        head = f"{'gap':>6}{'gaps':>7}  {'exact match':>17}  {'token accuracy':>17}  bits per gap token"
        lines = [head]
        for row in self.rows:
            match = f"{row.exact_match:.4f} ± {row.exact_match_error:.4f}"
            accuracy = f"{row.accuracy:.4f} ± {row.accuracy_error:.4f}"
            bits = f"{SIGN[row.kind]} {row.bits:.4f} ± {row.bits_error:.4f} ({row.kind})"
            lines.append(f"{row.tokens:>6}{row.count:>7}  {match:>17}  {accuracy:>17}  {bits}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """All fields as plain data, named as what they are."""
        return asdict(self) | {"benchmark": "infilling", "unit": "token"}


def cut_gaps(batch: Batch, tokens: int, seed: int) -> Batch:
    """The sequences with a gap of `tokens` at a uniform place in their text; those without room are left out."""
    lengths = batch.tokens.new_full((len(batch),), batch.tokens.shape[1])
    lengths = lengths if batch.token_count is None else torch.minimum(lengths, batch.token_count)
    fits = lengths >= tokens + 2
    noise = CounterNoise(seed, GAP_STREAM + tokens, batch.ids, batch.global_index, batch.total)
    u = noise.uniform(len(batch), 1)[:, 0].to(lengths.device)
    start = 1 + (u * (lengths - tokens - 1)).long()
    place = torch.arange(batch.tokens.shape[1], device=lengths.device)
    gap = (place >= start[:, None]) & (place < start[:, None] + tokens)
    return replace(batch, known=~gap, token_count=None, all_free=False).select(fits)


def check_infilling(model: Model, gaps: Sequence[int]) -> None:
    """Raise unless the model can see both sides of gaps of these lengths."""
    if model.block < model.length:
        block = "token by token" if model.block == 1 else f"in blocks of {model.block} tokens"
        raise UserError(
            f"This model generates {block} from left to right and does not see the text after a gap; measure infilling "
            "with diffusion over whole sequences, such as mdlm."
        )
    if not model.process.codec.local:
        raise UserError(
            "The states of this model belong to whole sequences, so it cannot fill gaps between known text."
        )
    if not gaps:
        raise UserError("Name at least one length of gaps.")
    for tokens in gaps:
        check_count("The length of a gap", tokens)
        if tokens + 2 > model.length:
            raise UserError(
                f"Gaps need text on both sides, so they can have at most {model.length - 2} tokens in sequences of "
                f"{model.length}, not {tokens}."
            )


def measure_infilling(
    model: Model,
    batches: Callable[[], Iterable[Batch]],
    *,
    gaps: Sequence[int] = (1, 4, 16),
    draws: int = 4,
    steps: int = 64,
    seed: int = 0,
    sampler: Sampler | str | None = None,
    temperature: float = 1.0,
    denoiser: nn.Module | None = None,
    renoise_known: bool = False,
    precision: str = "float32",
    watch: Callable[[float], None] = lambda fraction: None,
    group: ProcessGroup = SINGLE,
) -> tuple[GapResult, ...]:
    """The results for gaps of each length on the sequences of `batches`, which is called once for each length.

    `watch` is called with the fraction done. The processes of a `group` share the sequences and all get the results.
    """
    check_infilling(model, gaps)
    found = []
    for number, tokens in enumerate(gaps):
        whole = list(batches())
        cut = [part for part in (cut_gaps(batch, tokens, seed) for batch in whole) if len(part)]
        total, count = sum(map(len, whole)), sum(map(len, cut))
        if not count:
            raise UserError(
                f"No text has {tokens + 2} tokens, which a gap of {tokens} needs with text on both sides; name shorter "
                "gaps."
            )
        finished = 0.0

        def advance(sequences: int, number: int = number, count: int = count) -> None:
            nonlocal finished
            finished += sequences / 2  # half of the work is the bound, the other half the samples
            watch((number + min(1.0, finished / count)) / len(gaps))

        parts: list[Estimate] = []
        predict = model.as_predict(denoiser)
        for part in estimate_bounds(
            model, cut, draws=draws, seed=seed, predict=predict, precision=precision, group=group
        ):
            parts.append(part)
            advance(len(part.count))
        estimate = concatenate(parts)
        matches, evaluations = [], 0.0
        for first, batch in _regroup(cut, SAMPLED):
            rng = torch.Generator(model.device).manual_seed(_sampling_seed(seed, tokens, first))
            drawn = generate(
                model, len(batch), steps, rng, denoiser, batch.known, batch.tokens, sampler=sampler,
                temperature=temperature, condition=batch.condition, renoise_known=renoise_known, precision=precision,
                group=group,
            )  # fmt: skip
            right = (drawn.tokens.cpu() == batch.tokens) & ~batch.known
            matches.append(right.sum(1))
            evaluations += drawn.nfe * len(batch)
            advance(len(batch))
        right_tokens = torch.cat(matches).double()
        accuracy, accuracy_error = _mean_with_error(right_tokens / tokens)
        exact, exact_error = _mean_with_error((right_tokens == tokens).double())
        nats, nats_error = estimate.per_token()
        found.append(
            GapResult(
                tokens,
                count,
                exact,
                exact_error,
                accuracy,
                accuracy_error,
                nats / math.log(2),
                nats_error / math.log(2),
                estimate.kind,
                evaluations / count,
                total - count,
            )  # fmt: skip
        )
    return tuple(found)


def infilling_report(
    model: Model,
    batches: Callable[[], Iterable[Batch]],
    *,
    name: str = "model",
    gaps: Sequence[int] = (1, 4, 16),
    draws: int = 4,
    steps: int = 64,
    seed: int = 0,
    sampler: str = "auto",
    temperature: float = 1.0,
    renoise_known: bool = False,
    precision: str = "float32",
    data: str = "",
    tokenizer: str = "",
    weights: str = "",
    watch: Callable[[float], None] = lambda fraction: None,
    group: ProcessGroup = SINGLE,
) -> InfillingReport:
    """The results with the settings that they depend on."""
    started = time.perf_counter()
    rows = measure_infilling(
        model, batches, gaps=gaps, draws=draws, steps=steps, seed=seed, sampler=None if sampler == "auto" else sampler,
        temperature=temperature, renoise_known=renoise_known, precision=precision, watch=watch, group=group,
    )  # fmt: skip
    return InfillingReport(
        name, rows, draws, steps, sampler, temperature, seed, model.length, data, tokenizer, weights, precision,
        renoise_known, time.perf_counter() - started,
    )  # fmt: skip


def _regroup(batches: Sequence[Batch], size: int) -> Iterator[tuple[int, Batch]]:
    """Batches of `size` sequences from one after another, each with the number of its first sequence."""
    tokens, known = torch.cat([batch.tokens for batch in batches]), torch.cat([batch.known for batch in batches])
    condition = _join([batch.condition for batch in batches if batch.condition is not None])
    whole = Batch.of(tokens.cpu(), known.cpu(), condition=condition)
    for first in range(0, len(whole), size):
        yield first, whole.select(slice(first, first + size))


def _join(conditions: Sequence[Condition]) -> Condition | None:
    """The conditions of one batch after another, sources padded to one width."""
    if not conditions:
        return None
    sources = [condition.source for condition in conditions if condition.source is not None]
    width = max((source.shape[1] for source in sources), default=0)
    padded = [functional.pad(source, (0, width - source.shape[1]), value=NO_TOKEN) for source in sources]
    labels = [condition.labels for condition in conditions if condition.labels is not None]
    signals = [condition.signal for condition in conditions if condition.signal is not None]
    return Condition(
        torch.cat([condition.given for condition in conditions]),
        *(torch.cat(parts) if parts else None for parts in (labels, padded, signals)),
    )


def _sampling_seed(seed: int, tokens: int, first: int) -> int:
    """A seed of the samples of some gaps, that of no other gaps."""
    ids = torch.tensor([first])
    noise = CounterNoise(seed, GAP_STREAM + tokens, ids, ids, 1)
    return int(noise.uniform(1, 1).double()[0, 0] * 2**53)


def _mean_with_error(values: Tensor) -> tuple[float, float]:
    return ratio_with_error(values, torch.ones_like(values))
