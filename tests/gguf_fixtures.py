"""A writer of GGUF files, from the description of the format: header, metadata, list of tensors, data."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

U32, F32, BOOL, TEXT, ARRAY, U64 = 4, 6, 7, 8, 9, 10
FLOAT32, FLOAT16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}

Entry = tuple[str, int, Any]
"""Name, type and value; the value of an array is (type of its elements, elements)."""


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    if kind == TEXT:
        return text(content)
    if kind == ARRAY:
        inner, items = content
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(FORMATS[kind], content)


def entry(name: str, shape: tuple[int, ...], kind: int, start: int) -> bytes:
    """A line of the list of tensors; the fastest side comes first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, start)


def gguf_bytes(
    metadata: list[Entry], tensors: dict[str, tuple[tuple[int, ...], int, bytes]], alignment: int = 32
) -> bytes:
    """A file with these tensors: shape, type and data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(name) + struct.pack("<I", kind) + value(kind, content) for name, kind, content in metadata)
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += entry(name, shape, kind, len(data))
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data


def float_tensors(values: dict[str, Tensor]) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    return {
        name: (tuple(tensor.shape), FLOAT32, tensor.to(torch.float32).numpy().astype("<f4").tobytes())
        for name, tensor in values.items()
    }


def write_gguf(path: Path, *parts: Any, **options: Any) -> Path:
    path.write_bytes(gguf_bytes(*parts, **options))
    return path


def llama_metadata(architecture: str = "llama", **changes: tuple[int, Any]) -> list[Entry]:
    """Metadata of a network as llama_fixtures.SMALL has it."""
    sizes = {
        "block_count": (U32, 2), "context_length": (U32, 16), "embedding_length": (U32, 16),
        "feed_forward_length": (U32, 24), "attention.head_count": (U32, 4), "attention.head_count_kv": (U32, 2),
        "rope.freq_base": (F32, 1e5), "attention.layer_norm_rms_epsilon": (F32, 1e-5), "vocab_size": (U32, 40),
        "rope.dimension_count": (U32, 4),
    }  # fmt: skip
    given: list[Entry] = [("general.architecture", TEXT, architecture), ("general.alignment", U32, 32)]
    return given + [(f"{architecture}.{name}", *pair) for name, pair in (sizes | changes).items()]


def split_halves(weight: Tensor, heads: int) -> Tensor:
    """The order of rows in files of the architecture llama: row j + h/2 of each head after row j."""
    rows, half = weight.shape[0], weight.shape[0] // heads // 2
    order = [head * 2 * half + part * half + j for head in range(heads) for j in range(half) for part in (0, 1)]
    assert sorted(order) == list(range(rows))
    return weight[order]


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()
