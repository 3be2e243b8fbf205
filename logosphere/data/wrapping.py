"""Windows of tokens between BOS and EOS, as the papers on masked diffusion cut texts for their perplexities."""

from typing import NamedTuple

import numpy as np

from logosphere.data.corpus import AnyArray, Examples, Split, require_indexable
from logosphere.data.tokenizer_registry import SubwordTokenizer
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError

WRAPPINGS = (("<|endoftext|>", "<|endoftext|>"), ("[CLS]", "[SEP]"), ("<s>", "</s>"))
"""Names of BOS and EOS in published vocabularies: of GPT-2, of BERT and of Llama."""


class Wrapping(NamedTuple):
    """The tokens before and after each window; EOS also ends each document."""

    bos: int
    eos: int


def find_wrapping(tokenizer: Tokenizer) -> Wrapping | None:
    """BOS and EOS of a tokenizer; None for alphabets without such tokens."""
    if isinstance(tokenizer, SubwordTokenizer):
        for bos, eos in WRAPPINGS:
            first, last = tokenizer.id_of(bos), tokenizer.id_of(eos)
            if first is not None and last is not None:
                return Wrapping(first, last)
    return None if tokenizer.eos is None else Wrapping(tokenizer.eos, tokenizer.eos)


def wrap_windows(split: Split, wrapping: Wrapping, length: int) -> AnyArray:
    """[N, length]: the tokens of a split cut into pieces of length - 2, each between BOS and EOS.

    Separate texts are documents and each is followed by EOS; in a running text the ends of documents are as they are.
    What remains after the last whole piece is dropped.
    """
    row, inner = _concatenate(split, wrapping.eos), length - 2
    if inner < 1:
        raise UserError(f"Windows between BOS and EOS need a length of at least 3, not {length}.")
    count = len(row) // inner
    if count < 1:
        raise UserError(
            f"The text has {len(row):,} tokens, fewer than a window of {inner} between BOS and EOS; give more text."
        )
    windows = np.empty((count, length), dtype=row.dtype)
    windows[:, 0], windows[:, -1] = wrapping.bos, wrapping.eos
    windows[:, 1:-1] = row[: count * inner].reshape(count, inner)
    return windows


def _concatenate(split: Split, eos: int) -> AnyArray:
    split = require_indexable(split)
    if not isinstance(split, Examples):
        return np.asarray(split[:])
    return np.concatenate([np.append(np.asarray(row, dtype=np.int64), eos) for row in split.sequences])
