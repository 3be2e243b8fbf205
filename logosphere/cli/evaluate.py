"""logosphere evaluate, compare, plot and export: commands that measure runs"""

import shutil

from logosphere.cli.arguments import Compare, Evaluate, Export, Plot
from logosphere.cli.console import DISPLAY, format_time, log, print_json
from logosphere.errors import UserError, plural
from logosphere.evaluation.leaderboard import LeaderboardRow, format_leaderboard
from logosphere.parallel.process_group import init_distributed
from logosphere.report.plots import draw_chart
from logosphere.runs.compare import CompareConfig, compare_runs
from logosphere.runs.evaluate import RECORD_SEQUENCES, evaluate_run, export_run, save_report
from logosphere.runs.recipes import recipe
from logosphere.runs.run import SHORT, Run, latest_run

TITLES = {"val": "on held-out text", "train": "in training"}


def evaluate(arguments: Evaluate, argv: list[str]) -> int:
    """logosphere evaluate"""
    trained = Run(arguments.run)
    with init_distributed() as group:
        report = evaluate_run(trained, arguments.measure, options=arguments.options, display=DISPLAY, group=group)
        if not group.is_main:
            return 0
    if arguments.json:
        print_json(report.summary())
    else:
        print(f"{report.name} on {report.data}: {report}")
        terms = f"reconstruction {report.recon:.4f}, diffusion {report.diffusion:.4f}, prior {report.prior:.4f}"
        print(f"  {terms}; {plural(report.tokens, 'token')} counted")
    # Printed before it is saved: the result must not be lost where the folder cannot be written.
    log(f"Saved as {save_report(trained, report, arguments.options)}")
    return 0


def compare(arguments: Compare, argv: list[str]) -> int:
    """logosphere compare"""
    config = CompareConfig(
        runs=arguments.runs,
        systems=arguments.systems,
        config=recipe(arguments.recipe),
        budget=arguments.budget,
        seeds=arguments.seeds,
        out=arguments.out,
        report=arguments.report,
        measure=arguments.measure,
        samples=arguments.samples,
    )
    comparison = compare_runs(config, DISPLAY)
    if comparison.stopped:
        return 130
    if comparison.files:
        page, *others = comparison.files
        size = page.stat().st_size / 1e6
        log(f"Report: {page} ({size:.1f} MB), {', '.join(path.name for path in others)} in the same folder")
    if arguments.json:
        print_json({"rows": [_row(row) for row in comparison.rows]})
        return 0
    first = comparison.rows[0].report
    print(format_leaderboard(comparison.rows))
    log(f"{first.data}: {first.sample_size}, of {plural(first.length, 'token')}")
    return 0


def _row(row: LeaderboardRow) -> dict[str, object]:
    return row.report.summary() | {
        "above_best": row.above, "above_best_error": row.above_error,
        "seeds": [report.bits for report in row.seeds], "spread": row.spread,
    }  # fmt: skip


def plot(arguments: Plot, argv: list[str]) -> int:
    """logosphere plot"""
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


def export(arguments: Export, argv: list[str]) -> int:
    """logosphere export"""
    report, record = export_run(
        Run(arguments.run), arguments.out, arguments.measure, samples=arguments.samples, steps=arguments.steps,
        display=DISPLAY,
    )  # fmt: skip
    if arguments.json:
        print_json({"box": str(arguments.out), **vars(record)})
    else:
        print(f"{arguments.out}: {report}")
        log(f"Its record: {record.bits:.6f} bits per {report.unit} on the {RECORD_SEQUENCES} sequences of its record")
    return 0
