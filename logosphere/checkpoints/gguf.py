"""GGUF files (version 3, of llama.cpp): metadata, tokenizer and tensors, read by a reader of its own.

A file is a header (magic, version, two counts), the metadata (names and typed values), the list of tensors (name,
sides with the fastest first, type, place), and the data. Nothing in it is trusted: every length and count is compared
with what is left of the file before memory is allocated for it. The file is mapped into memory, and a tensor is
read and dequantised when it is asked for.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from logosphere.checkpoints.families import TensorInfo
from logosphere.checkpoints.gguf_blocks import BLOCKS, TYPE_NAMES, dequantise
from logosphere.errors import UserError, shorten
from logosphere.untrusted import open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_NAME, MAX_TEXT = 1 << 10, 1 << 22
"""Bytes of a name and of a text."""
MAX_VALUES, MAX_TENSORS = 1 << 14, 1 << 17
MAX_ITEMS = 1 << 22
"""Elements of all arrays together; vocabularies have some 10^5."""
MAX_DIMENSIONS, MAX_SIDE = 4, 1 << 32

STRING, ARRAY = 8, 9
NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
U32, U64 = Struct("<I"), Struct("<Q")

CONFIG = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "rope_scaling": "rope.scaling.type",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
}
"""Entries of config.json, and those of the metadata, below the name of the architecture, that say the same."""
IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "mask": "mask"}


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor in the file."""

    info: TensorInfo
    start: int
    size: int
    """Its first byte and its bytes."""


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file that is open."""

    path: Path
    metadata: Mapping[str, Any]
    """Texts, numbers, and arrays: lists of texts and arrays of numpy."""
    stored: Mapping[str, GGUFTensor]

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name, with their slowest side first, as elsewhere."""
        return {name: tensor.info for name, tensor in self.stored.items()}

    @property
    def architecture(self) -> str:
        """The architecture, such as llama."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise _damaged(self.path, "it names no architecture")
        return name

    @property
    def config(self) -> Mapping[str, Any]:
        """What config.json of such a model would say."""
        kind = self.architecture
        found = {name: self.metadata.get(f"{kind}.{key}") for name, key in CONFIG.items()}
        found |= {f"{name}_token_id": self.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in IDS.items()}
        rotated = self.metadata.get(f"{kind}.rope.dimension_count")
        if rotated is not None and rotated != (found["head_dim"] or _head_width(found)):
            raise UserError(f"{self.path} rotates {shorten(rotated)} features of each head, and not all of them.")
        found["rope_scaling"] = None if found["rope_scaling"] in ("none", "") else found["rope_scaling"]
        if self.metadata.get(f"{kind}.expert_count"):
            raise UserError(f"{self.path} is a mixture of experts, which is not available.")
        shift = self.metadata.get("diffusion.shift_logits")
        if isinstance(shift, bool):
            found["logosphere"] = {"shift": shift}
        found["license"] = self.metadata.get("general.license")
        return {"model_type": kind} | {name: value for name, value in found.items() if value is not None}

    @property
    def chat_template(self) -> str | None:
        """The template of chats, if there is one; it is a program of a stranger, to be run in a sandbox alone."""
        template = self.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @cached_property
    def _map(self) -> mmap.mmap:
        with open_regular(self.path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, name: str) -> Tensor:
        """The values of a tensor in memory of their own, those of quantised ones as float32."""
        tensor = self.stored[name]
        raw = np.frombuffer(self._map, dtype=np.uint8, count=tensor.size, offset=tensor.start)
        return dequantise(raw, tensor.info)


def open_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file and check the place of each tensor."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Header(path, content).read()
    except ValueError:  # an empty file cannot be mapped
        raise _damaged(path, "it is empty") from None


def _head_width(config: Mapping[str, Any]) -> Any:
    """The width of a head, where the width and the number of heads say it."""
    total, heads = config["hidden_size"], config["num_attention_heads"]
    return total // heads if type(total) is int and type(heads) is int and heads > 0 else None


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged or not a GGUF file: {reason}; fetch the file again.")


class _Header:
    """Reads a header from its beginning to its end."""

    def __init__(self, path: Path, content: mmap.mmap):
        self.path, self.content, self.size = path, content, len(content)
        self.place, self.items = 0, 0

    def read(self) -> GGUFFile:
        if self.take(4) != MAGIC:
            raise _damaged(self.path, "it does not begin with GGUF")
        if (version := self.u32()) not in VERSIONS:
            raise UserError(f"{self.path} has version {version} of GGUF; versions 2 and 3, little-endian, are read.")
        tensors, values = self.count(MAX_TENSORS, 24, "tensors"), self.count(MAX_VALUES, 13, "values")
        metadata: dict[str, Any] = {}
        for _ in range(values):
            name = self.text(MAX_NAME)
            if name in metadata:
                raise _damaged(self.path, f"{shorten(name)} occurs twice")
            metadata[name] = self.value(self.u32())
        entries = [self.entry() for _ in range(tensors)]
        return GGUFFile(self.path, metadata, self.place_tensors(entries, metadata.get("general.alignment", 32)))

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > self.size - self.place:
            raise _damaged(self.path, f"it ends within its header, after {self.size:,} bytes")
        self.place += size
        return self.content[self.place - size : self.place]

    def u32(self) -> int:
        return int(U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(U64.unpack(self.take(8))[0])

    def count(self, most: int, least_size: int, what: str) -> int:
        """A number of things, each of which takes at least so many bytes of what is left."""
        count = self.u64()
        if count > most or count * least_size > self.size - self.place:
            raise _damaged(self.path, f"it claims to have {count:,} {what}")
        return count

    def text(self, most: int) -> str:
        size = self.u64()
        if size > most:
            raise _damaged(self.path, f"a text has {size:,} bytes, and at most {most:,} are read")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise _damaged(self.path, "a text is not UTF-8") from None

    def value(self, kind: int) -> Any:
        """A text, a number, or an array of either; arrays of arrays are allowed by the format and never used."""
        if kind == STRING:
            return self.text(MAX_TEXT)
        if kind in NUMBERS:
            return self.numbers(kind, 1)[0].item()
        if kind != ARRAY:
            raise _damaged(self.path, f"a value has the unknown type {kind}")
        if (inner := self.u32()) != STRING and inner not in NUMBERS:
            raise _damaged(self.path, f"an array has elements of the type {inner}")
        count = self.count(MAX_ITEMS, 8 if inner == STRING else np.dtype(NUMBERS[inner]).itemsize, "array elements")
        self.items += count
        if self.items > MAX_ITEMS:
            raise _damaged(self.path, f"its arrays have more than {MAX_ITEMS:,} elements")
        return [self.text(MAX_TEXT) for _ in range(count)] if inner == STRING else self.numbers(inner, count)

    def numbers(self, kind: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(NUMBERS[kind])
        raw = self.take(count * dtype.itemsize)
        if kind == 7:  # any other byte than 0 and 1 would be no bool of numpy
            return np.frombuffer(raw, np.uint8) != 0
        return np.frombuffer(raw, dtype)

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and place of a tensor."""
        name, axes = self.text(MAX_NAME), self.u32()
        if not 1 <= axes <= MAX_DIMENSIONS:
            raise _damaged(self.path, f"{shorten(name)} has {axes} axes")
        shape = tuple(self.u64() for _ in range(axes))[::-1]
        if not all(1 <= side <= MAX_SIDE for side in shape):
            raise _damaged(self.path, f"{shorten(name)} has the shape {list(shape)}")
        return name, shape, self.u32(), self.u64()

    def place_tensors(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], alignment: Any
    ) -> dict[str, GGUFTensor]:
        """The tensors in their places, which must lie within the file and not overlap."""
        if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
            raise _damaged(self.path, f"it aligns tensors to {shorten(alignment)} bytes")
        base = -(-self.place // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, start in entries:
            known = TYPE_NAMES.get(kind, f"type {kind}")
            if known not in BLOCKS:
                raise UserError(
                    f"{self.path} holds {shorten(name)} as {known}, which cannot be read; take a file whose tensors "
                    f"are {', '.join(BLOCKS)}."
                )
            block = BLOCKS[known]
            if shape[-1] % block.numbers:
                raise _damaged(self.path, f"rows of {shape[-1]} in {shorten(name)} are no blocks of {block.numbers}")
            size = math.prod(shape) // block.numbers * block.size
            if start % alignment or base + start + size > self.size:
                raise _damaged(self.path, f"{shorten(name)} would end at byte {base + start + size:,} of {self.size:,}")
            if name in tensors:
                raise _damaged(self.path, f"{shorten(name)} occurs twice")
            tensors[name] = GGUFTensor(TensorInfo(shape, known), base + start, size)
        end = base
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.start):
            if tensor.start < end:
                raise _damaged(self.path, "tensors overlap")
            end = tensor.start + tensor.size
        return tensors
