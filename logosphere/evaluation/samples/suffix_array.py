"""A suffix array: the longest match with a text at every position of another."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
