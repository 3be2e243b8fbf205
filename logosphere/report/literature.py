"""Does it agree with the literature? Pairs of systems that papers order, and what the records show at each budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logosphere.errors import UserError
from logosphere.evaluation.rank_intervals import rank_rows
from logosphere.report.leaderboard import Board, BoardRow, describe_budget
from logosphere.untrusted import read_object

SEPARATED = 2.0
"""Standard errors from which on two rows are in an order."""


@dataclass(frozen=True)
class Pair:
    """Two systems, the first better than the second according to papers."""

    better: dict[str, Any]
    """The fields that a row must have: its system, and its block or path where they matter."""
    worse: dict[str, Any]
    figures: str
    """What the papers report."""
    source: str
    comparable: bool = True
    """Whether the two published numbers are of comparable kinds."""

    @property
    def title(self) -> str:
        return f"{_label(self.better)} below {_label(self.worse)}"


def _label(fields: dict[str, Any]) -> str:
    block, path = fields.get("block"), fields.get("path")
    return "`" + fields["system"] + "`" + (f", block {block}" if block else "") + (f", {path}" if path else "")


@dataclass(frozen=True)
class Finding:
    """What one board shows of a pair."""

    board: Board
    rows: tuple[str, str]
    difference: float
    """Bits of the second above the first."""
    error: float

    @property
    def verdict(self) -> str:
        if abs(self.difference) < SEPARATED * self.error:
            return "not separated"
        return "same order" if self.difference > 0 else "reversed"


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a JSON file with the list `pairs`."""
    try:
        return [Pair(**pair) for pair in read_object(path)["pairs"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"The pairs in {path} cannot be read ({problem}); restore the file.") from None


def find_row(board: Board, wanted: dict[str, Any]) -> BoardRow | None:
    """The row of a board with these fields; of several the plainest, which is the one with the shortest name."""
    rows = [row for row in board.rows if all(_value(row, name) == value for name, value in wanted.items())]
    return min(rows, key=lambda row: (len(row.name), row.name)) if rows else None


def _value(row: BoardRow, name: str) -> object:
    return row.first.system if name == "system" else getattr(row.first.test, name)


def compare_pair(pair: Pair, boards: Sequence[Board]) -> list[Finding]:
    """The difference of a pair on every board that has both rows, from the smallest budget on."""
    found = []
    for board in boards:
        better, worse = find_row(board, pair.better), find_row(board, pair.worse)
        if better is None or worse is None or "surrogate" in (better.kind, worse.kind):
            continue
        first, second = rank_rows([better.ranked.row, worse.ranked.row])
        sign = 1 if first.row.name == better.name else -1
        found.append(Finding(board, (better.name, worse.name), sign * second.above, second.above_error))
    return sorted(found, key=lambda one: (list(one.board.budget.values()), one.board.data, one.board.part))


def render_literature(pairs: Sequence[Pair], boards: Sequence[Board]) -> str:
    """A Markdown table of all pairs: the papers' figures, and for each budget what the records show."""
    lines = ["| pair | papers | records | difference, bits | order |", "|---|---|---|---|---|"]
    for pair in pairs:
        papers = f"{pair.figures} ({pair.source})"
        findings = compare_pair(pair, boards)
        if not findings:
            lines.append(f"| {pair.title} | {papers} | no record has both | | |")
        for number, one in enumerate(findings):
            head = f"| {pair.title} | {papers} " if number == 0 else "| | "
            difference = f"{one.difference:+.3f}".replace("-", "−")
            where = f"{one.board.part}, {one.board.data}, {describe_budget(one.board.budget)}"
            lines.append(f"{head}| {where} | {difference} ± {one.error:.3f} | {one.verdict} |")
    return "\n".join(lines) + "\n"


def summarise_literature(pairs: Sequence[Pair], boards: Sequence[Board]) -> str:
    """How many pairs have each order at the largest budget with both rows, and which are reversed or not separated."""
    named: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.comparable:
            found = [one for one in compare_pair(pair, boards) if one.board.on_test] or compare_pair(pair, boards)
            named.setdefault(found[-1].verdict if found else "no record has both", []).append(pair.title)
    lines = ["| order at the largest budget with both rows | pairs | |", "|---|---:|---|"]
    for verdict in ("same order", "not separated", "reversed", "no record has both"):
        if verdict in named:
            lines.append(f"| {verdict} | {len(named[verdict])} | {'; '.join(named[verdict])} |")
    return "\n".join(lines) + "\n"
