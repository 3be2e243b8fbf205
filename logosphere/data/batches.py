"""Batches of a split to train and evaluate on, and tasks that mark the known positions of their sequences.

A training sample depends on (seed, sample id) alone, so any process can make any part of any batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from logosphere.data.corpus import (
    ALL_ROWS,
    AnyArray,
    Examples,
    Split,
    StreamedSplit,
    TokenRow,
    check_length,
    count_sequences,
    require_indexable,
)
from logosphere.data.packing import PackedSampler
from logosphere.data.streaming import StreamBatches
from logosphere.errors import UserError, suggest
from logosphere.rng import CounterNoise, hash64
from logosphere.types import Batch, Int64, Tokens

ROUNDS = 6
"""Rounds of the Feistel network of a permutation."""


def train_batches(
    split: Split, length: int, batch: int, seed: int, order: str = "crops", *, pack: bool = False
) -> "Crops | Epochs | ExampleSampler | PackedSampler | StreamBatches":
    """Batches to train on: of a row of tokens random `crops` with replacement, or `epochs` of shuffled windows.

    Separate examples are drawn with replacement, with `pack` several for a row; a stream is read in its own order.
    """
    if order not in ("crops", "epochs"):
        raise UserError(f"The order of the data must be crops or epochs, not '{order}'.")
    if isinstance(split, Examples):
        return (PackedSampler if pack else ExampleSampler)(split, length, batch, seed)
    if isinstance(split, StreamedSplit):
        return StreamBatches(split, length, batch)
    return (Crops if order == "crops" else Epochs)(split, length, batch, seed)


def eval_batches(split: Split, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Batches to evaluate on, at most `limit` sequences spread over the whole split."""
    split = require_indexable(split)
    if isinstance(split, Examples):
        return sequential_batches(split, length, batch, limit)
    return windows(split, length, batch, limit)


