"""One network, several paths: the bound of a trained network of the sphere along each of them.

    python benchmarks/paths.py --sequences 400 runs/rdlm-heat runs/mdlm

All positions together, staggered more and more, and in turn, which is where staggering ends: one position moves at a
time between starts and vertices, and its bridge has a closed form (processes/spherical/times.py). Staggered, the
network itself has to weigh the evidence of a position on its way; in turn Bayes' rule does. Every row is a bound, and
all have the same weights. Runs of other systems are measured as they are. Rows are compared with the first sequence by
sequence.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from harness import present
from torch import Tensor

import logosphere as ls
from logosphere.data.batches import windows
from logosphere.evaluation.likelihood import concatenate, estimate_bounds
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.times import AnyOrder, RollingOffsets
from logosphere.runs.run import Run

SPREADS = (0.5, 0.75, 0.9, 0.95)


def paths(process: SphericalDiffusion) -> Iterator[str]:
    """Set the process on one path after another."""
    process.path_name, process.rolling = "joint", None
    yield "joint"
    for spread in SPREADS:
        process.rolling = RollingOffsets(spread)
        yield f"stagger {spread}"
    process.rolling = None
    process.path_name = "any-order"
    for order in ("random", "left-to-right"):
        process.any_order = AnyOrder(order)
        yield f"in turn, {order}"


def measured(model: ls.Model, sequences: int, draws: int) -> Tensor:
    """Bits per character of each sequence."""
    test = ls.open_corpus("text8").test
    found = concatenate(list(estimate_bounds(model, windows(test, model.length, 50, sequences), draws=draws, seed=0)))
    return found.total / found.count / math.log(2)


def row(bits: Tensor, first: Tensor) -> dict[str, float]:
    def error(values: Tensor) -> float:
        return float(values.std() / len(values) ** 0.5)

    behind = bits - first
    return {
        "bits": float(bits.mean()),
        "s.e.": error(bits),
        "minus first": float(behind.mean()),
        "s.e. of it": error(behind),
    }


def main() -> None:
    read = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    read.add_argument("runs", nargs="+", type=Path)
    read.add_argument("--sequences", type=int, default=1000)
    read.add_argument("--draws", type=int, default=4)
    read.add_argument("--only", nargs="*", help="only paths whose names begin so, for example: together 'in turn, r'")
    given = read.parse_args()
    found: dict[str, Tensor] = {}
    for run in given.runs:
        model = Run(run).model("ema")
        process = model.process
        for path in paths(process) if isinstance(process, SphericalDiffusion) else [""]:
            if not path or given.only is None or path.startswith(tuple(given.only)):
                found[f"{run.name}{path and ', '}{path}"] = measured(model, given.sequences, given.draws)
    first = next(iter(found.values()))
    present("bits per character on text8 (test)", {name: row(bits, first) for name, bits in found.items()})


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
