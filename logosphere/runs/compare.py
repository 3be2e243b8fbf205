"""Comparison as one function: train systems alike, measure runs on the same sequences, rank them, write one report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from logosphere.data.corpus import Corpus, split_off
from logosphere.errors import UserError, quote_path
from logosphere.evaluation.leaderboard import LeaderboardRow, rank_reports
from logosphere.evaluation.report import Report
from logosphere.evaluation.sample_metrics import find_metrics, scorer_metric
from logosphere.evaluation.scorers import ModelScorer, Scorer, load_hub_scorer, load_smollm2
from logosphere.io import RECIPE, WEIGHTS, cached, check_folder, file_sha256, json_safe
from logosphere.pretrained import resolve_folder
from logosphere.report.write import write_comparison_report
from logosphere.runs.common_text import check_comparable, find_common_text, have_different_tokenizers
from logosphere.runs.comparison_report import make_report
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import record_column
from logosphere.runs.diagnosis import explain_poor_bounds
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.planned_runs import PlannedRun, apply_budget, plan_runs, train_planned
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Budget, Display, EvaluateConfig, SampleMetrics
from logosphere.runs.system_specs import parse_systems
from logosphere.runs.train_data import open_run_data, open_with_display
from logosphere.systems import DEFAULT

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
    """The page to write; Markdown and JSON are written to the same folder."""
    measure: EvaluateConfig = EvaluateConfig()
    samples: SampleMetrics = field(default_factory=SampleMetrics)
    preset: str = DEFAULT
    """The preset of all systems that name none of their own."""
    fixed: tuple[str, ...] = ()
    """Settings of the network that presets leave as they are."""


@dataclass(frozen=True)
class Comparison:
    """The outcome: rows from best to worst, the report's files, or that it was stopped."""

    rows: list[LeaderboardRow]
    files: list[Path]
    stopped: bool = False
    remarks: tuple[str, ...] = ()
    """Rows that are worse than blind guessing, with the likely reason."""


def open_saved(path: Path, *, trust_references: bool = False) -> Run:
    """A run that can be compared: it exists, has weights, and is not being trained."""
    folder = resolve_folder(path)
    if folder.is_dir() and not any(folder.iterdir()):
        raise UserError(
            f"{folder} is empty; name the folder of a run, or train one with: "
            f"logosphere train --out {quote_path(folder)}"
        )
    if folder.is_dir() and not (folder / RECIPE).exists():
        inside = sorted(found.parent.name for found in folder.glob(f"*/{RECIPE}"))
        hint = f" The runs in it are: {', '.join(inside)}." if inside else ""
        raise UserError(f"{folder} is not the folder of a run: {RECIPE} is missing.{hint}")
    run = Run(path, trust_references=trust_references)
    try:
        if (folder / ".lock").exists():
            with run.lock():
                pass
    except UserError:
        raise UserError(f"{folder} is still being trained; wait for it or stop it before comparing.") from None
    if not (folder / WEIGHTS).exists():
        raise UserError(
            f"Nothing has been saved in {folder} yet; continue with: "
            f"logosphere train --out {quote_path(folder)} --resume"
        )
    return run


def compare_runs(
    config: CompareConfig, display: Display = SILENT, on_ranked: Callable[[Comparison], None] = lambda ranked: None
) -> Comparison:
    """Train what is missing, measure every run on the same sequences, rank them, and write a report if requested.

    What is finished is not done again, so a stopped comparison continues when it is called again. `on_ranked` takes the
    ranks before a report is made, so that they are not lost if it cannot be written.
    """
    if not config.systems.strip(", ") and not config.runs:
        raise UserError("Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2")
    chosen = find_metrics(config.samples.metrics)
    if config.report is not None:
        config.samples.check()
        for metric in chosen:
            if metric.name in config.samples.metrics and 0 < config.samples.samples < metric.min_texts:
                raise UserError(
                    f"The metric {metric.name} needs at least {metric.min_texts} samples, not "
                    f"{config.samples.samples}; add --samples {metric.min_texts}."
                )
    trusted = config.measure.trust_references
    opened = {str(path): open_saved(path, trust_references=trusted) for path in config.runs}
    groups: dict[str, list[Run]] = {name: [run] for name, run in opened.items()}
    if config.systems:
        check_folder(config.out)
        trained = _train_systems(config, display)
        if trained is None:
            return Comparison([], [], stopped=True)
        groups |= trained
    runs = [run for group in groups.values() for run in group]
    check_comparable(runs)
    groups = _shorten_names(groups)
    if have_different_tokenizers(runs):
        rows = _rank_by_bytes(groups, config, display)
        ranked = Comparison(rows, [], remarks=explain_poor_bounds(rows, groups))
        on_ranked(ranked)
        return ranked
    if config.report is not None and config.samples.samples:  # before anything is measured, which takes long
        chosen = [scorer_metric(load_scorer(name, config.out / SCORER)) for name in config.samples.scorer] + chosen
    reader = next((run for run in runs if not run.is_imported), runs[0])
    corpus = open_run_data(reader, display, config.measure.data, config.measure.column)
    reports = {
        name: [_measure(run, config.measure, corpus, display) for run in group] for name, group in groups.items()
    }
    rows = rank_reports(reports)
    ranked = Comparison(rows, [], remarks=explain_poor_bounds(rows, groups))
    on_ranked(ranked)
    if config.report is None:
        return ranked
    report = make_report(rows, groups, corpus, chosen, config.samples, config.measure, display)
    return replace(ranked, files=write_comparison_report(report, config.report))


