"""logosphere bench, and logosphere train --dry-run"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from logosphere.cli import arguments as cli
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.errors import plural
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.runs.config import TrainConfig
from logosphere.runs.costs import CPU_REACHED, GPUS, Bench, estimate, machine_speed
from logosphere.runs.costs import bench as measure_speed
from logosphere.runs.run import Run
from logosphere.systems import build

GROUP_SIZES = (1, 8, 64)
"""Numbers of GPUs for which a dry run prints the time."""


def bench(arguments: cli.Bench, argv: list[str]) -> int:
    """logosphere bench"""
    total = len(arguments.names) + len(arguments.runs)
    rows: list[Bench] = []
    with DISPLAY.bar("bench") as bar:
        for name, model, network in _models(arguments):
            bar.update(len(rows) / total, name)
            size = {"batch": arguments.batch, "steps": arguments.steps, "rounds": arguments.rounds}
            rows.append(measure_speed(name, model, network, **size))
    if arguments.json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        print(_table(rows))
        log("A ratio compares with the bare network: the same blocks, a head and a cross-entropy.")
    return 0


def _models(arguments: cli.Bench) -> Iterator[tuple[str, Model, NetworkConfig]]:
    for path in arguments.runs:
        trained = Run(path)
        yield trained.path.name, trained.model(), trained.config.network
    for name in arguments.names:
        options = vars(arguments.network)
        model = build(name, vocab_size=arguments.vocabulary, length=arguments.length, **options)
        yield name, model, arguments.network


def _table(rows: list[Bench]) -> str:
    width = max(len(row.name) for row in rows)
    columns = ("train tok/s", "/ bare", "NFE", "sample tok/s", "/ bare", "latency s", "peak MB", "parameters")
    lines = [" " * width + "".join(f"{column:>14}" for column in columns)]
    for row in rows:
        cells = (
            f"{row.train_tokens_per_cpu_second:,.0f}", f"{row.train_step_over_bare:.2f}", f"{row.nfe:g}",
            f"{row.sample_tokens_per_cpu_second:,.0f}", f"{row.evaluation_over_bare:.2f}", f"{row.latency_seconds:.3f}",
            f"{row.peak_bytes / 1e6:,.0f}", f"{row.parameters:,}",
        )  # fmt: skip
        lines.append(f"{row.name:{width}}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def dry_run(config: TrainConfig, processes: int, *, json: bool) -> int:
    """logosphere train --dry-run: print what a training would cost; nothing is written."""
    bill = estimate(config, processes, DISPLAY)
    days = {gpu: {number: bill.days(gpu, number) for number in sorted({*GROUP_SIZES, processes})} for gpu in GPUS}
    here = bill.seconds(machine_speed() * CPU_REACHED)
    if json:
        content: dict[str, Any] = asdict(bill) | {"memory": bill.memory, "days": days, "seconds_here": here}
        print_json(content)
        return 0
    print(f"{config.system} on {config.data}, {config.network.depth} × {config.network.width}")
    print(f"  parameters        {bill.parameters:,}")
    print(f"  FLOPs per token   {bill.flops_per_token:.3g}")
    print(f"  memory            {_size(bill.state_bytes)} of weights, gradients, moments and average")
    where = "each process" if processes > 1 else "one process"
    print(f"                    {_size(bill.activation_bytes)} of activations, on {where}")
    if bill.steps is None or here is None:
        print("  time              set by the configuration, in minutes")
        return 0
    print(f"  tokens            {bill.steps * bill.tokens_per_step:.3g} in {plural(bill.steps, 'step')}")
    print(f"  on a free core    about {_span(here)}")
    for gpu, spans in days.items():
        line = ", ".join(f"{number} × {_span(86_400 * span)}" for number, span in spans.items() if span is not None)
        print(f"  on {gpu}s          {line}")
    return 0


def _size(count: float | int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _span(seconds: float | int) -> str:
    for unit, length in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} seconds"
