"""Splits of a corpus: one long row of tokens, separate examples, or a stream; sizes, cuts and checks of any of them."""

from typing import Any

import numpy as np

from logosphere.data.datasets.examples import Examples
from logosphere.data.streaming import StreamedSplit
from logosphere.data.token_shards import ShardedTokens
from logosphere.errors import UserError

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
    return sum(min(len(row) + 1, length) for row in split.sequences)


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
