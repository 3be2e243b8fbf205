"""A collection of sequences, and batches out of it: drawn for training, in turn for evaluation.

Sequences shorter than the model's are filled up with an end token, which is learnt like any other: a model that writes
it says how long its text is. Bits are counted per real token, of which the first end is one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from logosphere.data.tokenizers import Ids
from logosphere.errors import UserError
from logosphere.noise import Keyed
from logosphere.types import NO_TOKEN, Batch, Condition, Tokens

Numbers = npt.NDArray[np.int64]


EVERYTHING = slice(None)


@dataclass(frozen=True)
class Examples:
    """Sequences of token numbers and what each is to be written from, as far as there is something."""

    sequences: Sequence[Ids]
    end: int | None = None
    """Fills up short sequences; None when all have the same length."""
    labels: Numbers | None = None
    label_count: int = 0
    sources: Sequence[Ids] | None = None
    source_size: int = 0
    """Size of the vocabulary of sources."""
    signals: npt.NDArray[np.float32] | None = None
    """[N, L, C]"""

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def tokens(self) -> int:
        """Tokens in all, ends not counted."""
        return sum(map(len, self.sequences))

    @cached_property
    def conditions(self) -> dict[str, int]:
        """What a network must be built for to read them."""
        built: dict[str, int] = {}
        if self.labels is not None:
            built["labels"] = self.label_count
        if self.sources is not None:
            built |= {"source": self.source_size, "source_length": max(map(len, self.sources))}
        if self.signals is not None:
            built["signal"] = self.signals.shape[2]
        return built

    def chosen(self, keep: Numbers) -> "Examples":
        """Some of the examples."""

        def some(rows: Sequence[Ids] | None) -> list[Ids] | None:
            return None if rows is None else [rows[i] for i in keep]

        return replace(
            self,
            sequences=[self.sequences[i] for i in keep],
            labels=None if self.labels is None else self.labels[keep],
            sources=some(self.sources),
            signals=None if self.signals is None else self.signals[keep],
        )

    def of_length(self, length: int) -> "Examples":
        """Those that a model of this length can write whole."""
        lengths = np.array([len(row) for row in self.sequences])
        if self.end is None and not bool((lengths == length).all()):
            raise UserError(f"These sequences have {lengths[0]:,} tokens each; train with --length {lengths[0]}.")
        keep = np.flatnonzero(lengths <= length)
        if not len(keep):
            raise UserError(
                f"No sequence fits into {length} tokens, the shortest has {lengths.min():,}; give a larger --length."
            )
        return self if len(keep) == len(lengths) else self.chosen(keep)

    def rows(self, length: int) -> Tokens:
        """All that fit, filled up to one length."""
        return torch.from_numpy(_filled(self.of_length(length).sequences, length, self.end or 0))

    def batch(self, which: Numbers, names: torch.Tensor, place: torch.Tensor, total: int, length: int) -> Batch:
        """The examples of these numbers, filled up to one length."""
        tokens = torch.from_numpy(_filled([self.sequences[i] for i in which], length, self.end or 0))
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        units = None
        if self.end is not None:
            units = torch.tensor([min(len(self.sequences[i]) + 1, length) for i in which])
        return Batch(tokens, ~everywhere, everywhere, names, place, total, self._condition(which), units)

    def _condition(self, which: Numbers) -> Condition | None:
        if not self.conditions:
            return None
        source = None
        if self.sources is not None:
            rows = [self.sources[i] for i in which]
            source = torch.from_numpy(_filled(rows, max(map(len, rows)), NO_TOKEN))
        return Condition.of(
            labels=None if self.labels is None else torch.from_numpy(self.labels[which]),
            source=source,
            signal=None if self.signals is None else torch.from_numpy(self.signals[which]),
        )


def check_batch(batch: int) -> None:
    if batch < 1:
        raise UserError(f"The batch must hold at least 1 sequence, not {batch}.")


def numbered(step: int, batch: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of each row in the batch of a step, and its name, which no other row of the training has."""
    place = torch.arange(batch)[rows]
    return place, step * batch + place


@dataclass(frozen=True)
class Picks:
    """Batch after batch of examples drawn with replacement; which ones depends on (seed, sample number) alone."""

    examples: Examples
    length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        check_batch(self.batch)

    @cached_property
    def fitting(self) -> Examples:
        return self.examples.of_length(self.length)

    def at(self, step: int, rows: slice = EVERYTHING) -> Batch:
        """The batch of a step, or some of its rows."""
        place, names = numbered(step, self.batch, rows)
        u = Keyed(self.seed, 0, names, place, self.batch).uniform(len(names), 1)[:, 0]
        which = (u * len(self.fitting)).long().numpy()
        return self.fitting.batch(which, names, place, self.batch, self.length)


def in_turn(examples: Examples, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """All examples that fit, or at most `limit` of them spread over the collection."""
    fitting = examples.of_length(length)
    wanted = len(fitting) if limit is None else min(limit, len(fitting))
    which = np.arange(wanted) * len(fitting) // wanted
    for first in range(0, wanted, batch):
        part = which[first : first + batch]
        place = torch.arange(first, first + len(part))
        yield fitting.batch(part, torch.from_numpy(part), place, wanted, length)


def _filled(rows: Sequence[Ids], length: int, filler: int) -> Numbers:
    filled = np.full((len(rows), length), filler, dtype=np.int64)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return filled
