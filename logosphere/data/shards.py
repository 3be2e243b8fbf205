"""A long row of tokens in several files of bare little-endian integers, few of which are mapped into memory at a time.

So neither memory nor address space bounds the length of a text.
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

from logosphere.data.tokenizers import Ids

SHARD = 1 << 27
"""Tokens in a file, but for the last."""
MAPPED = 4
"""Files that are mapped at the same time."""


@dataclass(frozen=True)
class Shard:
    """One file: how many tokens it must have, and their hash."""

    tokens: int
    sha256: str


def shard_path(folder: Path, split: str, number: int) -> Path:
    return folder / f"{split}-{number:05d}.tokens"


class ShardWriter:
    """Writes a row of tokens file by file; each is on the disk before the next is begun."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], size: int = SHARD):
        self.folder, self.split, self.dtype, self.size = folder, split, dtype, size
        self.shards: list[Shard] = []
        self._begin()

    def _begin(self) -> None:
        self.file = shard_path(self.folder, self.split, len(self.shards)).open("wb")
        self.digest, self.tokens = hashlib.sha256(), 0

    def write(self, ids: Ids) -> None:
        while len(ids):
            part, ids = ids[: self.size - self.tokens], ids[self.size - self.tokens :]
            content = part.astype(self.dtype).tobytes()
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
        """All files; the last may be empty only if it is the only one."""
        if self.tokens or not self.shards:
            self._end()
        else:
            self.close()
            shard_path(self.folder, self.split, len(self.shards)).unlink()
        return self.shards

    def close(self) -> None:
        self.file.close()


@dataclass
class _Maps:
    """The files of a row, mapped when they are needed."""

    paths: Sequence[Path]
    ends: npt.NDArray[np.int64]
    """Number of the first token after each file."""
    dtype: np.dtype[Any]
    mapped: "OrderedDict[int, Ids]" = field(default_factory=OrderedDict)

    def tokens(self, number: int) -> Ids:
        """The tokens of a file; the one that was not needed for the longest time makes room for it."""
        if number not in self.mapped:
            if len(self.mapped) >= MAPPED:
                self.mapped.popitem(last=False)
            self.mapped[number] = np.memmap(self.paths[number], dtype=self.dtype, mode="r")
        self.mapped.move_to_end(number)
        return self.mapped[number]


class Shards:
    """A row of tokens that lies in several files: it has a length, slices, and elements at any places."""

    def __init__(self, maps: _Maps, start: int, stop: int):
        self._maps, self._start, self._stop = maps, start, stop

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._maps.dtype

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, places: "slice | npt.NDArray[np.int64]") -> "Shards | Ids":
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            if step != 1:
                raise IndexError("tokens in files have slices of neighbours only")
            return Shards(self._maps, self._start + start, self._start + max(start, stop))
        if places.size and not (0 <= int(places.min()) and int(places.max()) < len(self)):
            raise IndexError("there is no token at this place")
        return self._taken(places + self._start)

    def _taken(self, places: npt.NDArray[np.int64]) -> Ids:
        ends = self._maps.ends
        number = np.searchsorted(ends, places, side="right")
        taken = np.empty(places.shape, self._maps.dtype)
        for which in np.unique(number).tolist():
            inside, begin = number == which, int(ends[which - 1]) if which else 0
            taken[inside] = self._maps.tokens(which)[places[inside] - begin]
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """All tokens in memory: for short rows."""
        taken = self._taken(np.arange(self._start, self._stop))
        return taken if dtype is None else taken.astype(dtype)


def open_shards(paths: Sequence[Path], counts: Sequence[int], dtype: np.dtype[Any]) -> "Ids | Shards":
    """The row that these files hold; a single file is mapped as it is."""
    if len(paths) == 1:
        return np.memmap(paths[0], dtype=dtype, mode="r")
    ends = np.cumsum(counts, dtype=np.int64)
    return Shards(_Maps(paths, ends, dtype), 0, int(ends[-1]))
