"""Bounds of one trained network on the sphere along several paths.

    python benchmarks/paths.py --sequences 400 runs/rdlm-heat runs/mdlm

The paths are the joint one, staggered ones, and the any-order path, which is the limit of staggering: one position at a
time moves from its start to its vertex, and its bridge has a closed form (processes/spherical/times.py). On staggered
paths the network combines the evidence of moving positions; on the any-order path Bayes' rule does. Every row is a
bound, and all rows have the same weights. Runs of other systems have one row. Each row is compared with the first one
sequence by sequence.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from harness import print_table
from torch import Tensor

import logosphere as ls
from logosphere.data.batches import windows
from logosphere.evaluation.likelihood import concatenate, estimate_bounds
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.times import AnyOrder, RollingOffsets
from logosphere.runs.run import Run

SPREADS = (0.5, 0.75, 0.9, 0.95)


def iterate_paths(process: SphericalDiffusion) -> Iterator[str]:
    """Set the process to one path after another and yield their names."""
    process.path_name, process.rolling = "joint", None
    yield "joint"
    for spread in SPREADS:
        process.rolling = RollingOffsets(spread)
        yield f"joint, staggered by {spread}"
    process.rolling = None
    process.path_name = "any-order"
    for order in ("random", "left-to-right"):
        process.any_order = AnyOrder(order)
        yield f"any-order, {order}"


def measure_bits(model: ls.Model, sequences: int, draws: int) -> Tensor:
    """Return the bits per character of each sequence."""
    test = ls.open_corpus("text8").test
    found = concatenate(list(estimate_bounds(model, windows(test, model.length, 50, sequences), draws=draws, seed=0)))
    return found.total / found.count / math.log(2)


def compare(bits: Tensor, first: Tensor) -> dict[str, float]:
    def error(values: Tensor) -> float:
        return float(values.std() / len(values) ** 0.5)

    difference = bits - first
    return {
        "bits": float(bits.mean()),
        "s.e.": error(bits),
        "minus first": float(difference.mean()),
        "s.e. of it": error(difference),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument(
        "--only", nargs="*", help="only paths whose names start with one of these, for example: joint 'any-order, r'"
    )
    args = parser.parse_args()
    found: dict[str, Tensor] = {}
    for run in args.runs:
        model = Run(run).model("ema")
        process = model.process
        for path in iterate_paths(process) if isinstance(process, SphericalDiffusion) else [""]:
            if not path or args.only is None or path.startswith(tuple(args.only)):
                found[f"{run.name}{path and ', '}{path}"] = measure_bits(model, args.sequences, args.draws)
    first = next(iter(found.values()))
    print_table("bits per character on text8 (test)", {name: compare(bits, first) for name, bits in found.items()})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
