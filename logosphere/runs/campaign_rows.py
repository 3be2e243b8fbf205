"""Training and measuring the rows of a campaign: what is finished is not done again, and each row becomes a record."""

import math
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import logosphere
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError, quote_path
from logosphere.evaluation.report import Report
from logosphere.evaluation.sample_metrics import find_metrics, scorer_metric
from logosphere.io import as_file_name, cached, check_folder, file_sha256, json_safe, replace_file
from logosphere.report.comparison import SamplingResult
from logosphere.report.row_records import RowRecord, number_from_report, read_record, record_path, write_record
from logosphere.runs.campaign import LARGEST_DEVIATION, Campaign, CampaignRow, Part, describe_budget
from logosphere.runs.compare import load_scorer
from logosphere.runs.comparison_report import make_reference, read_curve, report_samples
from logosphere.runs.config import TrainConfig, config_from_dict
from logosphere.runs.create import record_column, resolve_precision
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.loop import Event, StepTaken, Validated
from logosphere.runs.planned_runs import PlannedRun, apply_budget, train_planned
from logosphere.runs.recipes import recipe
from logosphere.runs.run import Run, environment
from logosphere.runs.settings import Display, EvaluateConfig, Precision, SampleMetrics, Split
from logosphere.runs.system_specs import SystemSpec
from logosphere.runs.train_data import open_with_display
from logosphere.runs.training_records import sum_records
from logosphere.training.optimizer import OptimizerConfig

COMMIT = "LOGOSPHERE_COMMIT"
"""The environment variable with the commit that a wheel was built from."""


@dataclass(frozen=True)
class CampaignOutcome:
    """The records of the rows that were asked for, or that the campaign was stopped before its end."""

    records: list[RowRecord]
    stopped: bool = False


@dataclass(frozen=True)
class ChosenRate:
    """A learning rate as a multiple of the recipe's, and how it was chosen."""

    factor: float = 1.0
    row: str = ""
    """The row it was chosen for; empty where it is that of the recipe."""
    trials: dict[str, float] = field(default_factory=dict)
    """Bits on the validation split by factor."""


def run_campaign(
    campaign: Campaign,
    out: Path,
    records: Path,
    only: tuple[str, ...],
    display: Display,
    on_record: Callable[[RowRecord], None] = lambda record: None,
) -> CampaignOutcome:
    """Train and measure every row that has no record yet; `on_record` is called with each record, old or new."""
    for folder in (out, records):
        check_folder(folder)
    work = CampaignRun(campaign, out, records, display)
    done: list[RowRecord] = []
    for part, rows in campaign.select(only):
        for row in rows:
            for seed in part.seeds[row.name]:
                record = work.find_record(part, row, seed)
                if record is None:
                    record = work.make_record(part, row, seed)
                if record is None:
                    return CampaignOutcome(done, stopped=True)
                on_record(record)
                done.append(record)
    return CampaignOutcome(done)


