"""The leaderboard as data: records grouped into boards of comparable rows, ranked, with their seeds and commits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logosphere.errors import UserError
from logosphere.evaluation.extrapolation import LEAST_POINTS, Prediction, extrapolate, fit_power_law
from logosphere.evaluation.rank_intervals import Array, MeasuredRow, RankedRow, find_influence, rank_rows
from logosphere.report.row_records import RowRecord
from logosphere.systems import system
from logosphere.types import Kind

CPU = "CPU minutes"
CURVE_BEGINS = 0.1
"""A curve is fitted from this fraction of its cost on: before it, the learning rate warms up."""


@dataclass(frozen=True)
class BoardRow:
    """A row of a board: its trainings, and its rank among rows of comparable kinds."""

    name: str
    records: tuple[RowRecord, ...]
    ranked: RankedRow
    family: str

    @property
    def first(self) -> RowRecord:
        return self.records[0]

    @property
    def kind(self) -> Kind:
        return self.first.test.kind

    @property
    def commits(self) -> list[str]:
        return sorted({record.commit for record in self.records})


@dataclass(frozen=True)
class Board:
    """Rows with one part, text, split, budget and number of sequences: exact values and bounds, then surrogates."""

    part: str
    data: str
    unit: str
    budget: dict[str, float]
    sequences: int
    rows: tuple[BoardRow, ...]

    @property
    def title(self) -> str:
        return f"{self.part}: {self.data}, {describe_budget(self.budget)}"

    @property
    def on_test(self) -> bool:
        return self.data.endswith(" test")

    @property
    def dataset(self) -> str:
        return self.data.rpartition(" ")[0]

    @property
    def common_commit(self) -> str:
        """The commit of most rows."""
        return Counter(record.commit for row in self.rows for record in row.records).most_common(1)[0][0]

    @property
    def several_commits(self) -> bool:
        return len({record.commit for row in self.rows for record in row.records}) > 1

    @property
    def has_seeds(self) -> bool:
        return any(len(row.records) > 1 for row in self.rows)

    @property
    def is_paired(self) -> bool:
        return all(row.ranked.row.influence is not None for row in self.rows)


def describe_budget(budget: dict[str, float]) -> str:
    return ", ".join(f"{value:g} {name}" for name, value in budget.items())


def make_boards(records: Sequence[RowRecord]) -> list[Board]:
    """Group records into boards: the test split first, then campaigns, known commits and boards with more rows."""
    groups: dict[tuple[object, ...], list[RowRecord]] = {}
    for record in records:
        test = record.test
        key = record.part, test.data, test.unit, tuple(record.budget.items()), test.sequences
        groups.setdefault(key, []).append(record)
    boards = [_make_board(members) for members in groups.values()]

    def order(board: Board) -> tuple[object, ...]:
        first = board.rows[0].first
        return not board.on_test, first.recipe is None, not first.commit, -len(board.rows), board.title

    return sorted(boards, key=order)


def _make_board(records: Sequence[RowRecord]) -> Board:
    by_row: dict[str, list[RowRecord]] = {}
    for record in sorted(records, key=lambda record: (record.seed is None, record.seed or 0)):
        by_row.setdefault(record.row, []).append(record)
    hashes = Counter(record.test.data_sha256 for record in records if record.test.nats)
    text = hashes.most_common(1)[0][0] if hashes else ""
    rows: list[BoardRow] = []
    for surrogates in (False, True):
        chosen = {name: some for name, some in by_row.items() if (some[0].test.kind == "surrogate") == surrogates}
        if not chosen:
            continue
        ranked = rank_rows([measure_row(name, some, text) for name, some in chosen.items()])
        rows += [BoardRow(r.row.name, tuple(chosen[r.row.name]), r, find_family(chosen[r.row.name][0])) for r in ranked]
    first = records[0]
    return Board(first.part, first.test.data, first.test.unit, first.budget, first.test.sequences, tuple(rows))


def measure_row(name: str, records: Sequence[RowRecord], text: str) -> MeasuredRow:
    """A row as the statistics take it: paired where all its records have the sequences of this text."""
    error = float(np.mean([record.test.error for record in records]))
    influence: Array | None = None
    if all(record.test.nats and record.test.data_sha256 == text for record in records):
        parts = [find_influence(*record.test.as_arrays(), record.test.bits) for record in records]
        influence = np.mean(parts, axis=0)
        count = len(influence)
        error = float(np.sqrt((influence**2).sum() / (count * max(count - 1, 1))))
    return MeasuredRow(name, tuple(record.test.bits for record in records), error, influence)


def find_family(record: RowRecord) -> str:
    """The family of a record's system; a system that this version does not know has none."""
    try:
        return system(record.system).family
    except UserError:
        return "other"


@dataclass(frozen=True)
class Extrapolation:
    """The curve of a row continued to a larger budget, beside the number measured there, where there is one."""

    row: str
    prediction: Prediction
    measured: float | None
    """Bits on the validation split at the end of the longest training of that budget."""


def extrapolate_rows(board: Board, boards: Sequence[Board]) -> list[Extrapolation]:
    """The curves of a board continued to the next larger budgets of the same text, and what was measured there."""
    own = board.budget.get(CPU)
    if own is None:
        return []
    later = sorted({other.budget.get(CPU, 0.0) for other in boards if other.data == board.data} - {0.0})
    targets = [budget for budget in later if budget > own] or [4 * own]
    found = []
    for row in board.rows:
        curve = row.first.curve
        if not curve:
            continue
        points = [point for point in curve if point.cpu_seconds >= CURVE_BEGINS * curve[-1].cpu_seconds]
        if len(points) < LEAST_POINTS:
            continue
        law = fit_power_law([point.cpu_seconds for point in points], [point.bits for point in points])
        for minutes in targets:
            measured = [
                other.first.curve[-1].bits
                for one in boards
                if one.data == board.data and one.budget.get(CPU) == minutes
                for other in one.rows
                if other.name == row.name and other.first.curve
            ]
            found.append(Extrapolation(row.name, extrapolate(law, 60 * minutes), measured[0] if measured else None))
    return found
