"""Corpora: three splits of token ids with their tokenizer. A split is one long row, separate examples, or a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from logosphere.data.token_shards import ShardedTokens
from logosphere.data.tokenizers import TokenIds, Tokenizer
from logosphere.errors import UserError
from logosphere.types import NO_TOKEN, Batch, Condition, Tokens

IntArray = npt.NDArray[np.int64]
ALL_ROWS = slice(None)
COUNTED_TOKENS = 4_000_000
"""Training tokens whose frequencies are counted."""


@dataclass(frozen=True)
class Examples:
    """Sequences of token ids, and the conditions of each, where there are any.

    Sequences shorter than the length of a model are padded with EOS, which is trained on like any other token; its
    first position in a sample is the length of the text. Bits are counted per token, including the first EOS.
    """

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
    prompts: IntArray | None = None
    """How many tokens at the beginning of each sequence are a prompt: known, and not counted."""

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
            prompts=None if self.prompts is None else self.prompts[indices],
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

    def make_batch(
        self, indices: IntArray, ids: torch.Tensor, global_index: torch.Tensor, total: int, length: int
    ) -> Batch:
        """The examples with these indices as a batch, padded to one length."""
        tokens = torch.from_numpy(_pad([self.sequences[i] for i in indices], length, self.eos or 0))
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        known, token_count = ~everywhere, None
        if self.eos is not None:
            token_count = torch.tensor([min(len(self.sequences[i]) + 1, length) for i in indices])
        if self.prompts is not None:
            prompts = torch.from_numpy(self.prompts[indices])
            known = torch.arange(length) < prompts[:, None]
            token_count = None if token_count is None else token_count - prompts
        return Batch(tokens, known, everywhere, ids, global_index, total, self._condition(indices), token_count)

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


def _pad(rows: Sequence[TokenIds], length: int, filler: int) -> IntArray:
    padded = np.full((len(rows), length), filler, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


@runtime_checkable
class Table(Protocol):
    """The interface of a streamed dataset; `datasets.IterableDataset` has it."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class StreamedSplit:
    """A split of unknown size that is read from a stream."""

    name: str
    tokenizer: Tokenizer
    open: Callable[[], Table]
    """Opens the stream at its beginning."""


AnyArray = np.ndarray[Any, np.dtype[Any]]
TokenRow = AnyArray | ShardedTokens
Split = TokenRow | Examples | StreamedSplit


def count_tokens(split: Split) -> int:
    """The number of tokens of a split; 0 for a stream, whose size is unknown."""
    if isinstance(split, StreamedSplit):
        return 0
    return split.token_count if isinstance(split, Examples) else len(split)


def describe_size(split: Split) -> str:
    """The size of a split for messages: '1,000 tokens' or 'streamed'."""
    return "streamed" if isinstance(split, StreamedSplit) else f"{count_tokens(split):,} tokens"


def require_indexable(split: Split) -> TokenRow | Examples:
    """Return a split that can be read at any position; raise UserError for a stream."""
    if isinstance(split, StreamedSplit):
        raise UserError(
            f"The training split of {split.name} is a stream; use valid or test, or hf: in place of stream:."
        )
    return split


def count_sequences(split: Split, length: int, limit: int | None = None) -> int:
    """The number of sequences of this length that `eval_batches` makes of a split."""
    split = require_indexable(split)
    available = len(split.filter_by_length(length)) if isinstance(split, Examples) else len(split) // length
    return available if limit is None else min(limit, available)


def split_off(split: Split, part: int) -> tuple[Split, Split]:
    """Cut the last `part`-th off a split: (the rest, the last part)."""
    split = require_indexable(split)
    kept = len(split) - max(len(split) // part, 1)
    if isinstance(split, Examples):
        indices = np.arange(len(split))
        return split.select(indices[:kept]), split.select(indices[kept:])
    return split[:kept], split[kept:]


def count_scored_tokens(split: Split, length: int) -> int:
    """The number of tokens that a bound is divided by; EOS tokens that fit into the length are counted."""
    split = require_indexable(split)
    if not isinstance(split, Examples) or split.eos is None:
        return count_tokens(split)
    prompts = 0 if split.prompts is None else int(split.prompts.sum())
    return sum(min(len(row) + 1, length) for row in split.sequences) - prompts


def take_first_tokens(split: Split, count: int) -> AnyArray:
    """The first tokens of a split; examples are concatenated with their EOS tokens."""
    split = require_indexable(split)
    if not isinstance(split, Examples):
        return np.asarray(split[:count])
    eos = [] if split.eos is None else [[split.eos]]
    return np.concatenate([part for row in split.sequences for part in (row, *eos)])[:count].astype(np.int64)


def check_length(split: Split, length: int) -> None:
    """Raise UserError unless a split has at least one sequence of this length; streams are not checked."""
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if isinstance(split, StreamedSplit):
        return
    if isinstance(split, Examples):
        split.filter_by_length(length)
        return
    if len(split) < length:
        raise UserError(
            f"A split of the text has only {len(split):,} tokens, fewer than one sequence of {length}; "
            "give more text or a smaller --length."
        )


@dataclass(frozen=True)
class Corpus:
    """Token ids of three splits, and the numbers of characters and bytes of each."""

    name: str
    tokenizer: Tokenizer
    train: Split
    valid: Split
    test: Split
    sha256: str
    """Hash of the source text; of the held-out text for a stream."""
    characters: dict[str, int]
    bytes: dict[str, int]
    folder: Path | None
    """Folder of the token cache; None for datasets and streams, which have none."""
    labels: tuple[str, ...] = ()
    """Names of the labels of examples, in the order of their ids."""
    column: str = ""
    """The column of a table that the text was read from; empty for other sources."""

    @cached_property
    def token_counts(self) -> IntArray:
        """How often each token occurs in the beginning of the training text; not of a stream."""
        return np.bincount(take_first_tokens(self.train, COUNTED_TOKENS), minlength=self.tokenizer.size)

    def split(self, name: str) -> Split:
        """The split of this name: train, valid or test."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    @property
    def conditions(self) -> dict[str, int]:
        """Sizes that a network must be built with to read the conditions of all examples; empty for running text."""
        parts = [part.conditions for part in (self.train, self.valid, self.test) if isinstance(part, Examples)]
        return {name: max(part[name] for part in parts) for part in parts[:1] for name in part}
