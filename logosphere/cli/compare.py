"""logosphere compare"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import parse, print_json, say
from logosphere.cli.evaluate import Measure, measured
from logosphere.cli.train import run as train
from logosphere.errors import UserError
from logosphere.systems import system


@dataclass(frozen=True)
class Arguments:
    """Rank trained models on the same sequences, with paired differences. --systems trains them first, all alike."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs."""
    systems: str = ""
    """Systems to train first, separated by commas: ar,mdlm"""
    recipe: str = "demo"
    """Recipe to train them with."""
    steps: int | None = None
    """Steps for each of them."""
    minutes: float | None = None
    """Wall-clock minutes for each of them."""
    cpu_minutes: float | None = None
    """Minutes of processor time for each of them."""
    out: Path = Path("runs/compare")
    """Folder for their runs; systems already trained there are not trained again."""
    measure: Annotated[Measure, tyro.conf.arg(name="")] = Measure()
    json: bool = False
    """Print the result as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "compare")
    names = [name.strip() for name in arguments.systems.split(",") if name.strip()]
    for name in names:
        system(name)
    if not names and not arguments.runs:
        raise UserError("Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2")
    folders = [*arguments.runs, *(arguments.out / name for name in names)]
    for name in names:
        if (code := _trained(name, arguments)) != 0:
            return code

    from logosphere.evaluation.compare import compare
    from logosphere.runs.folder import RunFolder

    reports = [measured(RunFolder(folder), arguments.measure) for folder in folders]
    if len({report.name for report in reports}) < len(reports):
        reports = [replace(report, name=str(folder)) for report, folder in zip(reports, folders, strict=True)]
    comparison = compare(reports)
    if arguments.json:
        rows = []
        for row in comparison.rows:
            content = {key: value for key, value in asdict(row.report).items() if key != "nats"}
            rows.append(content | {"above_best": row.difference, "above_best_error": row.error})
        print_json({"rows": rows})
    else:
        first = comparison.rows[0].report
        print(comparison)
        say(f"{first.data}, {first.sequences:,} sequences of {first.length}, {first.draws} draws each")
    return 0


def _trained(name: str, arguments: Arguments) -> int:
    """Train a system into its folder, or go on with it."""
    folder = arguments.out / name
    words = [arguments.recipe, "--system", name, "--out", str(folder)]
    for option in ("steps", "minutes", "cpu_minutes"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    if arguments.measure.data is not None:
        words += ["--data", arguments.measure.data]
    if (folder / "recipe.json").exists():
        words += ["--resume"]
    return train(words)
