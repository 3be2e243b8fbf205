"""Helpers of all benchmarks: paired timing on a noisy machine, and output as a table and as JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

torch.set_num_threads(1)  # with several threads CPU seconds include waiting


def measure_paired_ratio(
    ours: Callable[[], object], bare: Callable[[], object], rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Return the median ratio of the CPU seconds of `ours` to those of `bare` over pairs of consecutive runs.

    The runs of a pair see the same load of the machine, and the median ignores disturbed rounds.
    """
    for _ in range(warmup):
        ours(), bare()
    ratios, our_times, bare_times = [], [], []
    for _ in range(rounds):
        our_times.append(_measure_cpu_seconds(ours))
        bare_times.append(_measure_cpu_seconds(bare))
        ratios.append(our_times[-1] / bare_times[-1])
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "ratio_quartile_1": quartiles[0],
        "ratio_quartile_3": quartiles[2],
        "seconds": statistics.median(our_times),
        "bare_seconds": statistics.median(bare_times),
    }


def _measure_cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def print_table(title: str, rows: dict[str, dict[str, float]]) -> None:
    """Print a table on standard error and the same rows as JSON on standard output."""
    columns = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(title, file=sys.stderr)
    print(" " * width + "".join(f"{column:>18}" for column in columns), file=sys.stderr)
    for name, row in rows.items():
        print(f"{name:{width}}" + "".join(f"{row[column]:>18.4f}" for column in columns), file=sys.stderr)
    print(json.dumps({"title": title, "rows": rows}))
