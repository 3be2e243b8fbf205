"""Likelihoods of the bundled text8 checkpoints in every order of unmasking, and their differences from the bound.

    python benchmarks/orders.py --sequences 64

One position is revealed at a time (evaluation/orders.py): deterministic orders are exact for the sampler of the same
order, random orders are a bound over 1, 2, 4, … of them, which are measured one by one with seeds of their own. All
rows have the same sequences and weights in float32, and each is compared with the NELBO of the same checkpoint sequence
by sequence. Records of benchmarks/results/ are printed.
"""

import argparse
import math
import resource
from dataclasses import replace

import torch
from records import find_commit, print_experiment
from torch import Tensor

from logosphere.errors import plural
from logosphere.evaluation.report import Report
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig, OrderConfig, OrderName

CHECKPOINTS: dict[str, tuple[str, ...]] = {"mdlm": (), "rdlm": ("path=any-order",)}
"""Checkpoints, and the options they are measured with."""
ORDERS: tuple[OrderName, ...] = ("left-to-right", "entropy", "margin", "confidence")
RANDOM_ORDERS = (1, 2, 4, 8, 16)
"""Numbers of random orders with a row."""


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Measurement:
    """Records of one checkpoint, each row compared with its bound."""

    def __init__(self, name: str, config: EvaluateConfig):
        self.name, self.run, self.config = name, Run(f"pretrained:{name}"), config
        self.records: list[dict[str, object]] = []
        self.base, seconds = self.evaluate(OrderConfig(), 0)
        self.add("NELBO", self.base, torch.tensor(self.base.nats), self.base.draws, seconds)

    def evaluate(self, order: OrderConfig, seed: int) -> tuple[Report, float]:
        """Return a report and its CPU seconds."""
        started = cpu_seconds()
        config, options = replace(self.config, seed=seed), CHECKPOINTS[self.name]
        report = evaluate_run(self.run, config, options=options, by_order=order, other_paths=False)
        return report, cpu_seconds() - started

    def add(self, label: str, report: Report, nats: Tensor, draws: int, seconds: float) -> None:
        """Add the bits per character of these likelihoods, and their paired differences from the bound."""
        shared: dict[str, object] = {"row": f"`{self.name}`, {label}", "checkpoint": self.name, "draws": draws}
        shared |= {"system": self.run.config.system, "path": report.path or None, "order": report.order or None}
        metric = {"": "nelbo_bits", "random": "random_bits"}.get(report.order, "bits_per_character")
        figures = {metric: nats, "minus_nelbo": nats - torch.tensor(self.base.nats)}
        for name, values in figures.items() if report.order else [(metric, nats)]:
            value, error = self.base.per_unit(values.double())
            kind = {"kind": report.kind} if name == metric else {}
            self.records.append(shared | {"metric": name, "value": round(value, 4), "error": round(error, 4)} | kind)
            print(f"# {self.name}, {label}: {name} {value:.4f} ± {error:.4f}, {seconds:.0f} CPU s", flush=True)
        self.records.append(shared | {"metric": "cpu_seconds", "value": round(seconds), "unit": "s"})

    def add_orders(self, orders: tuple[OrderName, ...], random_orders: int) -> None:
        """Measure deterministic orders, and bounds of up to this number of random ones."""
        for order in orders:
            report, seconds = self.evaluate(OrderConfig(order), 0)
            self.add(f"`{order}`", report, torch.tensor(report.nats), 1, seconds)
        drawn: list[Tensor] = []
        total = 0.0
        for seed in range(random_orders):
            report, seconds = self.evaluate(OrderConfig("random"), seed)
            drawn, total = [*drawn, torch.tensor(report.nats).double()], total + seconds
            if len(drawn) in RANDOM_ORDERS:
                nats = math.log(len(drawn)) - (-torch.stack(drawn)).logsumexp(0)
                self.add(plural(len(drawn), "random order"), report, nats, len(drawn), total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--draws", type=int, default=64, help="draws of the NELBO")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--only", nargs="*", default=list(CHECKPOINTS), help="checkpoints")
    parser.add_argument("--orders", nargs="*", default=list(ORDERS), help="deterministic orders")
    parser.add_argument("--random-orders", type=int, default=4, help="the largest number of random orders")
    args = parser.parse_args()
    config = EvaluateConfig(sequences=args.sequences, draws=args.draws, batch=args.batch, precision="float32")
    records: list[dict[str, object]] = []
    for name in args.only:
        measurement = Measurement(name, config)
        measurement.add_orders(tuple(order for order in ORDERS if order in args.orders), args.random_orders)
        records += measurement.records
    print_experiment(
        "orders", records, data="text8", split="test", sequences=args.sequences, seed=0, precision="float32",
        unit="bits per character", commit=find_commit(), script="benchmarks/orders.py",
        command=f"python benchmarks/orders.py --sequences {args.sequences} --draws {args.draws}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
