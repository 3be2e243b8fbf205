"""Batches out of a row of tokens: random crops to train on, consecutive windows to evaluate on.

Which crop a sample is depends on (seed, sample number) alone, so any process can make any part of any batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from logosphere.errors import UserError
from logosphere.noise import Keyed
from logosphere.types import Batch, Tokens

Row = np.ndarray[Any, np.dtype[Any]]
EVERYTHING = slice(None)


@dataclass(frozen=True)
class Crops:
    """Batch after batch of random crops, with replacement."""

    tokens: Row
    length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"The batch must hold at least 1 sequence, not {self.batch}.")
        check_length(self.tokens, self.length)

    def at(self, step: int, rows: slice = EVERYTHING) -> Batch:
        """The batch of a step, or some of its rows."""
        place = torch.arange(self.batch)[rows]
        ids = step * self.batch + place
        u = Keyed(self.seed, 0, ids, place, self.batch).uniform(len(ids), 1)
        starts = (u * (len(self.tokens) - self.length + 1)).long()
        tokens = _rows(self.tokens, starts.numpy(), self.length)
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        return Batch(tokens, ~everywhere, everywhere, ids, place, self.batch)


def windows(tokens: Row, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """Consecutive windows that do not overlap (the tail is dropped); at most `limit`, spread over the whole row."""
    check_length(tokens, length)
    available = len(tokens) // length
    wanted = available if limit is None else min(limit, available)
    ids = np.arange(wanted) * available // wanted
    for first in range(0, wanted, batch):
        part = ids[first : first + batch]
        rows = _rows(tokens, part[:, None] * length, length)
        everywhere = torch.ones_like(rows, dtype=torch.bool)
        place = torch.arange(first, first + len(part))
        yield Batch(rows, ~everywhere, everywhere, torch.as_tensor(part), place, wanted)


def check_length(tokens: Row, length: int) -> None:
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if len(tokens) < length:
        raise UserError(
            f"A split of the text has only {len(tokens):,} tokens, fewer than one sequence of {length}; "
            "give more text or a smaller --length."
        )


def _rows(tokens: Row, starts: Row, length: int) -> Tokens:
    return torch.from_numpy(tokens[starts + np.arange(length)].astype(np.int64))
