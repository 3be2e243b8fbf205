"""Numbers one can rely on: the same bits every time, and the batch that broke a training kept for a look."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from logosphere.io import write_tensors
from logosphere.types import Batch


@contextmanager
def use_deterministic(wanted: bool) -> Iterator[None]:
    """Inside this block torch refuses operations whose result depends on chance, if so wanted."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused, or not the same
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def dump_batch(path: Path, batch: Batch) -> None:
    """Write a batch as it was shown to the model; with seed and step it brings the same noise again."""
    tensors = {"tokens": batch.tokens, "known": batch.known, "valid": batch.valid, "ids": batch.ids}
    if batch.condition is not None:
        named = {"labels": batch.condition.labels, "source": batch.condition.source, "signal": batch.condition.signal}
        tensors |= {name: tensor for name, tensor in named.items() if tensor is not None}
    write_tensors(path, tensors | {"place": batch.global_index})
