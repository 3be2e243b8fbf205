"""logosphere bench"""

from collections.abc import Iterator
from dataclasses import asdict

from logosphere.cli import arguments as cli
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.runs.bench import Bench, bench
from logosphere.runs.run import Run
from logosphere.systems import build


def run(arguments: cli.Bench, argv: list[str]) -> int:
    total = len(arguments.names) + len(arguments.runs)
    rows: list[Bench] = []
    with DISPLAY.bar("bench") as bar:
        for name, model, network in _models(arguments):
            bar.update(len(rows) / total, name)
            size = {"batch": arguments.batch, "steps": arguments.steps, "rounds": arguments.rounds}
            rows.append(bench(name, model, network, **size))
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
