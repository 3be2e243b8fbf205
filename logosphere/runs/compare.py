"""Comparison as one function: train systems alike, measure runs on the same sequences, rank them, write one report."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from logosphere.atomic import cached, file_sha256, write_json
from logosphere.data.corpus import Corpus
from logosphere.data.splits import split_off
from logosphere.errors import UserError
from logosphere.evaluation.costs import peak_memory_bytes, reset_peak_memory
from logosphere.evaluation.leaderboard import LeaderboardRow, rank_reports
from logosphere.evaluation.report import Report
from logosphere.evaluation.sample_metrics import find_metrics, scorer_metric
from logosphere.evaluation.scorers import ModelScorer, Scorer, load_hub_scorer, load_smollm2
from logosphere.evaluation.texts import Metric, Reference
from logosphere.report.comparison import SampleReport, Value, parse_sample_report
from logosphere.report.write import write_comparison_report
from logosphere.runs.comparison_report import COSTS, board
from logosphere.runs.config import TrainConfig
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.loop import create_run_and_model
from logosphere.runs.planned_runs import (
    PlannedRun,
    apply_budget,
    check_comparable,
    find_existing,
    is_finished,
    open_saved,
    parse_systems,
    plan_runs,
)
from logosphere.runs.progress import SILENT, Display
from logosphere.runs.run import Run
from logosphere.runs.sample_report import SamplingGrid, make_reference, report_samples
from logosphere.runs.sample_report import measure as measure_texts
from logosphere.runs.settings import Budget, EvaluateConfig, SampleMetrics
from logosphere.runs.train import open_with_display, run_to_end

SCORER = "judge"
"""The folder of a scorer model that is trained for the comparison."""
SCORER_VALIDATION = 10
"""One part in so many of the scorer's text is used to validate it."""


@dataclass(frozen=True)
class CompareConfig:
    """What is compared, and how."""

    runs: tuple[Path, ...] = ()
    """Folders of trained runs."""
    systems: str = ""
    """Systems to train first, separated by commas: ar,mdlm:preset=paper"""
    config: TrainConfig = field(default_factory=TrainConfig)
    """The configuration that systems are trained with."""
    budget: Budget = Budget()
    seeds: int = 1
    """Trainings of each system."""
    out: Path = Path("runs/compare")
    """Folder for their runs."""
    report: Path | None = None
    """The page to write; Markdown and JSON are written beside it."""
    measure: EvaluateConfig = EvaluateConfig()
    samples: SampleMetrics = field(default_factory=SampleMetrics)


@dataclass(frozen=True)
class Comparison:
    """The outcome: rows from best to worst, the report's files, or that it was stopped."""

    rows: list[LeaderboardRow]
    files: list[Path]
    stopped: bool = False


def compare_runs(config: CompareConfig, display: Display = SILENT) -> Comparison:
    """Train what is missing, measure every run on the same sequences, rank them, and write the report if one is wanted.

    What is finished is not done again, so a stopped comparison continues when it is called again.
    """
    if not config.systems and not config.runs:
        raise UserError("Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2")
    chosen = find_metrics(config.samples.metrics)
    groups: dict[str, list[Run]] = {str(path): [open_saved(path)] for path in config.runs}
    if config.systems:
        trained = _train_systems(config, display)
        if trained is None:
            return Comparison([], [], stopped=True)
        groups |= trained
    runs = [run for group in groups.values() for run in group]
    check_comparable(runs)
    groups = _shorten_names(groups)
    corpus = open_with_display(config.measure.data or runs[0].config.data, runs[0].tokenizer, display)
    reports = {
        name: [_measure(run, config.measure, corpus, display) for run in group] for name, group in groups.items()
    }
    rows = rank_reports(reports)
    files = [] if config.report is None else _write_report(config, rows, groups, corpus, chosen, display)
    return Comparison(rows, files)


def _train_systems(config: CompareConfig, display: Display) -> dict[str, list[Run]] | None:
    """Train what is missing; the runs of each system, or None if it was stopped."""
    common = config.config if config.measure.data is None else replace(config.config, data=config.measure.data)
    specs = parse_systems(config.systems)
    corpus = open_with_display(common.data, common.tokenizer, display)
    planned = plan_runs(specs, common, config.budget, config.seeds, corpus, config.out)
    if "train" in config.samples.judge and config.report is not None:
        scorer = _plan_scorer(common, config.budget, corpus, config.out / SCORER)
        if _train(scorer, _scorer_corpus(corpus), display) is None:
            return None
    groups: dict[str, list[Run]] = {}
    for one in planned:
        run = _train(one, corpus, display)
        if run is None:
            return None
        groups.setdefault(one.name, []).append(run)
    return groups


