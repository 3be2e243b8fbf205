"""Headers of safetensors files: names, shapes, types and places of tensors, validated without reading weights.

A file is the length of the header (8 bytes, little-endian), the header (JSON), and the data. Nothing in it is trusted:
every entry is checked against the size of the file before memory is allocated for it.
"""

import json
import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.checkpoints.families import TensorInfo
from logosphere.errors import UserError, shorten
from logosphere.io import TENSOR_TYPES
from logosphere.untrusted import open_regular

TYPES = {name: getattr(torch, kind) for kind, name in TENSOR_TYPES.items()}
MAX_HEADER = 32 << 20
"""Bytes of a header; that of a model with 100,000 tensors has half of it."""
MAX_DIMENSIONS = 8
MAX_SIDE = 1 << 40
MAPPED = 1 << 20
"""Bytes from which on a tensor is mapped instead of read."""
RESTORE = "fetch the file again"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    info: TensorInfo
    path: Path
    start: int
    """Its first byte in the file."""
    size: int
    """Its bytes."""

    def read(self) -> Tensor:
        """Its values: a large tensor is mapped from the file, so that it takes no memory but what the system lends it.

        The map is private: what is written into the tensor, as in training, does not reach the file.
        """
        dtype = TYPES[self.info.dtype]
        if not self.size:
            return torch.empty(self.info.shape, dtype=dtype)
        with open_regular(self.path) as file:
            if self.size < MAPPED or self.start % dtype.itemsize:
                file.seek(self.start)
                buffer = bytearray(self.size)
                if file.readinto(buffer) != self.size:
                    raise self._shortened()
                return torch.frombuffer(buffer, dtype=dtype).view(self.info.shape)
            before = self.start % mmap.ALLOCATIONGRANULARITY
            try:
                mapped = mmap.mmap(
                    file.fileno(), before + self.size, access=mmap.ACCESS_COPY, offset=self.start - before
                )
            except ValueError:
                raise self._shortened() from None
        count = self.size // dtype.itemsize
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=before).view(self.info.shape)

    def _shortened(self) -> UserError:
        return UserError(f"{self.path} has become shorter while it was read; {RESTORE}.")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or not 2 <= length <= MAX_HEADER:
                raise _damaged(path, "it does not begin with the length of a header")
            if 8 + length > size:
                raise _damaged(path, f"it ends within its header, after {size:,} of at least {8 + length:,} bytes")
            content = json.loads(file.read(length), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as problem:
        raise _damaged(path, f"its header is not valid ({shorten(str(problem))})") from None
    if not isinstance(content, dict):
        raise _damaged(path, "its header is no table of tensors")
    content.pop("__metadata__", None)
    tensors = {name: _entry(path, name, entry, 8 + length) for name, entry in content.items()}
    _check_places(path, tensors, 8 + length, size)
    return tensors


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged or not a safetensors file: {reason}; {RESTORE}.")


def _entry(path: Path, name: str, entry: Any, base: int) -> StoredTensor:
    """One entry of a header, its type known and its size that of its shape."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"the entry of {shorten(name)} lacks its type, shape or place")
    kind, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _is_counts(shape) or len(shape) > MAX_DIMENSIONS or not _is_counts(place) or len(place) != 2:
        raise _damaged(path, f"the shape {shorten(shape)} or the place {shorten(place)} of {shorten(name)} is invalid")
    if not isinstance(kind, str) or kind not in TYPES:
        raise UserError(
            f"{path} holds {shorten(name)} in the type {shorten(kind)}, which cannot be read; weights must be "
            "F32, BF16, F16 or F64, so convert or dequantise the checkpoint first."
        )
    size = math.prod(shape) * TYPES[kind].itemsize
    if place[1] - place[0] != size:
        raise _damaged(path, f"{shorten(name)} of shape {shape} and type {kind} needs {size:,} bytes, not {place}")
    return StoredTensor(TensorInfo(tuple(shape), kind), path, base + place[0], size)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(part) is int and 0 <= part <= MAX_SIDE for part in value)


def _check_places(path: Path, tensors: dict[str, StoredTensor], base: int, size: int) -> None:
    """Tensors must follow one another without gaps and end with the file."""
    end = base
    for stored in sorted(tensors.values(), key=lambda stored: (stored.start, stored.size)):
        if stored.start != end:
            raise _damaged(path, "the places of its tensors overlap or leave gaps")
        end += stored.size
    if end != size:
        what = "is truncated" if size < end else "has bytes that belong to no tensor"
        raise UserError(f"{path} {what}: its header describes {end:,} bytes, and it has {size:,}; {RESTORE}.")
