"""Likelihoods of the bundled text8 checkpoints in every order of unmasking, and their differences from the bound.

    python benchmarks/orders.py --sequences 64

One position is revealed at a time (evaluation/orders.py): deterministic orders are exact for the sampler of the same
order, random orders are a bound over 1, 2, 4, … of them. All rows have the same sequences and weights in float32, and
each is compared with the NELBO of the same checkpoint sequence by sequence. Records of benchmarks/results/ are printed.
"""

import argparse
import resource

import torch
from records import find_commit, print_experiment
from torch import Tensor

from logosphere.evaluation.report import Report
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.run import Run
from logosphere.runs.settings import EvaluateConfig, OrderConfig

CHECKPOINTS: dict[str, tuple[str, ...]] = {"mdlm": (), "rdlm": ("path=any-order",)}
"""Checkpoints, and the options they are measured with."""
ORDERS = ("left-to-right", "entropy", "margin", "confidence")
RANDOM_ORDERS = (1, 2, 4, 8)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def difference(report: Report, base: Report) -> tuple[float, float]:
    """Bits per unit of `report` minus those of `base`, ± the standard error of the paired difference."""
    nats: Tensor = torch.tensor(report.nats).double() - torch.tensor(base.nats).double()
    return base.per_unit(nats)


def measure(name: str, sequences: int, draws: int, batch: int) -> list[dict[str, object]]:
    """Return the records of one checkpoint."""
    run, options = Run(f"pretrained:{name}"), CHECKPOINTS[name]
    config = EvaluateConfig(sequences=sequences, draws=draws, batch=batch, precision="float32")
    settings = [OrderConfig()]
    settings += [OrderConfig(order) for order in ORDERS]
    settings += [OrderConfig("random", orders) for orders in RANDOM_ORDERS]
    records: list[dict[str, object]] = []
    base: Report | None = None
    for setting in settings:
        started = cpu_seconds()
        report = evaluate_run(run, config, options=options, by_order=setting, other_paths=False)
        base = base or report
        label = f"{setting.order}, {setting.orders}" if setting.order == "random" else setting.order or "NELBO"
        shared = {"row": label, "checkpoint": name, "system": run.config.system, "order": report.order}
        bits = {"metric": "bits per character", "value": round(report.bits, 4), "error": round(report.error, 4)}
        cost = {"kind": report.kind, "draws": report.draws, "cpu_seconds": round(cpu_seconds() - started)}
        records.append(shared | bits | cost)
        if report.order:
            value, error = difference(report, base)
            paired = {"metric": "minus NELBO", "value": round(value, 4), "error": round(error, 4)}
            records.append(shared | paired | {"draws": report.draws})
        print(f"{name:6} {report}", flush=True)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--draws", type=int, default=64, help="draws of the NELBO")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=list(CHECKPOINTS))
    args = parser.parse_args()
    records = [record for name in args.only for record in measure(name, args.sequences, args.draws, args.batch)]
    print_experiment(
        "orders", records, data="text8", split="test", sequences=args.sequences, seed=0, unit="bits",
        commit=find_commit(), script="benchmarks/orders.py",
        command=f"python benchmarks/orders.py --sequences {args.sequences} --draws {args.draws}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
