"""Separate sequences with their conditions, and batches of them: drawn for training, sequential for evaluation.

Sequences shorter than the model's length are padded with an EOS token, which is learnt like any other token: where a
model writes it determines the length of its text. Bits are counted per real token, including the first EOS.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from logosphere.data.tokenizers import TokenIds
from logosphere.errors import UserError
from logosphere.rng import CounterNoise
from logosphere.types import NO_TOKEN, Batch, Condition, Tokens

IntArray = npt.NDArray[np.int64]
ALL_ROWS = slice(None)


@dataclass(frozen=True)
class Examples:
    """Sequences of token ids, and the conditions of each, where there are any."""

    sequences: Sequence[TokenIds]
    eos: int | None = None
    """Pads short sequences; None when all have the same length."""
    labels: IntArray | None = None
    label_count: int = 0
    sources: Sequence[TokenIds] | None = None
    source_size: int = 0
    """Size of the vocabulary of sources."""
    signals: npt.NDArray[np.float32] | None = None
    """[N, L, C]"""

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def token_count(self) -> int:
        """The number of tokens of all sequences, without EOS."""
        return sum(map(len, self.sequences))

    @cached_property
    def conditions(self) -> dict[str, int]:
        """Sizes that a network must be built with to read these conditions."""
        sizes: dict[str, int] = {}
        if self.labels is not None:
            sizes["labels"] = self.label_count
        if self.sources is not None:
            sizes |= {"source": self.source_size, "source_length": max(map(len, self.sources))}
        if self.signals is not None:
            sizes["signal"] = self.signals.shape[2]
        return sizes

    def select(self, indices: IntArray) -> "Examples":
        """The examples with these indices."""
        return replace(
            self,
            sequences=[self.sequences[i] for i in indices],
            labels=None if self.labels is None else self.labels[indices],
            sources=None if self.sources is None else [self.sources[i] for i in indices],
            signals=None if self.signals is None else self.signals[indices],
        )

    def filter_by_length(self, length: int) -> "Examples":
        """The examples that fit into a model of this length."""
        lengths = np.array([len(row) for row in self.sequences])
        if self.eos is None and not bool((lengths == length).all()):
            raise UserError(f"These sequences have {lengths[0]:,} tokens each; train with --length {lengths[0]}.")
        keep = np.flatnonzero(lengths <= length)
        if not len(keep):
            raise UserError(
                f"No sequence fits into {length} tokens, the shortest has {lengths.min():,}; give a larger --length."
            )
        return self if len(keep) == len(lengths) else self.select(keep)

    def padded_rows(self, length: int) -> Tokens:
        """All sequences that fit, padded to one length."""
        return torch.from_numpy(_pad(self.filter_by_length(length).sequences, length, self.eos or 0))

    def make_batch(self, indices: IntArray, ids: torch.Tensor, place: torch.Tensor, total: int, length: int) -> Batch:
        """The examples with these indices as a batch, padded to one length."""
        tokens = torch.from_numpy(_pad([self.sequences[i] for i in indices], length, self.eos or 0))
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        units = None
        if self.eos is not None:
            units = torch.tensor([min(len(self.sequences[i]) + 1, length) for i in indices])
        return Batch(tokens, ~everywhere, everywhere, ids, place, total, self._condition(indices), units)

    def _condition(self, indices: IntArray) -> Condition | None:
        if not self.conditions:
            return None
        source = None
        if self.sources is not None:
            rows = [self.sources[i] for i in indices]
            source = torch.from_numpy(_pad(rows, max(map(len, rows)), NO_TOKEN))
        return Condition.of(
            labels=None if self.labels is None else torch.from_numpy(self.labels[indices]),
            source=source,
            signal=None if self.signals is None else torch.from_numpy(self.signals[indices]),
        )


def check_batch_size(batch: int) -> None:
    if batch < 1:
        raise UserError(f"The batch must hold at least 1 sequence, not {batch}.")


def number_rows(step: int, batch: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of each row in the batch of a step, and its sample id, unique over the whole training."""
    place = torch.arange(batch)[rows]
    return place, step * batch + place


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
        place, ids = number_rows(step, self.batch, rows)
        u = CounterNoise(self.seed, 0, ids, place, self.batch).uniform(len(ids), 1)[:, 0]
        indices = (u * len(self.fitting)).long().numpy()
        return self.fitting.make_batch(indices, ids, place, self.batch, self.length)


def sequential_batches(examples: Examples, length: int, batch: int, limit: int | None = None) -> Iterator[Batch]:
    """All examples that fit, or at most `limit` of them spread evenly, in their order."""
    fitting = examples.filter_by_length(length)
    wanted = len(fitting) if limit is None else min(limit, len(fitting))
    indices = np.arange(wanted) * len(fitting) // wanted
    for first in range(0, wanted, batch):
        part = indices[first : first + batch]
        place = torch.arange(first, first + len(part))
        yield fitting.make_batch(part, torch.from_numpy(part), place, wanted, length)


def _pad(rows: Sequence[TokenIds], length: int, filler: int) -> IntArray:
    padded = np.full((len(rows), length), filler, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded
