"""Several separate texts in one row of a batch: documents whose attention is kept apart (Batch.documents)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from logosphere.data.corpus import ALL_ROWS, Examples, IntArray
from logosphere.rng import CounterNoise
from logosphere.types import Batch

MULTIPLE = 8
"""Documents are padded with the end token up to a multiple of so many tokens. The number of masks then says little
about the length of a text: a network must predict where it ends, as in rows of one text."""
MOST = 256
"""Documents of a row, at most."""
PADDING = -1
"""The document number of positions that are left over."""


@dataclass(frozen=True)
class PackedSampler:
    """Rows of documents drawn with replacement, one after another while they fit; a row depends on (seed, id) alone."""

    examples: Examples
    length: int
    batch: int
    seed: int

    @cached_property
    def fitting(self) -> Examples:
        """The examples that fit into a row."""
        return self.examples.filter_by_length(self.length)

    @cached_property
    def _most(self) -> int:
        return min(MOST, self.length // max(1, min(map(len, self.fitting.sequences))) + 1)

    def at(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """The batch of a step, or some of its rows."""
        index = torch.arange(self.batch)[rows]
        ids = step * self.batch + index
        u = CounterNoise(self.seed, 0, ids, index, self.batch).uniform(len(ids), self._most)
        drawn = (u * len(self.fitting)).long().numpy()
        return pack_rows(self.fitting, [self._choose(row) for row in drawn], ids, index, self.batch, self.length)

    def _choose(self, drawn: IntArray) -> list[int]:
        """The first documents that fit into a row together."""
        chosen, filled = [], 0
        for document in drawn.tolist():
            filled += padded_length(self.fitting, document, self.length)
            if filled > self.length:
                break
            chosen.append(document)
        return chosen


def padded_length(examples: Examples, document: int, length: int) -> int:
    """Tokens of a document in a row: its text, its end, and further ends up to a multiple of MULTIPLE."""
    size = len(examples.sequences[document])
    if examples.eos is None:
        return size
    return min(size + 1 + -(size + 1) % MULTIPLE, length)


def pack_rows(
    examples: Examples, rows: list[list[int]], ids: torch.Tensor, global_index: torch.Tensor, total: int, length: int
) -> Batch:
    """A batch whose rows hold these documents one after another; what is left over is padding."""
    filler = examples.eos or 0
    tokens = np.full((len(rows), length), filler, dtype=np.int64)
    documents = np.full((len(rows), length), PADDING, dtype=np.int64)
    known, counts = np.zeros((len(rows), length), dtype=bool), np.zeros(len(rows), dtype=np.int64)
    for row, chosen in enumerate(rows):
        start = 0
        for number, document in enumerate(chosen):
            text, end = examples.sequences[document], start + padded_length(examples, document, length)
            prompt = 0 if examples.prompts is None else int(examples.prompts[document])
            tokens[row, start : start + len(text)] = text
            known[row, start : start + prompt] = True
            documents[row, start:end] = number
            counts[row] += min(len(text) + (examples.eos is not None), end - start) - prompt
            start = end
    packed = torch.from_numpy(documents)
    return Batch(
        torch.from_numpy(tokens), torch.from_numpy(known), packed != PADDING, ids, global_index, total,
        token_count=torch.from_numpy(counts), documents=packed,
    )  # fmt: skip
