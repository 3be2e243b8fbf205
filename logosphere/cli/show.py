"""logosphere show"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from logosphere.cli.console import clock, parse, print_json
from logosphere.errors import UserError

TITLES = {"val": "on held-out text", "train": "in training"}


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

    from logosphere.report.terminal_chart import draw_chart
    from logosphere.runs.folder import SHORT, RunFolder, newest

    folder = RunFolder(arguments.run or newest())
    unit, curves = folder.tokenizer.unit, {part: folder.bits(part) for part in TITLES}
    if not any(curves.values()):
        raise UserError(f"{folder.path} has no training curve yet.")
    if arguments.json:
        print_json({"run": str(folder.path)} | {f"{part}/{SHORT[unit]}": points for part, points in curves.items()})
        return 0
    last = [line for line in folder.metrics() if "train/loss" in line][-1:]
    for line in last:
        spent = f", {clock(line['seconds'])}" if "seconds" in line else ""
        print(f"{folder.path}: {folder.recipe.system}, step {line['step']:,}{spent}\n")
    width = max(20, min(100, shutil.get_terminal_size().columns - 12))
    for part, title in TITLES.items():
        if curves[part]:
            print(f"bits per {unit} {title}: {curves[part][-1][1]:.4f}")
            print("\n".join(draw_chart(curves[part], width, arguments.height)) + "\n")
    return 0