class CampaignRun:
    """The trainings of a campaign in their folders, and the texts that they share."""

    def __init__(self, campaign: Campaign, out: Path, records: Path, display: Display):
        self.campaign, self.out, self.records, self.display = campaign, out, records, display
        self.corpora: dict[tuple[str, str], Corpus] = {}
        self.rates: dict[str, ChosenRate] = {}

    def corpus(self, part: Part) -> Corpus:
        common = self.common(part)
        key = common.data, common.tokenizer
        if key not in self.corpora:
            self.corpora[key] = open_with_display(common.data, common.tokenizer, self.display, common.column)
        return self.corpora[key]

    def common(self, part: Part) -> TrainConfig:
        """The recipe of all rows of a part."""
        chosen = replace(recipe(self.campaign.recipe), validations=self.campaign.validations)
        data, tokenizer = part.data or self.campaign.data or chosen.data, part.tokenizer or chosen.tokenizer
        return replace(chosen, data=data, tokenizer=tokenizer)

    def configure(self, part: Part, row: CampaignRow, seed: int, factor: float) -> TrainConfig:
        """The configuration of a training."""
        corpus = self.corpus(part)
        common = record_column(self.common(part), corpus)
        common = replace(common, network=replace(common.network, **row.network))
        config = SystemSpec.parse(row.system).configure(common, tuple(row.network))
        config = resolve_precision(apply_budget(part.budget, config, corpus))
        return replace(config, seed=seed, optim=scale_rates(config.optim, factor))

    def find_record(self, part: Part, row: CampaignRow, seed: int) -> RowRecord | None:
        """The record of a row that is finished; a damaged one is kept under another name and made again."""
        path = record_path(self.records, part.name, row.name, seed)
        if not path.exists():
            return None
        try:
            record = read_record(path)
        except UserError as problem:
            kept = path.with_suffix(".json.damaged")
            self.display.log(f"{problem} It is kept as {kept.name}, and the row is measured again.")
            replace_file(path, kept)
            return None
        wanted = self.configure(part, row, seed, float(record.learning_rate.get("factor", 1.0)))
        found = config_from_dict(record.recipe or {}, str(path))
        if found != wanted:
            names = [name for name, value in vars(wanted).items() if vars(found)[name] != value]
            raise UserError(
                f"The record {path} is of a training with {names[0]} = {vars(found)[names[0]]}, not "
                f"{vars(wanted)[names[0]]}; give the changed part another name, or name another --records folder."
            )
        return record

    def make_record(self, part: Part, row: CampaignRow, seed: int) -> RowRecord | None:
        """Train a row, measure it and write its record; None if it was stopped."""
        rate = self.choose_rate(row)
        if rate is None:
            return None
        meter = CpuMeter()
        run = self.train(part, row, seed, rate.factor, meter)
        if run is None:
            return None
        report = self.evaluate(run, part, "test", self.campaign.sequences, meter)
        samplings = self.sample(run, part, report, meter)
        spent, config = sum_records(run.trainings), run.config
        budget, note = describe_budget(part.budget), ""
        if config.cpu_minutes is not None:
            deviation = spent.cpu_seconds / (60 * config.cpu_minutes) - 1
            if abs(deviation) > LARGEST_DEVIATION:
                note = f"The training took {deviation:+.1%} of its budget."
        learning_rate = {
            "factor": rate.factor, "lr": config.optim.lr, "matrix_lr": config.optim.matrix_lr, "chosen_for": rate.row,
            "trials": rate.trials,
        }  # fmt: skip
        record = RowRecord(
            part=part.name, row=row.name, system=config.system, seed=seed, budget=budget,
            test=number_from_report(report), steps=spent.steps, tokens=spent.tokens, cpu_seconds=spent.cpu_seconds,
            preset=config.preset, options=config.options, recipe=plain_config(config),
            command=f"logosphere compare --campaign {quote_path(self.campaign.path)} "
            f"--only {quote_path(f'{part.name}/{row.name}')}",
            commit=find_commit(), date=datetime.now(UTC).date().isoformat(), note=note,
            parameters=sum(weight.numel() for weight in run.model().parameters()),
            overhead_seconds=meter.overhead(spent.cpu_seconds), learning_rate=learning_rate,
            curve=tuple(read_curve(run)), samplings=tuple(samplings), versions=describe_versions(),
        )  # fmt: skip
        path = write_record(record, self.records)
        self.display.log(f"{record.name} is recorded in {path}")
        return read_record(path)

    def train(self, part: Part, row: CampaignRow, seed: int, factor: float, meter: "CpuMeter") -> Run | None:
        config = self.configure(part, row, seed, factor)
        name = as_file_name(row.name.replace(", ", "--").replace(" ", "-"))
        folder = self.out / as_file_name(part.name) / f"{name}--{seed}--x{factor:g}"
        planned = PlannedRun(f"{part.name}/{row.name}/{seed}", config, folder)
        return train_planned(planned, self.corpus(part), self.display, meter.on_event)

    def evaluate(self, run: Run, part: Part, split: Split, sequences: int, meter: "CpuMeter") -> Report:
        """The report of a run on a split, measured once for the same weights and settings."""
        with meter.evaluating():
            precision = find_precision(run.config.precision)
            measure = EvaluateConfig(split=split, sequences=sequences, draws=self.campaign.draws, precision=precision)
            corpus = self.corpus(part)
            key = [asdict(measure), file_sha256(run.weights_file(measure.weights)), corpus.sha256]

            def make() -> object:
                report = evaluate_run(run, measure, corpus=corpus, other_paths=False, display=self.display)
                return json_safe(asdict(report))

            return Report.from_dict(cached(run.results / f"campaign-{split}.json", key, make))

    def sample(self, run: Run, part: Part, report: Report, meter: "CpuMeter") -> list[SamplingResult]:
        """Metrics of samples at several numbers of steps, for parts that ask for them."""
        if part.samples is None:
            return []
        with meter.evaluating():
            corpus, wanted = self.corpus(part), part.samples
            settings = SampleMetrics(wanted.samples, wanted.sampling_steps, (), wanted.metrics, wanted.scorer)
            settings.check()
            against = make_reference(corpus, "test", run.config.length, settings.samples)
            chosen = [scorer_metric(load_scorer(name, self.out)) for name in settings.scorer]
            chosen += find_metrics(settings.metrics)
            units = sum(report.nats) / math.log(2) / report.tokens / report.bits if report.bits else 1.0
            with self.display.bar(f"samples {run.path.name}") as bar:
                found = report_samples(
                    run.model(), corpus, "test", against, chosen, settings, 0, units, lambda what: bar.update(0.0, what)
                )
        return found.samplings

    def choose_rate(self, row: CampaignRow) -> ChosenRate | None:
        """The learning rate with the lowest bound on the validation split; None if a trial was stopped."""
        rates = self.campaign.rates
        tuned = None if rates is None else rates.tuned_row(row.name)
        if rates is None or tuned is None:
            return ChosenRate()
        if tuned not in self.rates:
            chosen = self.recorded_rate(tuned) or self.try_rates(tuned)
            if chosen is None:
                return None
            self.rates[tuned] = chosen
        return self.rates[tuned]

    def recorded_rate(self, tuned: str) -> ChosenRate | None:
        """The choice as an earlier record has it, so that its trials need not be kept."""
        rates = self.campaign.rates
        assert rates is not None
        path = record_path(self.records, rates.part, tuned, 0)
        if not path.exists():
            return None
        try:
            found = read_record(path).learning_rate
        except UserError:
            return None  # which `find_record` names
        trials = found.get("trials")
        if not isinstance(trials, dict) or set(trials) != {f"{factor:g}" for factor in rates.factors}:
            return None
        return ChosenRate(float(found["factor"]), tuned, trials)

    def try_rates(self, tuned: str) -> ChosenRate | None:
        rates = self.campaign.rates
        assert rates is not None
        part = self.campaign.part(rates.part)
        row = next((one for one in part.rows if one.name == tuned), None)
        if row is None:
            raise UserError(
                f"{self.campaign.path}: '{tuned}', which has a family's learning rate, is not in {part.name}."
            )
        trials = {}
        for factor in rates.factors:
            run = self.train(part, row, 0, factor, CpuMeter())
            if run is None:
                return None
            trials[f"{factor:g}"] = self.evaluate(run, part, "valid", rates.sequences, CpuMeter()).bits
        best = min(trials, key=lambda factor: trials[factor])
        self.display.log(f"learning rate of {tuned}: x{best} of the recipe ({trials})")
        return ChosenRate(float(best), tuned, trials)