@dataclass(frozen=True)
class BatchSampler(ABC):
    """Batches of pieces of a row of tokens; each piece is determined by the seed and the id of the sample."""

    tokens: TokenRow
    length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        check_batch_size(self.batch)
        check_length(self.tokens, self.length)

    def at(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """The batch of a step, or some of its rows."""
        index, ids = number_rows(step, self.batch, rows)
        tokens = _gather(self.tokens, self.starts(ids, index).numpy()[:, None], self.length)
        return _make_batch(tokens, ids, index, self.batch)

    @abstractmethod
    def starts(self, ids: Int64[Tensor, " b"], global_index: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """The first position of each sample's piece."""


class Crops(BatchSampler):
    """Random positions, with replacement."""

    def starts(self, ids: Int64[Tensor, " b"], global_index: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        u = CounterNoise(self.seed, 0, ids, global_index, self.batch).uniform(len(ids), 1)
        return (u[:, 0] * (len(self.tokens) - self.length + 1)).long()


class Epochs(BatchSampler):
    """Windows that do not overlap, each once per epoch, in a new random order in every epoch."""

    def starts(self, ids: Int64[Tensor, " b"], global_index: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        available = len(self.tokens) // self.length
        epochs, positions = ids // available, ids % available
        window = torch.empty_like(positions)
        for epoch in epochs.unique().tolist():
            inside = epochs == epoch
            window[inside] = Permutation(available, (self.seed << 20) + epoch)(positions[inside])
        return window * self.length


@dataclass(frozen=True)
class Permutation:
    """A keyed permutation of 0 … size - 1, computed by formula without a table.

    A Feistel network over pairs of half-words permutes 0 … 4^k - 1, the smallest power of four that holds `size`;
    results outside the range are permuted again until they are inside (cycle walking, Black and Rogaway 2002), which
    takes fewer than four rounds on average. The round function is the keyed hash of `logosphere.rng`.
    """

    size: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.size < 1 << 60:
            raise UserError(f"A permutation needs 1 to 2^60 - 1 elements to shuffle, not {self.size}.")

    def __call__(self, positions: Int64[Tensor, " N"]) -> Int64[Tensor, " N"]:
        """The element at each position of the permutation."""
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        elements = self._permute(positions, half)
        while bool((outside := elements >= self.size).any()):
            elements = torch.where(outside, self._permute(elements, half), elements)
        return elements

    def _permute(self, values: Int64[Tensor, " N"], half: int) -> Int64[Tensor, " N"]:
        mask = (1 << half) - 1
        left, right = values >> half, values & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (hash64(right, self.key * ROUNDS + number) & mask)
        return left << half | right


def windows(tokens: TokenRow, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Consecutive windows that do not overlap (the tail is dropped); at most `limit`, spread over the whole row."""
    check_length(tokens, length)
    available, count = len(tokens) // length, count_sequences(tokens, length, limit)
    ids = np.arange(count) * available // count
    for first in range(0, count, batch):
        part = ids[first : first + batch]
        rows = _gather(tokens, part[:, None] * length, length)
        yield _make_batch(rows, torch.as_tensor(part), torch.arange(first, first + len(part)), count)


def _make_batch(tokens: Tokens, ids: torch.Tensor, global_index: torch.Tensor, total: int) -> Batch:
    """A batch without known positions and without padding."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, ~everywhere, everywhere, ids, global_index, total)


def _gather(tokens: TokenRow, starts: AnyArray, length: int) -> Tokens:
    return torch.from_numpy(np.asarray(tokens[starts + np.arange(length)]).astype(np.int64))


def check_batch_size(batch: int) -> None:
    if batch < 1:
        raise UserError(f"The batch must hold at least 1 sequence, not {batch}.")


def number_rows(step: int, batch: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of each row in the batch of a step, and its sample id, unique over the whole training."""
    index = torch.arange(batch)[rows]
    return index, step * batch + index


@dataclass(frozen=True)
class ExampleSampler:
    """Batches of examples drawn with replacement; the draw depends on (seed, sample id) alone."""

    examples: Examples
    length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        check_batch_size(self.batch)

    @cached_property
    def fitting(self) -> Examples:
        """The examples that fit into the length."""
        return self.examples.filter_by_length(self.length)

    def at(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """The batch of a step, or some of its rows."""
        index, ids = number_rows(step, self.batch, rows)
        u = CounterNoise(self.seed, 0, ids, index, self.batch).uniform(len(ids), 1)[:, 0]
        indices = (u * len(self.fitting)).long().numpy()
        return self.fitting.make_batch(indices, ids, index, self.batch, self.length)


def sequential_batches(examples: Examples, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """All examples that fit, or at most `limit` of them spread evenly, in their order."""
    fitting = examples.filter_by_length(length)
    count = len(fitting) if limit is None else min(limit, len(fitting))
    indices = np.arange(count) * len(fitting) // count
    for first in range(0, count, batch):
        part = indices[first : first + batch]
        index = torch.arange(first, first + len(part))
        yield fitting.make_batch(part, torch.from_numpy(part), index, count, length)


class Task(ABC):
    """Marks the known positions of a batch, depending on the seed and the sample ids alone."""

    shortens: ClassVar[bool] = False
    """Whether it may shorten sequences."""

    @abstractmethod
    def apply(self, batch: Batch, seed: int) -> Batch:
        """The batch of this task."""


@dataclass(frozen=True)
class Unconditional(Task):
    """No position is known."""

    def apply(self, batch: Batch, seed: int) -> Batch:
        return batch


@dataclass(frozen=True)
class Continuation(Task):
    """A prefix of random length is known, in a `fraction` of the sequences."""

    fraction: float = 0.5

    def apply(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = CounterNoise(seed, 1, batch.ids, batch.global_index, batch.total).uniform(B, 2)
        ends = torch.where(u[:, :1] < self.fraction, (u[:, 1:] * L).long(), 0)
        return replace(batch, known=batch.known | (torch.arange(L) < ends))


@dataclass(frozen=True)
class Infilling(Task):
    """All but one span of random position and length is known, in a `fraction` of the sequences."""

    fraction: float = 0.5

    def apply(self, batch: Batch, seed: int) -> Batch:
        B, L = batch.tokens.shape
        u = CounterNoise(seed, 1, batch.ids, batch.global_index, batch.total).uniform(B, 3)
        ends = (u[:, 1:] * (L + 1)).long().sort(1).values
        inside = (torch.arange(L) >= ends[:, :1]) & (torch.arange(L) < ends[:, 1:])
        chosen = (u[:, :1] < self.fraction) & inside.any(1, keepdim=True)
        return replace(batch, known=batch.known | (chosen & ~inside))


@dataclass(frozen=True)
class RandomLength(Task):
    """No position is known; in a `fraction` of the steps the batch is cut to a random length (Nie et al. 2025, LLaDA).

    A model trained on one length repeats itself under samplers that unmask by confidence.
    """

    shortens = True
    fraction: float = 0.01

    def apply(self, batch: Batch, seed: int) -> Batch:
        first = (batch.ids - batch.global_index)[:1]  # the same for all parts of a batch
        chance, position = CounterNoise(seed, 2, first, torch.zeros_like(first), 1).uniform(1, 2)[0].tolist()
        end = 1 + int(position * batch.tokens.shape[1]) if chance < self.fraction else batch.tokens.shape[1]
        if end == batch.tokens.shape[1]:
            return batch
        condition, count = batch.condition, batch.token_count
        if condition is not None and condition.signal is not None:
            condition = replace(condition, signal=condition.signal[:, :end])
        return replace(
            batch,
            tokens=batch.tokens[:, :end],
            known=batch.known[:, :end],
            valid=batch.valid[:, :end],
            condition=condition,
            token_count=None if count is None else count.clamp_max(end),
        )


@dataclass(frozen=True)
class Answers(Task):
    """The prompt of each pair is known, as the data say."""

    def apply(self, batch: Batch, seed: int) -> Batch:
        if not bool(batch.known.any()):
            raise UserError("The task 'answers' needs pairs of a prompt and an answer: --data pairs:FILE.")
        return batch


TASKS: dict[str, Task] = {
    "unconditional": Unconditional(),
    "answers": Answers(),
    "continuation": Continuation(),
    "infilling": Infilling(),
    "varied": RandomLength(),
}


def find_task(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}'.{suggest(name, TASKS)}")
    return TASKS[name]
