"""logosphere evaluate, compare, export, plot, bench"""

import shutil
from collections.abc import Iterator
from dataclasses import asdict

from logosphere.checkpoints.ddit_export import export_ddit
from logosphere.cli import arguments as cli
from logosphere.cli.arguments import Evaluate, Export, Plot
from logosphere.cli.campaign import reproduce_row, run_campaign
from logosphere.cli.compare_options import Compare
from logosphere.cli.console import DISPLAY, format_time, log, named_settings, print_json
from logosphere.data.zero_shot import describe_published, is_zero_shot
from logosphere.errors import UserError, plural
from logosphere.evaluation.leaderboard import LeaderboardRow, format_leaderboard
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.networks.published.lora import merged_state
from logosphere.parallel.process_group import init_distributed
from logosphere.report.plots import draw_chart
from logosphere.runs.compare import CompareConfig, Comparison, compare_runs
from logosphere.runs.costs import Bench
from logosphere.runs.costs import bench as measure_speed
from logosphere.runs.diagnosis import explain_poor_bound
from logosphere.runs.evaluate import RECORD_SEQUENCES, evaluate_run, export_run, save_report
from logosphere.runs.infilling import evaluate_infilling, save_infilling
from logosphere.runs.run import SHORT, Run, latest_run
from logosphere.runs.staging import check_free
from logosphere.runs.tasks import evaluate_tasks, save_tasks
from logosphere.systems import build
from logosphere.terminal import show

TITLES = {"val": "on held-out text", "train": "in training"}


def evaluate(arguments: Evaluate, argv: list[str]) -> int:
    """logosphere evaluate"""
    trained = Run(arguments.run, trained=False, trust_references=arguments.measure.trust_references)
    if arguments.gaps.infilling:
        return _evaluate_infilling(arguments, trained)
    if arguments.by_task.names:
        return _evaluate_tasks(arguments, trained)
    with init_distributed() as group:
        report = evaluate_run(
            trained, arguments.measure, options=arguments.options, by_order=arguments.by_order, display=DISPLAY,
            group=group,
        )  # fmt: skip
        if not group.is_main:
            return 0
    data = arguments.measure.data or ""
    published = describe_published(data) if is_zero_shot(data) else {}
    if arguments.json:
        reason = explain_poor_bound(report, trained, arguments.options)
        print_json(report.summary() | {"reason": reason} | ({"published": published} if published else {}))
    else:
        name = report.name if report.name == trained.config.system else f"{report.name} ({trained.config.system})"
        show(f"{name} on {report.data}: {report}")
        terms = f"reconstruction {report.recon:.4f}, diffusion {report.diffusion:.4f}, prior {report.prior:.4f}; "
        show(f"  {'' if report.order else terms}{plural(report.tokens, 'token')} counted")
        for other in report.other_paths:
            show(f"  {other}")
        if report.baselines:
            show(f"  {report.baselines}")
        if published:
            show(f"  published: mdlm ~ {published['mdlm']}, ar = {published['ar']} ({published['source']})")
        if poor := explain_poor_bound(report, trained, arguments.options):
            log(poor, "bold")
    # Printed before it is saved: the result must not be lost where the folder cannot be written.
    log(f"Saved as {save_report(trained, report, arguments.options)}")
    return 0


def _evaluate_infilling(arguments: Evaluate, trained: Run) -> int:
    with init_distributed() as group:
        report = evaluate_infilling(
            trained, arguments.measure, arguments.gaps, options=arguments.options, display=DISPLAY, group=group
        )
        if not group.is_main:
            return 0
    if arguments.json:
        print_json(report.summary())
    else:
        name = report.name if report.name == trained.config.system else f"{report.name} ({trained.config.system})"
        show(f"{name} on {report.data}, gaps with both sides visible:\n{report}")
        if skipped := {row.tokens: row.skipped for row in report.rows if row.skipped}:
            short = ", ".join(f"{count} for gaps of {tokens}" for tokens, count in skipped.items())
            log(f"Texts without room were left out: {short}")
    log(f"Saved as {save_infilling(trained, report, arguments.options)}")
    return 0