def _train(planned: PlannedRun, corpus: Corpus, display: Display) -> Run | None:
    """Take one training to its end, from wherever it stands; None if it was stopped."""
    run = find_existing(planned)
    if run is not None and is_finished(run):
        display.log(f"[dim]{planned.folder} is trained already[/]")
        return run
    model = None
    if run is None:
        run, model = create_run_and_model(planned.config, corpus, planned.folder)
    reset_peak_memory()
    outcome = run_to_end(run, corpus, display, model=model)
    write_json(run.path / COSTS, {"peak_bytes": peak_memory_bytes()})
    if outcome.stopped:
        display.log(f"Stopped at step {outcome.step:,} of {planned.name} and saved. Go on with the same command.")
    elif outcome.interrupted:
        display.log(f"Stopped after {planned.name}. Go on with the same command.")
    return None if outcome.interrupted else run


def _plan_scorer(common: TrainConfig, budget: Budget, corpus: Corpus, folder: Path) -> PlannedRun:
    """An autoregressive scorer model with the network and the budget of the systems."""
    config = replace(common, system="ar", options=(), task="unconditional", begin=None)
    return PlannedRun("judge", apply_budget(budget, config, corpus), folder)


def _scorer_corpus(corpus: Corpus) -> Corpus:
    """The validation split as a text of its own: systems train on the other one and are measured on the test split."""
    train, valid = split_off(corpus.valid, SCORER_VALIDATION)
    return replace(corpus, name=f"{corpus.name} (validation split)", train=train, valid=valid)


def load_scorer(name: str, own: Path) -> Scorer:
    """A scorer by its name: 'train' is the comparison's own, then smollm2, hf:NAME, or the folder of an ar run."""
    if name == "smollm2":
        return load_smollm2()
    if name.startswith("hf:"):
        return load_hub_scorer(name.removeprefix("hf:"))
    folder = own if name == "train" else Path(name)
    if name == "train" and not folder.exists():
        raise UserError("A judge is trained together with systems; name them with --systems, or name a judge's folder.")
    run = open_saved(folder)
    label = "ar" if name == "train" else folder.name
    trained_on = str(run.content["corpus"]["name"])
    return ModelScorer(run.model(), run.tokenizer, label, trained_on, file_sha256(run.weights_file()))


def _shorten_names(groups: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """Runs by the name of their folder where that is unique, else by its path."""
    short = [Path(name).name for name in groups]
    return {Path(name).name if short.count(Path(name).name) == 1 else name: runs for name, runs in groups.items()}


def _measure(run: Run, measure: EvaluateConfig, corpus: Corpus, display: Display) -> Report:
    """The report of a run, measured once for the same weights and settings."""
    shape = [field.name for field in fields(Report)]  # a version that reports more is measured again
    key = [asdict(measure), file_sha256(run.weights_file(measure.weights)), run.content["corpus"], corpus.sha256, shape]

    def make() -> object:
        return asdict(evaluate_run(run, measure, corpus=corpus, display=display))

    return Report(**cached(run.results / "compare.json", key, make))


def _write_report(
    config: CompareConfig,
    rows: Sequence[LeaderboardRow],
    groups: dict[str, list[Run]],
    corpus: Corpus,
    chosen: list[Metric],
    display: Display,
) -> list[Path]:
    assert config.report is not None
    settings, measure = config.samples, config.measure
    length = next(iter(groups.values()))[0].config.length
    against = make_reference(corpus, measure.split, length, max(settings.samples, 2))
    sample_reports: dict[str, SampleReport] = {}
    real: dict[str, Value] = {}
    if settings.samples:
        grid = SamplingGrid(settings.samples, settings.sampling_steps, settings.temperatures, measure.seed)
        chosen = [scorer_metric(load_scorer(name, config.out / SCORER)) for name in settings.judge] + chosen
        real = measure_texts(against.real, against, chosen)
        for name, runs in groups.items():
            report = next(row.report for row in rows if row.name == name)
            sample_reports[name] = _sample(runs[0], corpus, against, chosen, grid, measure, _units(report), display)
    made = board(rows, groups, sample_reports, corpus, chosen, against, real)
    return write_comparison_report(made, config.report)


def _units(report: Report) -> float:
    """Characters, bytes or whatever bits are counted per, for each token."""
    return sum(report.nats) / math.log(2) / report.tokens / report.bits if report.bits else 1.0


def _sample(
    run: Run,
    corpus: Corpus,
    against: Reference,
    chosen: list[Metric],
    grid: SamplingGrid,
    measure: EvaluateConfig,
    units_per_token: float,
    display: Display,
) -> SampleReport:
    """Samples of a run with their metrics, made once for the same weights and settings."""
    key = [
        file_sha256(run.weights_file(measure.weights)),
        asdict(grid),
        [(metric.name, metric.version) for metric in chosen],
        measure.split,
        measure.per,
        corpus.sha256,
    ]
    with display.bar(f"samples {run.path.name}") as bar:

        def make() -> object:
            model = run.model(measure.weights)
            return asdict(
                report_samples(
                    model, corpus, measure.split, against, chosen, grid, units_per_token,
                    lambda what: bar.update(0.0, what),
                )
            )  # fmt: skip

        return parse_sample_report(cached(run.results / "sample_report.json", key, make))