def _rank_by_bytes(groups: dict[str, list[Run]], config: CompareConfig, display: Display) -> list[LeaderboardRow]:
    """Rank runs with different tokenizers by bits per byte of one text."""
    if config.report is not None:
        raise UserError(
            "A report (--report) needs runs with one tokenizer; leave it out to rank these by bits per byte."
        )
    if config.measure.per not in ("auto", "byte"):
        raise UserError(f"Runs with different tokenizers are ranked by bits per byte, not --per {config.measure.per}.")
    common = find_common_text([run for group in groups.values() for run in group], config.measure, display)
    measure = replace(config.measure, per="byte", sequences=0)

    def measured(run: Run) -> Report:
        corpus = replace(common.corpora[run.tokenizer.fingerprint], sha256=common.sha256)
        return replace(_measure(run, measure, corpus, display), text_sha256=common.sha256)

    display.log(f"The runs have different tokenizers: bits per byte of the same {len(common.text):,} characters.")
    return rank_reports({name: [measured(run) for run in group] for name, group in groups.items()})


def _train_systems(config: CompareConfig, display: Display) -> dict[str, list[Run]] | None:
    """Train what is missing; the runs of each system, or None if it was stopped."""
    common, measure = config.config, config.measure
    if measure.data is not None:
        common = replace(common, data=measure.data, column="")
    if measure.column:
        common = replace(common, column=measure.column)
    specs = [spec.with_preset(config.preset) for spec in parse_systems(config.systems)]
    corpus = open_with_display(common.data, common.tokenizer, display, common.column)
    common = record_column(common, corpus)
    planned = plan_runs(specs, common, config.budget, config.seeds, corpus, config.out, config.fixed)
    if "train" in config.samples.scorer and config.report is not None:
        scorer = _plan_scorer(common, config.budget, corpus, config.out / SCORER)
        if train_planned(scorer, _scorer_corpus(corpus), display) is None:
            return None
    groups: dict[str, list[Run]] = {}
    for one in planned:
        run = train_planned(one, corpus, display)
        if run is None:
            return None
        groups.setdefault(one.name, []).append(run)
    return groups


def _plan_scorer(common: TrainConfig, budget: Budget, corpus: Corpus, folder: Path) -> PlannedRun:
    """An autoregressive scorer model with the network and the budget of the systems."""
    config = replace(common, system="ar", options=(), task="unconditional", begin=None)
    return PlannedRun("scorer", apply_budget(budget, config, corpus), folder)


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
        raise UserError("--scorer train needs systems to train: add --systems, or give the folder of a scorer model.")
    run = open_saved(folder)
    label = "ar" if name == "train" else folder.name
    trained_on = str(run.content.get("corpus", {}).get("name", "a text that is not recorded"))
    return ModelScorer(run.model(), run.tokenizer, label, trained_on, file_sha256(run.weights_file()))


def _shorten_names(groups: dict[str, list[Run]]) -> dict[str, list[Run]]:
    """Runs by the name of their folder where that is unique, else by its path."""
    short = [Path(name).name for name in groups]
    return {Path(name).name if short.count(Path(name).name) == 1 else name: runs for name, runs in groups.items()}


def _measure(run: Run, measure: EvaluateConfig, corpus: Corpus, display: Display) -> Report:
    """The report of a run, measured once for the same weights and settings."""
    shape = [field.name for field in fields(Report)]  # a version that reports more is measured again
    weights = file_sha256(run.weights_file(measure.weights))
    key = [asdict(measure), weights, run.content.get("corpus"), corpus.sha256, shape]

    def make() -> object:
        return json_safe(asdict(evaluate_run(run, measure, corpus=corpus, other_paths=False, display=display)))

    return Report.from_dict(cached(run.results / "compare.json", key, make))
