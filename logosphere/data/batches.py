"""Batches of a split: random crops or shuffled windows to train on, consecutive windows to evaluate on.

A training sample depends on (seed, sample id) alone, so any process can make any part of any batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logosphere.data.datasets.examples import (
    ALL_ROWS,
    Examples,
    ExampleSampler,
    check_batch_size,
    number_rows,
    sequential_batches,
)
from logosphere.data.splits import AnyArray, Split, TokenRow, check_length, count_sequences, require_indexable
from logosphere.data.streaming import StreamBatches, StreamedSplit
from logosphere.errors import UserError
from logosphere.rng import CounterNoise, hash64
from logosphere.types import Batch, Int64, Tokens

ROUNDS = 6
"""Rounds of the Feistel network of a permutation."""


def train_batches(
    split: Split, length: int, batch: int, seed: int, order: str = "crops"
) -> "Crops | Epochs | ExampleSampler | StreamBatches":
    """Batches to train on: of a row of tokens random `crops` with replacement, or `epochs` of shuffled windows.

    Separate examples are drawn with replacement; a stream is read in its own order.
    """
    if order not in ("crops", "epochs"):
        raise UserError(f"The order of the data must be crops or epochs, not '{order}'.")
    if isinstance(split, Examples):
        return ExampleSampler(split, length, batch, seed)
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
        place, ids = number_rows(step, self.batch, rows)
        tokens = _gather(self.tokens, self.starts(ids, place).numpy()[:, None], self.length)
        return _make_batch(tokens, ids, place, self.batch)

    @abstractmethod
    def starts(self, ids: Int64[Tensor, " b"], place: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """The first position of each sample's piece."""


class Crops(BatchSampler):
    """Random positions, with replacement."""

    def starts(self, ids: Int64[Tensor, " b"], place: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        u = CounterNoise(self.seed, 0, ids, place, self.batch).uniform(len(ids), 1)
        return (u[:, 0] * (len(self.tokens) - self.length + 1)).long()


class Epochs(BatchSampler):
    """Windows that do not overlap, each once per epoch, shuffled anew in every epoch."""

    def starts(self, ids: Int64[Tensor, " b"], place: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        available = len(self.tokens) // self.length
        epochs, places = ids // available, ids % available
        window = torch.empty_like(places)
        for epoch in epochs.unique().tolist():
            inside = epochs == epoch
            window[inside] = Permutation(available, (self.seed << 20) + epoch)(places[inside])
        return window * self.length


@dataclass(frozen=True)
class Permutation:
    """A keyed permutation of 0 … size - 1, computed by formula without a table.

    A Feistel network over pairs of half-words permutes 0 … 4^k - 1, the smallest power of four that holds `size`;
    results outside the range are permuted again until they are inside (cycle walking, Black and Rogaway 2002), which
    takes fewer than four rounds on average. The round function is the keyed hash of `logosphere.noise`.
    """

    size: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.size < 1 << 60:
            raise UserError(f"A permutation needs 1 to 2^60 - 1 elements to shuffle, not {self.size}.")

    def __call__(self, places: Int64[Tensor, " N"]) -> Int64[Tensor, " N"]:
        """The element at each place of the permutation."""
        half = max(1, ((self.size - 1).bit_length() + 1) // 2)
        elements = self._permute(places, half)
        while bool((outside := elements >= self.size).any()):
            elements = torch.where(outside, self._permute(elements, half), elements)
        return elements

    def _permute(self, values: Int64[Tensor, " N"], half: int) -> Int64[Tensor, " N"]:
        mask = (1 << half) - 1
        left, right = values >> half, values & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (hash64(right, self.key * ROUNDS + turn) & mask)
        return left << half | right


def windows(tokens: TokenRow, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Consecutive windows that do not overlap (the tail is dropped); at most `limit`, spread over the whole row."""
    check_length(tokens, length)
    available, wanted = len(tokens) // length, count_sequences(tokens, length, limit)
    ids = np.arange(wanted) * available // wanted
    for first in range(0, wanted, batch):
        part = ids[first : first + batch]
        rows = _gather(tokens, part[:, None] * length, length)
        yield _make_batch(rows, torch.as_tensor(part), torch.arange(first, first + len(part)), wanted)


def _make_batch(tokens: Tokens, ids: torch.Tensor, place: torch.Tensor, total: int) -> Batch:
    """A batch without known positions and without padding."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, ~everywhere, everywhere, ids, place, total)


def _gather(tokens: TokenRow, starts: AnyArray, length: int) -> Tokens:
    return torch.from_numpy(np.asarray(tokens[starts + np.arange(length)]).astype(np.int64))
