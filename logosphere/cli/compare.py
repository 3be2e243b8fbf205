"""logosphere compare"""

from logosphere.cli.arguments import Compare
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.evaluation.leaderboard import LeaderboardRow, format_leaderboard
from logosphere.runs.compare import CompareConfig, compare_runs
from logosphere.runs.recipes import recipe


def run(arguments: Compare, argv: list[str]) -> int:
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
        log(f"Report: {page} ({size:.1f} MB), {', '.join(path.name for path in others)} beside it")
    if arguments.json:
        print_json({"rows": [_row(row) for row in comparison.rows]})
        return 0
    first = comparison.rows[0].report
    print(format_leaderboard(comparison.rows))
    log(f"{first.data}, {first.sequences:,} sequences of {first.length}, {first.draws} draws each")
    return 0


def _row(row: LeaderboardRow) -> dict[str, object]:
    return row.report.summary() | {
        "above_best": row.above, "above_best_error": row.above_error,
        "seeds": [report.bits for report in row.seeds], "spread": row.spread,
    }  # fmt: skip
