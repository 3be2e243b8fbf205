"""logosphere bench"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from logosphere.cli.console import bar, parse, print_json, say
from logosphere.denoisers.network import Network
from logosphere.errors import UserError
from logosphere.systems import system, systems

if TYPE_CHECKING:
    from logosphere.comparison.bench import Bench
    from logosphere.model import Model


@dataclass(frozen=True)
class Arguments:
    """Speed and memory of training and sampling, beside the bare network. Seconds are processor seconds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, or pretrained:NAME."""
    systems: str = ""
    """Systems to build afresh, separated by commas; 'all' for all."""
    vocabulary: int = 27
    """Tokens of the vocabulary, for --systems."""
    length: int = 128
    """Tokens of a sequence, for --systems."""
    batch: int = 16
    """Sequences at a time."""
    steps: int = 32
    """Steps of the sampler."""
    rounds: int = 5
    """Training steps that are timed."""
    network: Network = field(default_factory=Network)
    json: bool = False
    """Print as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "bench")
    names = systems() if arguments.systems == "all" else [n.strip() for n in arguments.systems.split(",") if n.strip()]
    for name in names:
        system(name)
    if not names and not arguments.runs:
        raise UserError("Name runs or systems to measure: logosphere bench --systems ar,mdlm")
    if min(arguments.batch, arguments.steps, arguments.rounds) < 1:
        raise UserError("The batch, the steps and the rounds must be at least 1.")

    from logosphere.comparison.bench import bench

    total = len(names) + len(arguments.runs)
    rows: list[Bench] = []
    with bar("bench") as shown:
        for name, model, network in _models(names, arguments):
            shown.update(len(rows) / total, name)
            size = {"batch": arguments.batch, "steps": arguments.steps, "rounds": arguments.rounds}
            rows.append(bench(name, model, network, **size))
    if arguments.json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        print(_table(rows))
        say("A ratio compares with the bare network: the same blocks, a head and a cross-entropy.")
    return 0


def _models(names: list[str], arguments: Arguments) -> "Iterator[tuple[str, Model, Network]]":
    from logosphere.runs.folder import RunFolder
    from logosphere.systems import build

    for path in arguments.runs:
        folder = RunFolder(path)
        yield folder.path.name, folder.model(), folder.recipe.network
    for name in names:
        options = vars(arguments.network)
        model = build(name, vocab_size=arguments.vocabulary, length=arguments.length, **options)
        yield name, model, arguments.network


def _table(rows: "list[Bench]") -> str:
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
