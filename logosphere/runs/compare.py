"""Comparison as one function: train systems alike, measure runs on the same sequences, rank them, write one report."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from logosphere.data.corpus import Corpus, split_off
from logosphere.errors import UserError, quote_path, suggest
from logosphere.evaluation.leaderboard import LeaderboardRow, rank_reports
from logosphere.evaluation.report import Report
from logosphere.evaluation.sample_metrics import find_metrics, scorer_metric
from logosphere.evaluation.scorers import ModelScorer, Scorer, load_hub_scorer, load_smollm2
from logosphere.io import RECIPE, WEIGHTS, cached, check_folder, file_sha256, json_safe, write_json
from logosphere.networks.config import NetworkConfig
from logosphere.pretrained import resolve_folder
from logosphere.report.write import write_comparison_report
from logosphere.runs.budget import is_finished
from logosphere.runs.common_text import check_comparable, find_common_text, have_different_tokenizers
from logosphere.runs.comparison_report import COSTS, make_report
from logosphere.runs.config import TrainConfig
from logosphere.runs.costs import count_step_flops, peak_memory_bytes, reset_peak_memory
from logosphere.runs.create import build_model, create_run_and_model, record_column, resolve_precision
from logosphere.runs.diagnosis import explain_poor_bounds
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.run import Run
from logosphere.runs.settings import SILENT, Budget, Display, EvaluateConfig, SampleMetrics
from logosphere.runs.train import run_to_end
from logosphere.runs.train_data import open_run_data, open_with_display
from logosphere.systems import DEFAULT, find_preset, system
from logosphere.systems import options as option_defaults

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


@dataclass(frozen=True)
class SystemSpec:
    """A system with options of its own: mdlm, mdlm:preset=paper, or mdlm:schedule=cosine:optim.lr=1e-3."""

    name: str
    system: str
    options: tuple[str, ...]
    lr: float | None
    preset: str = DEFAULT

    @staticmethod
    def parse(word: str) -> "SystemSpec":
        name, *rest = word.split(":")
        system(name)
        lr, options, preset = None, [], DEFAULT
        for option in rest:
            key, separator, value = option.partition("=")
            if not separator or not value:
                raise UserError(f"'{option}' in '{word}' is not an option of the form name=value.")
            if key == "optim.lr":
                try:
                    lr = float(value)
                except ValueError:
                    raise UserError(
                        f"'{value}' is not a learning rate; write for example {name}:optim.lr=2e-3"
                    ) from None
            elif key == "preset":
                preset = find_preset(name, value).name
            else:
                _check_own_option(word, name, key)
                options.append(option)
        return SystemSpec(word, name, tuple(options), lr, preset)

    def with_preset(self, name: str) -> "SystemSpec":
        """The system with this preset, unless it names one of its own."""
        return self if self.preset != DEFAULT else replace(self, preset=find_preset(self.system, name).name)

    def configure(self, common: TrainConfig, fixed: Sequence[str] = ()) -> TrainConfig:
        """The common recipe for this system; a preset brings its model, but the optimiser is the same for all.

        It leaves the `fixed` settings of the network as they are.
        """
        optim = common.optim if self.lr is None else replace(common.optim, lr=self.lr)
        if self.preset != DEFAULT:
            kept = {name: getattr(common.network, name) for name in fixed}
            common = replace(common, system=self.system).with_preset(self.preset, optimiser=False)
            common = replace(common, network=replace(common.network, **kept))
        return replace(common, system=self.system, options=(*common.options, *self.options), optim=optim)


def _check_own_option(word: str, name: str, key: str) -> None:
    """Raise UserError for a setting that all systems of a comparison share, or one that a system does not have."""
    own = option_defaults(name).keys() - vars(NetworkConfig()).keys()
    if key in own:
        return
    shared = vars(NetworkConfig()).keys() | vars(TrainConfig()).keys()
    if key in shared or key.startswith(("network.", "optim.")):
        raise UserError(
            f"'{key}' in '{word}' must be the same for all systems of a comparison; {_where_to_set(key)}. A system may "
            "have its own options, preset and optim.lr."
        )
    raise UserError(f"'{name}' has no option '{key}'." + (suggest(key, own) if own else " It has none."))


def _where_to_set(key: str) -> str:
    """How a setting that all systems of a comparison share is given to `logosphere compare`."""
    network = key.removeprefix("network.")
    if network in vars(NetworkConfig()):
        return f"set it with --network.{network.replace('_', '-')}"
    if key in ("length", "tokenizer", "data", "column") or key in vars(Budget()):
        return f"set it with --{key.replace('_', '-')}"
    return "set it in the recipe (--recipe FILE)"


def parse_systems(words: str) -> list[SystemSpec]:
    """Systems separated by commas; commas inside brackets belong to an option."""
    found = [SystemSpec.parse(word.strip()) for word in re.split(r",(?![^\[]*\])", words) if word.strip()]
    names = [spec.name for spec in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"'{twice[0]}' is named twice; name each system once, and use --seeds to repeat trainings.")
    return found


@dataclass(frozen=True)
class PlannedRun:
    """One training of a comparison: a system and a seed."""

    name: str
    config: TrainConfig
    folder: Path


def apply_budget(budget: Budget, config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The configuration with this budget. Tokens and operations become steps, rounded down but at least 1."""
    if not budget.given():
        return config
    steps = budget.steps
    if budget.tokens is not None:
        steps = max(1, int(budget.tokens // (config.batch * config.length)))
    if budget.flops is not None:
        steps = max(1, int(budget.flops // count_step_flops(build_model(config, corpus), config.batch)))
    return replace(config, steps=steps, minutes=budget.minutes, cpu_minutes=budget.cpu_minutes)


def plan_runs(
    specs: list[SystemSpec],
    common: TrainConfig,
    budget: Budget,
    seeds: int,
    corpus: Corpus,
    out: Path,
    fixed: Sequence[str] = (),
) -> list[PlannedRun]:
    """Every system with every seed, each in a folder of its own under `out`."""
    if seeds < 1:
        raise UserError(f"There must be at least 1 seed, not {seeds}.")
    planned = []
    for spec in specs:
        config = resolve_precision(apply_budget(budget, spec.configure(common, fixed), corpus))
        for number in range(seeds):
            name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec.name)
            folder = out / (name if number == 0 else f"{name}-seed{number}")
            planned.append(PlannedRun(spec.name, replace(config, seed=common.seed + number), folder))
    return planned


def find_existing(planned: PlannedRun) -> Run | None:
    """The run of a training that has begun, checked to be the planned one; None if it has not begun."""
    if not (planned.folder / RECIPE).exists():
        return None
    run = Run(planned.folder)
    for name, wanted in asdict(planned.config).items():
        if (found := asdict(run.config)[name]) != wanted and (name, found) != ("precision", "auto"):
            raise UserError(
                f"{planned.folder} was trained with {name} = {found}, not {wanted}; "
                "choose another --out for this comparison."
            )
    return run


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
    """Train one run to its end, from its last checkpoint if there is one; None if it was stopped."""
    run = find_existing(planned)
    if run is not None and is_finished(run):
        display.log(f"{planned.folder} is trained already")
        return run
    model = None
    if run is None:
        run, model = create_run_and_model(planned.config, corpus, planned.folder)
    reset_peak_memory()
    outcome = run_to_end(run, corpus, display, model=model)
    write_json(run.path / COSTS, {"peak_bytes": peak_memory_bytes()})
    if outcome.stopped:
        display.log(f"Stopped at step {outcome.step:,} of {planned.name} and saved. The same command continues.")
    elif outcome.interrupted:
        display.log(f"Stopped after {planned.name}. The same command continues.")
    return None if outcome.interrupted else run


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
