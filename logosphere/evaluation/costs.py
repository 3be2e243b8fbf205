"""Costs: floating-point operations of a training step, and peak memory."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from logosphere.model import Model
from logosphere.rng import CounterNoise
from logosphere.types import Batch

ROWS = 4
"""Sequences whose operations are counted; the cost of a step is proportional to its batch."""


def count_step_flops(model: Model, batch: int) -> float:
    """Floating-point operations of the matrix products of one training step (forward and backward), counted by torch.

    Times are stratified over the sequences, so a few of them represent a batch.
    """
    rows = min(ROWS, batch)
    sample = Batch.of(torch.zeros(rows, model.length, dtype=torch.long, device=model.device))
    training = model.training
    model.train()
    with FlopCounterMode(display=False) as counter:
        bound = model.bound(sample, CounterNoise(0, 0, sample.ids, sample.global_index, sample.total))
        bound.loss.sum().backward()
    model.train(training)
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() * batch / rows


def reset_peak_memory() -> None:
    """Reset the peak of memory, where the system allows it."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak resident size


def peak_memory_bytes() -> int:
    """The peak resident memory of this process since `reset_peak_memory`; on a GPU, of its allocations."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
