"""logosphere plot"""

import shutil

from logosphere.cli.arguments import Plot
from logosphere.cli.console import format_time, print_json
from logosphere.errors import UserError
from logosphere.report.plots import draw_chart
from logosphere.runs.run import SHORT, Run, latest_run

TITLES = {"val": "on held-out text", "train": "in training"}


def run(arguments: Plot, argv: list[str]) -> int:
    trained = Run(arguments.run or latest_run())
    unit, curves = trained.tokenizer.unit, {part: trained.bits(part) for part in TITLES}
    if not any(curves.values()):
        raise UserError(f"{trained.path} has no training curve yet.")
    if arguments.json:
        print_json({"run": str(trained.path)} | {f"{part}/{SHORT[unit]}": points for part, points in curves.items()})
        return 0
    for line in [line for line in trained.metrics() if "train/loss" in line][-1:]:
        spent = f", {format_time(line['seconds'])}" if "seconds" in line else ""
        print(f"{trained.path}: {trained.config.system}, step {line['step']:,}{spent}\n")
    width = max(20, min(100, shutil.get_terminal_size().columns - 12))
    for part, title in TITLES.items():
        if curves[part]:
            print(f"bits per {unit} {title}: {curves[part][-1][1]:.4f}")
            print("\n".join(draw_chart(curves[part], width, arguments.height)) + "\n")
    return 0
