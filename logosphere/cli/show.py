"""logosphere show"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import clock, parse, print_json
from logosphere.errors import UserError

TITLES = {"val/bpc": "bits on held-out text", "train/bpc": "bits in training"}


@dataclass(frozen=True)
class Arguments:
    """Draw the training curves of a run, also while it trains; without RUN, of the one trained last."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of the run."""
    height: int = 12
    """Lines of each drawing."""
    json: bool = False
    """Print the curves as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "show")
    if not 2 <= arguments.height <= 200:
        raise UserError(f"The height must be from 2 to 200 lines, not {arguments.height}.")

    from logosphere.reports.terminal import chart
    from logosphere.runs.folder import RunFolder, newest

    folder = RunFolder(arguments.run or newest())
    lines = folder.metrics()
    curves = {name: [(float(line["step"]), line[name]) for line in lines if name in line] for name in TITLES}
    if not any(curves.values()):
        raise UserError(f"{folder.path} has no training curve yet.")
    if arguments.json:
        print_json({"run": str(folder.path), **curves})
        return 0
    last = [line for line in lines if "train/loss" in line][-1:]
    for line in last:
        spent = f", {clock(line['seconds'])}" if "seconds" in line else ""
        print(f"{folder.path}: {folder.recipe.system}, step {line['step']:,}{spent}\n")
    width = max(20, min(100, shutil.get_terminal_size().columns - 12))
    for name, title in TITLES.items():
        if curves[name]:
            print(f"{title}: {curves[name][-1][1]:.4f}")
            print("\n".join(chart(curves[name], width, arguments.height)) + "\n")
    return 0
