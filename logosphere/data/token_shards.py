"""A long row of tokens in several files of raw little-endian integers, few of which are mapped into memory at a time.

Neither memory nor address space limits the length of a text.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logosphere.data.tokenizers import TokenIds

SHARD_TOKENS = 1 << 27
"""Tokens in each file but the last."""
MAX_MAPPED = 4
"""Files mapped at the same time."""


@dataclass(frozen=True)
class Shard:
    """One file: the number of its tokens, and their hash."""

    tokens: int
    sha256: str


def shard_path(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:05d}.tokens"


class ShardWriter:
    """Writes a row of tokens file by file; each is on disk before the next is begun."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], size: int = SHARD_TOKENS):
        self.folder, self.split, self.dtype, self.size = folder, split, dtype, size
        self.shards: list[Shard] = []
        self._begin()

    def _begin(self) -> None:
        self.file = shard_path(self.folder, self.split, len(self.shards)).open("wb")
        self.digest, self.tokens = hashlib.sha256(), 0

    def write(self, ids: TokenIds) -> None:
        while len(ids):
            part, ids = ids[: self.size - self.tokens], ids[self.size - self.tokens :]
            content = np.ascontiguousarray(part, self.dtype).data
            self.file.write(content)
            self.digest.update(content)
            self.tokens += len(part)
            if self.tokens == self.size:
                self._end()
                self._begin()

    def _end(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.shards.append(Shard(self.tokens, self.digest.hexdigest()))

    def finish(self) -> list[Shard]:
        """Close and return all files; the last may be empty only if it is the only one."""
        if self.tokens or not self.shards:
            self._end()
        else:
            self.close()
            shard_path(self.folder, self.split, len(self.shards)).unlink()
        return self.shards

    def close(self) -> None:
        self.file.close()


@dataclass
class _MappedFiles:
    """The files of a row, mapped when they are needed."""

    paths: Sequence[Path]
    ends: npt.NDArray[np.int64]
    """Index of the first token after each file."""
    dtype: np.dtype[Any]
    mapped: "OrderedDict[int, TokenIds]" = field(default_factory=OrderedDict)

    def tokens(self, number: int) -> TokenIds:
        """The tokens of a file; the least recently used file is unmapped for it."""
        if number not in self.mapped:
            if len(self.mapped) >= MAX_MAPPED:
                self.mapped.popitem(last=False)
            self.mapped[number] = np.memmap(self.paths[number], dtype=self.dtype, mode="r")
        self.mapped.move_to_end(number)
        return self.mapped[number]


class ShardedTokens:
    """A row of tokens in several files, with a length, contiguous slices and fancy indexing."""

    def __init__(self, files: _MappedFiles, start: int, stop: int):
        self._files, self._start, self._stop = files, start, stop

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._files.dtype

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, indices: "slice | npt.NDArray[np.int64]") -> "ShardedTokens | TokenIds":
        if isinstance(indices, slice):
            start, stop, step = indices.indices(len(self))
            if step != 1:
                raise IndexError("tokens in files have contiguous slices only")
            return ShardedTokens(self._files, self._start + start, self._start + max(start, stop))
        if indices.size and not (0 <= int(indices.min()) and int(indices.max()) < len(self)):
            raise IndexError("there is no token at this index")
        return self._gather(indices + self._start)

    def _gather(self, indices: npt.NDArray[np.int64]) -> TokenIds:
        ends = self._files.ends
        number = np.searchsorted(ends, indices, side="right")
        taken = np.empty(indices.shape, self._files.dtype)
        for which in np.unique(number).tolist():
            inside, begin = number == which, int(ends[which - 1]) if which else 0
            taken[inside] = self._files.tokens(which)[indices[inside] - begin]
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """All tokens in memory, for short rows."""
        taken = self._gather(np.arange(self._start, self._stop))
        return taken if dtype is None else taken.astype(dtype)


def open_shards(paths: Sequence[Path], counts: Sequence[int], dtype: np.dtype[Any]) -> "TokenIds | ShardedTokens":
    """The row of tokens in these files; a single file is mapped as an array."""
    if len(paths) == 1:
        return np.memmap(paths[0], dtype=dtype, mode="r")
    ends = np.cumsum(counts, dtype=np.int64)
    return ShardedTokens(_MappedFiles(paths, ends, dtype), 0, int(ends[-1]))
