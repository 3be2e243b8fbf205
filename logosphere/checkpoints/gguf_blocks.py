"""Blocks of quantised numbers in GGUF files, and their values: F32, F16, BF16, Q8_0, Q4_0 and Q4_1.

Quantised rows are cut into blocks of 32 numbers with a scale d (and a minimum m) in half precision: Q8_0 holds d q with
q of 8 bits; Q4_0 holds d (q - 8) and Q4_1 holds d q + m with q of 4 bits, where byte i of a block has the numbers
i (low half) and i + 16 (high half).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from logosphere.checkpoints.families import TensorInfo

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Values = np.ndarray[Any, np.dtype[np.float32]]
CHUNK = 1 << 16
"""Blocks that are dequantised at a time, so that little memory is needed besides the result."""


class Block(NamedTuple):
    """How many numbers a block has, and how many bytes."""

    numbers: int
    size: int


BLOCKS = {
    "F32": Block(1, 4),
    "F16": Block(1, 2),
    "BF16": Block(1, 2),
    "Q8_0": Block(32, 34),
    "Q4_0": Block(32, 18),
    "Q4_1": Block(32, 20),
}
TYPE_NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K"}
TYPE_NAMES |= {11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS"}
TYPE_NAMES |= {19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32"}
TYPE_NAMES |= {27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
"""Names of all types by their number, for messages too."""


def dequantise(raw: Bytes, info: TensorInfo) -> Tensor:
    """The values of a tensor: quantised ones and halves as float32, bfloat16 as it is."""
    if info.dtype == "BF16":
        return torch.from_numpy(raw.copy()).view(torch.bfloat16).view(info.shape)
    block, values = BLOCKS[info.dtype], np.empty(math.prod(info.shape), np.float32)
    rows, step = raw.reshape(-1, block.size), CHUNK * 32 // block.numbers
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        values[start * block.numbers : (start + len(some)) * block.numbers] = READERS[info.dtype](some).reshape(-1)
    return torch.from_numpy(values).view(info.shape)


def _halves(rows: Bytes, start: int) -> Values:
    """The number in half precision at this byte of each block, [N, 1]."""
    return np.ascontiguousarray(rows[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Values:
    return np.concatenate([packed & 15, packed >> 4], 1).astype(np.float32)


def _read_q8_0(rows: Bytes) -> Values:
    return _halves(rows, 0) * np.ascontiguousarray(rows[:, 2:]).view(np.int8).astype(np.float32)


def _read_q4_0(rows: Bytes) -> Values:
    return _halves(rows, 0) * (_nibbles(rows[:, 2:]) - np.float32(8))


def _read_q4_1(rows: Bytes) -> Values:
    return _halves(rows, 0) * _nibbles(rows[:, 4:]) + _halves(rows, 2)


def _read_f16(rows: Bytes) -> Values:
    return _halves(rows, 0)


def _read_f32(rows: Bytes) -> Values:
    values: Values = np.ascontiguousarray(rows).view("<f4")
    return values


READERS: dict[str, Callable[[Bytes], Values]] = {
    "F32": _read_f32,
    "F16": _read_f16,
    "Q8_0": _read_q8_0,
    "Q4_0": _read_q4_0,
    "Q4_1": _read_q4_1,
}
