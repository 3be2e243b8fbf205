"""What the benchmarks share: paired timing on a noisy machine, and results as a table and as JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

torch.set_num_threads(1)  # CPU seconds of one thread mean work; with more, also waiting


def paired_ratio(
    ours: Callable[[], object], bare: Callable[[], object], rounds: int, warmup: int = 3
) -> dict[str, float]:
    """How much longer `ours` takes than `bare`, in CPU seconds, as the median of ratios of neighbouring runs.

    Neighbours see the same load of the machine, and the median forgets the rounds that were disturbed.
    """
    for _ in range(warmup):
        ours(), bare()
    ratios, our_times, bare_times = [], [], []
    for _ in range(rounds):
        our_times.append(_cpu_seconds(ours))
        bare_times.append(_cpu_seconds(bare))
        ratios.append(our_times[-1] / bare_times[-1])
    quarter = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "ratio_quartile_1": quarter[0],
        "ratio_quartile_3": quarter[2],
        "seconds": statistics.median(our_times),
        "bare_seconds": statistics.median(bare_times),
    }


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def present(title: str, rows: dict[str, dict[str, float]]) -> None:
    """A table for people on standard error, JSON for programs on standard output."""
    columns = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(title, file=sys.stderr)
    print(" " * width + "".join(f"{column:>18}" for column in columns), file=sys.stderr)
    for name, row in rows.items():
        print(f"{name:{width}}" + "".join(f"{row[column]:>18.4f}" for column in columns), file=sys.stderr)
    print(json.dumps({"title": title, "rows": rows}))
