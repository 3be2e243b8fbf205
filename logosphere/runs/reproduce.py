"""Repeating a row of the leaderboard from its record, and whether the new number agrees with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import logosphere
from logosphere.errors import UserError, suggest
from logosphere.evaluation.rank_intervals import MeasuredRow, find_influence, pool_variance
from logosphere.io import as_file_name, check_folder
from logosphere.report.experiment_rows import read_rows
from logosphere.report.row_records import PACKED, HeldOutNumber, RowRecord, number_from_report
from logosphere.runs.campaign_rows import find_precision
from logosphere.runs.config import TrainConfig, config_from_dict
from logosphere.runs.evaluate import evaluate_run
from logosphere.runs.planned_runs import PlannedRun, train_planned
from logosphere.runs.settings import Display, EvaluateConfig, Split
from logosphere.runs.train_data import open_with_display

LEADERBOARD = "leaderboard"
"""The name of the leaderboard of this project: its records are in the repository."""
ROOT = Path(logosphere.__file__).parent.parent
PLACES = (ROOT / "benchmarks" / "leaderboard", ROOT / "benchmarks" / "results")
ERRORS = 3.0
"""A repetition agrees if its difference is at most this many standard errors."""
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True)
class Reproduction:
    """A repeated row beside its record."""

    record: RowRecord
    number: HeldOutNumber
    steps: int
    difference: float
    error: float
    """Standard error of the difference: over sequences, and between trainings where that is known."""
    seeds_known: bool
    paired: bool

    @property
    def identical(self) -> bool:
        """Is it the same number to the last bit, for every sequence?"""
        nats = tuple(np.asarray(self.number.nats, dtype=PACKED).astype(np.float64).tolist())
        return self.paired and self.number.bits == self.record.test.bits and nats == self.record.test.nats

    @property
    def agrees(self) -> bool:
        return self.identical or abs(self.difference) <= ERRORS * self.error

    def __str__(self) -> str:
        compared = "paired over sequences" if self.paired else "not paired, since the record has no sequences"
        spread = "" if self.seeds_known else "; the spread between trainings is not recorded"
        numbers = f"{self.record.name}: {self.record.test} recorded, {self.number} now, after {self.steps:,} steps"
        if self.identical:
            return f"{numbers}: identical to the last bit."
        verdict = "agrees" if self.agrees else "does not agree"
        return (
            f"{numbers}; the difference of {self.difference:+.4f} ± {self.error:.4f} ({compared}{spread}) {verdict} "
            f"within {ERRORS:g} standard errors."
        )


def load_rows(source: str) -> tuple[list[RowRecord], list[str]]:
    """The rows of the leaderboard of this project, of a folder of records, or of a file of experiments."""
    places = [Path(source)]
    if source == LEADERBOARD and not Path(source).exists():
        places = [place for place in PLACES if place.exists()]
        if not places:
            raise UserError(
                "The records of the leaderboard are in the repository and not in this installation; clone it, or name "
                "a folder with records."
            )
    rows: list[RowRecord] = []
    problems: list[str] = []
    for place in places:
        if not place.exists():
            raise UserError(f"There are no records in {place}; name a folder with records, or '{LEADERBOARD}'.")
        found, wrong = read_rows(place)
        rows, problems = rows + found, problems + wrong
    return rows, problems


def find_row(rows: Sequence[RowRecord], name: str, source: str) -> RowRecord:
    """The record of PART/ROW/SEED; without a seed the first, without a part that of the only part with such a row.

    A row that was measured on several splits is that of the test split.
    """
    found = [row for row in rows if name in (row.name, f"{row.part}/{row.row}", row.row)]
    if not found:
        known = sorted({f"{row.part}/{row.row}" for row in rows})
        if not known:
            raise UserError(f"There is no record of a row in {source}.")
        raise UserError(f"There is no row '{name}' in {source}.{suggest(name, known)}")
    if len(parts := sorted({row.part for row in found})) > 1:
        raise UserError(f"'{name}' is a row of {' and of '.join(parts)}; write for example {parts[0]}/{name}.")
    return min(found, key=lambda row: (not row.test.data.endswith(" test"), row.seed or 0))


def configure(record: RowRecord) -> TrainConfig:
    """The training of a record by its steps, which do not depend on the speed of a machine."""
    if record.recipe is None:
        raise UserError(f"The record of {record.name} has no recipe; train it anew with: {record.command}")
    return _by_steps(config_from_dict(record.recipe, f"the record of {record.name}"), record)


def _by_steps(config: TrainConfig, record: RowRecord) -> TrainConfig:
    if record.steps is None:
        raise UserError(f"The record of {record.name} does not say how many steps it took; it cannot be repeated.")
    return replace(config, steps=record.steps, minutes=None, cpu_minutes=None, seed=record.seed or config.seed)


def reproduce(
    record: RowRecord, siblings: Sequence[RowRecord], out: Path, display: Display, config: TrainConfig | None = None
) -> Reproduction | None:
    """Train the row again, measure it like the record, and compare; None if it was stopped.

    `siblings` are other records, whose seeds say how much trainings differ. `config` is the training of a record that
    has only its arguments.
    """
    config = configure(record) if config is None else _by_steps(config, record)
    split = next((split for split in SPLITS if record.test.data.endswith(f" {split}")), None)
    if split is None:
        raise UserError(f"The record of {record.name} is of '{record.test.data}', which names no split of a text.")
    check_folder(out)
    corpus = open_with_display(config.data, config.tokenizer, display, config.column)
    folder = out / as_file_name(record.name.replace(", ", "--").replace(" ", "-"))
    run = train_planned(PlannedRun(record.name, config, folder), corpus, display)
    if run is None:
        return None
    measure = EvaluateConfig(
        split=split, sequences=record.test.sequences, draws=record.test.draws or None, seed=record.test.seed,
        precision=find_precision(record.test.precision),
    )  # fmt: skip
    report = evaluate_run(run, measure, corpus=corpus, other_paths=False, display=display)
    return compare_numbers(record, number_from_report(report), siblings, config.steps or 0)


def compare_numbers(
    record: RowRecord, number: HeldOutNumber, siblings: Sequence[RowRecord], steps: int
) -> Reproduction:
    """The difference of a new number to its record, with its error."""
    old = record.test
    if number.kind != old.kind or number.unit != old.unit:
        raise UserError(
            f"The number is now {number.kind} in bits per {number.unit}, and the record has {old.kind} in bits per "
            f"{old.unit}; they cannot be compared."
        )
    paired = bool(old.nats) and old.data_sha256 == number.data_sha256 and len(old.nats) == len(number.nats)
    if paired:
        (nats, counts), (before, _) = number.as_arrays(), old.as_arrays()
        influence = find_influence(nats, counts, number.bits) - find_influence(before, counts, old.bits)
        error = float(np.std(influence, ddof=1)) / math.sqrt(len(influence)) if len(influence) > 1 else math.nan
    else:
        error = math.hypot(old.error, number.error)
    variance, freedom = pool_variance(_group_seeds(record, siblings))
    error = math.sqrt(error**2 + 2 * variance)  # of two trainings
    return Reproduction(record, number, steps, number.bits - old.bits, error, freedom > 0, paired)


def _group_seeds(record: RowRecord, siblings: Sequence[RowRecord]) -> list[MeasuredRow]:
    """The trainings of each row with the record's budget, data and kind of likelihood, by row."""
    rows: dict[tuple[str, str], list[float]] = {}
    for row in siblings:
        if row.budget == record.budget and row.test.data == record.test.data:
            rows.setdefault((row.part, row.row), []).append(row.test.bits)
    return [MeasuredRow(name, tuple(bits), 0.0) for (_, name), bits in rows.items()]
