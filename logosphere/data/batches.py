"""Batches out of a row of tokens: random crops to train on, consecutive windows to evaluate on.

Which crop a sample is depends on (seed, sample number) alone, so any process can make any part of any batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logosphere.data.examples.collection import EVERYTHING, Examples, Picks, check_batch, in_turn, numbered
from logosphere.data.shards import Shards
from logosphere.data.shuffling import Permutation
from logosphere.data.streaming import Arrivals, Streamed
from logosphere.errors import UserError
from logosphere.noise import Keyed
from logosphere.shapes import Int64
from logosphere.types import Batch, Tokens

Numbers = np.ndarray[Any, np.dtype[Any]]
Row = Numbers | Shards
Split = Row | Examples | Streamed
"""A part of a corpus: one long row of tokens, separate examples, or text that is still to come."""


def tokens_in(split: Split) -> int:
    """How many tokens a split has; none are here of a stream."""
    if isinstance(split, Streamed):
        return 0
    return split.tokens if isinstance(split, Examples) else len(split)


def size_of(split: Split) -> str:
    """The size of a split, in words."""
    return "streamed" if isinstance(split, Streamed) else f"{tokens_in(split):,} tokens"


def here(split: Split) -> Row | Examples:
    """A split that can be read at any place; a sentence if it cannot."""
    if isinstance(split, Streamed):
        raise UserError(
            f"The training split of {split.name} is a stream; use valid or test, or hf: in place of stream:."
        )
    return split


def sequences_in(split: Split, length: int, limit: int | None = None) -> int:
    """How many sequences of this length `sequences` makes of a split."""
    split = here(split)
    available = len(split.of_length(length)) if isinstance(split, Examples) else len(split) // length
    return available if limit is None else min(limit, available)


def divided(split: Split, part: int) -> tuple[Split, Split]:
    """A split without its last `part`-th, and that."""
    split = here(split)
    kept = len(split) - max(len(split) // part, 1)
    if isinstance(split, Examples):
        numbers = np.arange(len(split))
        return split.chosen(numbers[:kept]), split.chosen(numbers[kept:])
    return split[:kept], split[kept:]


def counted_in(split: Split, length: int) -> int:
    """Tokens by which a bound is divided: where texts end, ends for which there is room are among them."""
    split = here(split)
    if not isinstance(split, Examples) or split.end is None:
        return tokens_in(split)
    return sum(min(len(row) + 1, length) for row in split.sequences)


def first_tokens(split: Split, count: int) -> Numbers:
    """The first tokens of a split, those of examples one after another with their ends."""
    split = here(split)
    if not isinstance(split, Examples):
        return np.asarray(split[:count])
    end = [] if split.end is None else [[split.end]]
    return np.concatenate([part for row in split.sequences for part in (row, *end)])[:count].astype(np.int64)


def draws(
    split: Split, length: int, batch: int, seed: int, order: str = "crops"
) -> "Crops | Epochs | Picks | Arrivals":
    """Batches to train on; a row of tokens is drawn from in `crops` with replacement, or gone through in `epochs`.

    Separate examples are picked with replacement, a stream is taken as it comes.
    """
    if order not in ("crops", "epochs"):
        raise UserError(f"The order of the data must be crops or epochs, not '{order}'.")
    if isinstance(split, Examples):
        return Picks(split, length, batch, seed)
    if isinstance(split, Streamed):
        return Arrivals(split, length, batch)
    return (Crops if order == "crops" else Epochs)(split, length, batch, seed)


def sequences(split: Split, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Batches to evaluate on, at most `limit` sequences spread over the whole split."""
    split = here(split)
    if isinstance(split, Examples):
        return in_turn(split, length, batch, limit)
    return windows(split, length, batch, limit)


@dataclass(frozen=True)
class Drawn(ABC):
    """Batch after batch of pieces of a row of tokens, each told by the seed and the number of the sample alone."""

    tokens: Row
    length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        check_batch(self.batch)
        check_length(self.tokens, self.length)

    def at(self, step: int, rows: slice = EVERYTHING) -> Batch:
        """The batch of a step, or some of its rows."""
        place, ids = numbered(step, self.batch, rows)
        tokens = _rows(self.tokens, self.starts(ids, place).numpy()[:, None], self.length)
        return _whole(tokens, ids, place, self.batch)

    @abstractmethod
    def starts(self, ids: Int64[Tensor, "b"], place: Int64[Tensor, "b"]) -> Int64[Tensor, "b"]:
        """Where the pieces of these samples begin."""


class Crops(Drawn):
    """Random places, with replacement."""

    def starts(self, ids: Int64[Tensor, "b"], place: Int64[Tensor, "b"]) -> Int64[Tensor, "b"]:
        u = Keyed(self.seed, 0, ids, place, self.batch).uniform(len(ids), 1)
        return (u[:, 0] * (len(self.tokens) - self.length + 1)).long()


class Epochs(Drawn):
    """Windows that do not overlap, each once an epoch, in an order that is new every epoch."""

    def starts(self, ids: Int64[Tensor, "b"], place: Int64[Tensor, "b"]) -> Int64[Tensor, "b"]:
        available = len(self.tokens) // self.length
        epochs, places = ids // available, ids % available
        which = torch.empty_like(places)
        for epoch in epochs.unique().tolist():
            inside = epochs == epoch
            which[inside] = Permutation(available, (self.seed << 20) + epoch)(places[inside])
        return which * self.length


def windows(tokens: Row, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Consecutive windows that do not overlap (the tail is dropped); at most `limit`, spread over the whole row."""
    check_length(tokens, length)
    available, wanted = len(tokens) // length, sequences_in(tokens, length, limit)
    ids = np.arange(wanted) * available // wanted
    for first in range(0, wanted, batch):
        part = ids[first : first + batch]
        rows = _rows(tokens, part[:, None] * length, length)
        yield _whole(rows, torch.as_tensor(part), torch.arange(first, first + len(part)), wanted)


def _whole(tokens: Tokens, ids: torch.Tensor, place: torch.Tensor, total: int) -> Batch:
    """Sequences of which nothing is given and nothing is padding."""
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    return Batch(tokens, ~everywhere, everywhere, ids, place, total)


def check_length(tokens: Split, length: int) -> None:
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if isinstance(tokens, Streamed):
        return
    if isinstance(tokens, Examples):
        tokens.of_length(length)
        return
    if len(tokens) < length:
        raise UserError(
            f"A split of the text has only {len(tokens):,} tokens, fewer than one sequence of {length}; "
            "give more text or a smaller --length."
        )


def _rows(tokens: Row, starts: Numbers, length: int) -> Tokens:
    return torch.from_numpy(np.asarray(tokens[starts + np.arange(length)]).astype(np.int64))