def find_precision(name: str) -> Precision:
    """A precision by its recorded name; that of the machine where none was recorded."""
    known: tuple[Precision, ...] = ("float32", "bfloat16")
    return next((precision for precision in known if precision == name), "auto")


class CpuMeter:
    """CPU seconds from its creation on, less those of evaluation."""

    def __init__(self) -> None:
        self.started = self.last = time.process_time()
        self.excluded, self.whole = 0.0, False

    def on_event(self, event: Event) -> None:
        """Take the time since the event before a validation as that of the validation."""
        now = time.process_time()
        if isinstance(event, StepTaken) and event.progress.step == 1:
            self.whole = True
        elif isinstance(event, Validated):
            self.excluded += now - self.last
        self.last = now

    def evaluating(self) -> "_Excluded":
        return _Excluded(self)

    def overhead(self, training: float) -> float | None:
        """CPU seconds beyond those of the training steps and of evaluation; None where it was begun before."""
        spent = time.process_time() - self.started - self.excluded - training
        return round(spent, 3) if self.whole else None


class _Excluded:
    """The time of a block is left out of an overhead."""

    def __init__(self, meter: CpuMeter):
        self.meter = meter

    def __enter__(self) -> None:
        self.began = time.process_time()

    def __exit__(self, *problem: object) -> None:
        self.meter.excluded += time.process_time() - self.began


def scale_rates(optim: OptimizerConfig, factor: float) -> OptimizerConfig:
    """All learning rates of an optimiser times a factor; those that follow from `lr` do so still."""
    names = ("lr", "matrix_lr", "codec_lr", "schedule_lr")
    rates = {name: getattr(optim, name) for name in names}
    return replace(optim, **{name: rate * factor for name, rate in rates.items() if rate is not None})


def plain_config(config: TrainConfig) -> dict[str, Any]:
    """A configuration as plain data, as recipe.json holds it."""
    content = json_safe(asdict(config))
    assert isinstance(content, dict)
    return content


def find_commit() -> str:
    """The commit of the measured code: of the checkout, or of the environment for a wheel; empty where unknown."""
    root = Path(logosphere.__file__).parent.parent
    if os.environ.get(COMMIT) or not (root / ".git").exists():
        return os.environ.get(COMMIT, "")
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe_versions() -> dict[str, str]:
    """The versions and the processor that the last bits of a result depend on."""
    found = environment()
    return {"python": found["python"], "platform": found["platform"], **found["packages"]}
