"""Inputs and outputs of sample metrics: texts with their tokens, reference texts, and values with errors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logosphere.data.tokenizers import TokenIds, Tokenizer, WithEOS
from logosphere.types import Float, Int64, Tokens

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class SuffixArray:
    """The suffixes of a text, sorted by their first `depth` tokens (Manber and Myers 1990, by doubling)."""

    text: IntArray
    """The text, padded by `depth` tokens smaller than all others."""
    order: IntArray
    depth: int

    @staticmethod
    def build(text: IntArray, depth: int) -> "SuffixArray":
        """O(n log n log depth): suffixes sorted by 1, 2, 4, … tokens, each from the ranks of the previous pass."""
        n = len(text)
        rank = np.unique(text, return_inverse=True)[1].astype(np.int64) + 1
        span = 1
        while span < depth and rank.max() < n:
            after = np.zeros(n, dtype=np.int64)
            after[: max(n - span, 0)] = rank[span:]
            rank = np.unique(rank * (n + 1) + after, return_inverse=True)[1].astype(np.int64) + 1
            span *= 2
        padded = np.concatenate([text.astype(np.int64), np.full(depth, -1)])
        return SuffixArray(padded, np.argsort(rank, kind="stable"), depth)

    def longest_matches(self, row: IntArray) -> IntArray:
        """For each position of a row, the length of the longest match that begins there and occurs in the text.

        A suffix shares its longest prefix with one of its neighbours in sorted order, so the two neighbours of the
        insertion point of the row's suffix are enough. The binary searches of all positions run in parallel.
        """
        length = len(row)
        padded = np.concatenate([row.astype(np.int64), np.full(self.depth, -2)])
        queries = padded[np.arange(length)[:, None] + np.arange(self.depth)]
        low, high = np.zeros(length, dtype=np.int64), np.full(length, len(self.order))
        while (low < high).any():
            middle = np.minimum((low + high) // 2, len(self.order) - 1)
            below = self._is_before(queries, self.order[middle]) & (low < high)
            above = ~below & (low < high)
            low = np.where(below, middle + 1, low)
            high = np.where(above, middle, high)
        matches = [
            self._shared_prefix(queries, self.order[np.clip(low + side, 0, len(self.order) - 1)]) for side in (-1, 0)
        ]
        return np.maximum(*matches)

    def _rows(self, starts: IntArray) -> IntArray:
        return self.text[starts[:, None] + np.arange(self.depth)]

    def _is_before(self, queries: IntArray, starts: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each suffix sorts before its query."""
        rows = self._rows(starts)
        first = (rows != queries).argmax(1)
        pick = np.arange(len(queries))
        return rows[pick, first] < queries[pick, first]

    def _shared_prefix(self, queries: IntArray, starts: IntArray) -> IntArray:
        """The length of the common prefix of each suffix and its query."""
        differ = self._rows(starts) != queries
        return np.where(differ.any(1), differ.argmax(1), self.depth)


TRAIN_TOKENS = 1_000_000
"""Number of tokens, from the beginning of the training text, that samples are compared with."""


@dataclass(frozen=True)
class MetricValue:
    """A value and its standard error over samples; NaN where the metric has none."""

    value: float
    error: float = math.nan

    @staticmethod
    def mean(values: Float[Tensor, " N"]) -> "MetricValue":
        """The mean over samples."""
        values = values.double()
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
        return MetricValue(float(values.mean()), error)


@dataclass(frozen=True)
class Texts:
    """Samples: their tokens [n, L] and their decoded strings."""

    tokens: Tokens
    strings: tuple[str, ...]

    @staticmethod
    def from_tokens(tokens: Tokens, tokenizer: Tokenizer) -> "Texts":
        return Texts(tokens.cpu(), tuple(tokenizer.decode(row) for row in tokens.cpu().numpy()))


@dataclass(frozen=True)
class Reference:
    """The texts that samples are compared with."""

    tokenizer: Tokenizer
    train: TokenIds
    """The training text, or its beginning."""
    real: Texts
    """Held-out text, of the same length as the samples."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The distinct words of the training text."""
        texts = [self.train]
        if isinstance(self.tokenizer, WithEOS):
            texts = np.split(self.train, np.flatnonzero(np.asarray(self.train) == self.tokenizer.eos) + 1)
        return frozenset(word for text in texts for word in self.tokenizer.decode(text).split())

    @cached_property
    def suffixes(self) -> SuffixArray:
        return SuffixArray.build(np.asarray(self.train, dtype=np.int64), self.real.tokens.shape[1])

    @property
    def train_tokens(self) -> Tensor:
        return torch.from_numpy(np.asarray(self.train, dtype=np.int64))


@dataclass(frozen=True)
class Metric:
    """A metric of samples."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher", "as real text"]
    definition: str
    measure: Callable[[Texts, Reference], MetricValue]
    version: str = ""
    """Distinguishes metrics of the same name whose scorers differ."""
    min_texts: int = 1
    """Fewer samples, or fewer held-out texts, are not measured."""


def extract_ngrams(tokens: Int64[Tensor, "... L"], n: int) -> Int64[Tensor, "... M n"]:
    """All runs of n tokens; shorter ones if a text has fewer."""
    return tokens.unfold(-1, min(n, tokens.shape[-1]), 1)