def _evaluate_tasks(arguments: Evaluate, trained: Run) -> int:
    report = evaluate_tasks(trained, arguments.by_task, arguments.measure, options=arguments.options, display=DISPLAY)
    if arguments.json:
        print_json(report.summary())
    else:
        limited = "" if report.limit is None else f", at most {plural(report.limit, 'document')} of each task"
        show(f"{report.name}: {report.likelihoods}{limited}\n{report}")
    log(f"Saved as {save_tasks(trained, report, arguments.options)}")
    return 0


def compare(arguments: Compare, argv: list[str]) -> int:
    """logosphere compare"""
    if arguments.campaign is not None:
        return run_campaign(arguments)
    if arguments.reproduce is not None:
        return reproduce_row(arguments)
    config = CompareConfig(
        runs=arguments.runs,
        systems=arguments.systems,
        config=arguments.config,
        preset=arguments.preset,
        fixed=named_settings(argv, "--network."),
        budget=arguments.budget,
        seeds=arguments.seeds,
        out=arguments.out,
        report=arguments.report,
        measure=arguments.measure,
        samples=arguments.samples,
    )
    comparison = compare_runs(config, DISPLAY, lambda ranked: _show_ranks(ranked, json=arguments.json))
    if comparison.stopped:
        return 130
    if comparison.files:
        page, *others = comparison.files
        size = page.stat().st_size / 1e6
        log(f"Report: {page} ({size:.1f} MB), {', '.join(path.name for path in others)} in the same folder")
    return 0


def _show_ranks(comparison: Comparison, *, json: bool) -> None:
    if json:
        print_json({"rows": [_row(row) for row in comparison.rows], "remarks": list(comparison.remarks)})
        return
    first = comparison.rows[0].report
    show(format_leaderboard(comparison.rows))
    for baselines in dict.fromkeys(row.report.baselines for row in comparison.rows if not first.text_sha256):
        if baselines:
            show(baselines)
    for remark in comparison.remarks:
        log(remark, "bold")
    log(f"{first.data}: {first.sample_size}, of {plural(first.length, 'token')}")


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
        show(f"{trained.path}: {trained.config.system}, step {line['step']:,}{spent}\n")
    width = max(20, min(100, shutil.get_terminal_size().columns - 12))
    for part, title in TITLES.items():
        if curves[part]:
            show(f"bits per {unit} {title}: {curves[part][-1][1]:.4f}")
            show("\n".join(draw_chart(curves[part], width, arguments.height)) + "\n")
    return 0


def export(arguments: Export, argv: list[str]) -> int:
    """logosphere export"""
    if arguments.layout == "merged":
        return _export_merged(arguments)
    if arguments.layout == "ddit":
        check_free(arguments.out)
        run = Run(arguments.run, trust_references=arguments.measure.trust_references)
        config = export_ddit(run.model(arguments.measure.weights), arguments.out)
        if arguments.json:
            print_json({"folder": str(arguments.out), "config": config})
        else:
            show(f"{arguments.out}: config.json and model.safetensors in the DDiT layout, without a tokenizer")
        return 0
    report, record = export_run(
        Run(arguments.run, trust_references=arguments.measure.trust_references), arguments.out, arguments.measure,
        with_samples=arguments.with_samples, samples=arguments.samples, steps=arguments.steps, display=DISPLAY,
    )  # fmt: skip
    if arguments.json:
        print_json({"folder": str(arguments.out), **vars(record)})
    else:
        show(f"{arguments.out}: {report}")
        kind = "held-out" if arguments.with_samples else "random"
        log(f"Its record, to check a copy: {record.bits:.6f} bits per token of {RECORD_SEQUENCES} {kind} sequences")
    return 0


def _export_merged(arguments: Export) -> int:
    """The model of a run with merged adapters, as a folder for ls.load and the commands."""
    check_free(arguments.out)
    run = Run(arguments.run, trained=False, trust_references=arguments.measure.trust_references)
    model = run.model(arguments.measure.weights)
    model.save(arguments.out)
    numbers = sum(tensor.numel() for tensor in merged_state(model).values())
    if arguments.json:
        print_json({"folder": str(arguments.out), "numbers": numbers})
    else:
        show(f"{arguments.out}: {numbers:,} numbers, adapters merged; use it like a run, or by ls.load")
    return 0


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
        show(_table(rows))
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
