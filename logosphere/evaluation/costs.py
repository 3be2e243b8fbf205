"""What things cost: operations of a training step, and the largest memory of a stretch of work."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from logosphere.model import Model
from logosphere.noise import Keyed
from logosphere.types import Batch

ROWS = 4
"""Sequences whose operations are counted; a step costs in proportion."""


def step_flops(model: Model, batch: int) -> float:
    """Floating-point operations of the matrix products of one training step (forward and backward), counted by torch.

    Times are spread evenly over the sequences, so a few of them stand for a batch.
    """
    rows = min(ROWS, batch)
    given = Batch.of(torch.zeros(rows, model.length, dtype=torch.long, device=model.device))
    training = model.training
    model.train()
    with FlopCounterMode(display=False) as counter:
        bound = model.bound(given, Keyed(0, 0, given.ids, given.place, given.total))
        bound.loss.sum().backward()
    model.train(training)
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() * batch / rows


def forget_peak() -> None:
    """Begin to watch memory anew, where the system can."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the largest resident size so far


def peak_bytes() -> int:
    """The largest resident memory of this process since `forget_peak`; on a GPU, of its allocations."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
