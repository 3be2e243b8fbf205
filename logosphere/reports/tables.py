"""The tables of a board as rows of plain cells, for HTML and Markdown alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from logosphere.reports.board import Board, Entry, Published, Sampling, Seed
from logosphere.reports.figures import valued
from logosphere.types import SIGN, Kind

KINDS: tuple[Kind, ...] = ("exact", "bound", "surrogate")
ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """Cells, the entry they belong to (for its colour) and how the row stands out."""

    cells: Sequence[str]
    entry: int | None = None
    look: str = ""


@dataclass(frozen=True)
class Table:
    """Headings with a remark each, and rows; `quoted` columns hold figures from the literature."""

    heads: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    quoted: frozenset[int] = frozenset()
    words: frozenset[int] = frozenset()
    """Columns of prose, set to the left."""


def likelihood(board: Board) -> Table:
    """One column for each kind that occurs: kinds are never mixed."""
    kinds = _kinds(board)
    papers = [kind for kind in KINDS if any(p.kind == kind and _named(board, p) for p in board.literature)]
    several = any(len(entry.seeds) > 1 for entry in board.entries)
    heads = [("system", "")] + [(kind, f"{SIGN[kind]} bits per {board.unit}") for kind in kinds]
    heads += [("above the best", "paired, ± s.e.")] + ([("seeds", "± s.d.")] if several else [])
    heads += [("recon", ""), ("diffusion", ""), ("prior", "")]
    quoted = frozenset(range(len(heads), len(heads) + len(papers)))
    heads += [(f"paper, {kind}", "other protocol") for kind in papers]
    rows = []
    for number, entry in enumerate(board.entries):
        best = number == 0 or (entry.kind == "surrogate") != (board.entries[number - 1].kind == "surrogate")
        cells = [entry.name, *_by_kind(entry.kind, kinds, entry)]
        cells.append("best" if best else f"{entry.above:+.4f} ± {entry.above_error:.4f}")
        if several:
            cells.append(ABSENT if entry.spread is None else f"{entry.spread:.4f} ({len(entry.seeds)})")
        cells += [f"{value:.4f}" for value in (entry.recon, entry.diffusion, entry.prior)]
        cells += [_quoted(board, entry, kind) for kind in papers]
        parting = best and number > 0
        rows.append(Row(cells, number, "best parting" if parting else "best" if best else ""))
    return Table(heads, rows, quoted)


def _kinds(board: Board) -> list[Kind]:
    """The kinds that occur."""
    return [kind for kind in KINDS if any(entry.kind == kind for entry in board.entries)]


def _by_kind(own: Kind, kinds: Sequence[Kind], figure: Entry | Seed) -> list[str]:
    """A cell for each kind, and the figure in its own."""
    return [f"{SIGN[own]} {figure.bits:.4f} ± {figure.error:.4f}" if kind == own else "" for kind in kinds]


def _named(board: Board, paper: Published) -> bool:
    return any(entry.system == paper.system for entry in board.entries)


def _quoted(board: Board, entry: Entry, kind: Kind) -> str:
    found = [p for p in board.literature if p.system == entry.system and p.kind == kind]
    return f"{SIGN[kind]} {_published(found[0].value)}" if found else ""


def _published(value: float) -> str:
    """As papers print it: two places, or more where there are more."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:g}"


def literature(board: Board) -> Table:
    """All published figures, each kind in its own column, with protocol and source."""
    kinds = [kind for kind in KINDS if any(p.kind == kind for p in board.literature)]
    heads = [("system", "")] + [(kind, f"{SIGN[kind]} bits per {board.unit}") for kind in kinds]
    heads += [("protocol", ""), ("source", "")]
    rows = [
        Row(
            [
                p.system,
                *[f"{SIGN[kind]} {_published(p.value)}" if p.kind == kind else "" for kind in kinds],
                p.protocol,
                p.source,
            ]
        )
        for p in board.literature
    ]
    last = len(heads)
    return Table(heads, rows, frozenset(range(1, len(kinds) + 1)), frozenset({last - 2, last - 1}))


def samples(board: Board, *, every: bool = True) -> Table:
    """Sample metrics of every way of sampling, or of the one with most steps at temperature 1; real text first."""
    heads = [("system", ""), ("steps", ""), ("temp.", ""), ("NFE", "per text"), ("CPU s", "per text")]
    heads += [(m.title, f"{m.unit}, {m.better}") for m in board.measures]
    rows = []
    if board.real:
        figures = [valued(board.real[m.name]) if m.name in board.real else "" for m in board.measures]
        rows.append(Row(["real text", "", "", "", "", *figures], look="real"))
    for number, entry in enumerate(board.entries):
        plain = [s for s in entry.samplings if s.temperature == 1]
        for sampling in entry.samplings if every else plain[-1:]:
            rows.append(Row([entry.name, *_way(sampling), *_figures(board, sampling)], number))
    return Table(heads, rows)


def _way(s: Sampling) -> list[str]:
    return [str(s.steps), f"{s.temperature:g}", f"{s.nfe:g}", f"{s.cpu_seconds / s.samples:.3f}"]


def _figures(board: Board, s: Sampling) -> list[str]:
    return [valued(s.figures[m.name]) if m.name in s.figures else "" for m in board.measures]


def costs(board: Board) -> Table:
    heads = [
        ("system", ""), ("parameters", ""), ("steps", ""), ("tokens", ""), ("TFLOP", "matrix products"),
        ("CPU s", "training"), ("s", "training"), ("tokens/CPU s", ""), ("peak MB", "resident"), ("s", "evaluation"),
    ]  # fmt: skip
    rows = []
    for number, entry in enumerate(board.entries):
        c = entry.costs
        speed = f"{c.tokens / c.cpu_seconds:,.0f}" if c.cpu_seconds else ABSENT
        passed = ABSENT if c.seconds is None else f"{c.seconds:,.1f}"
        memory = ABSENT if c.peak_bytes is None else f"{c.peak_bytes / 1e6:,.0f}"
        training = [
            f"{c.steps:,}", f"{c.tokens:,}", f"{c.step_flops * c.steps / 1e12:.3g}",
            f"{c.cpu_seconds:,.1f}", passed, speed, memory,
        ]  # fmt: skip
        known = training if c.steps else [ABSENT] * len(training)  # a box does not say what its training took
        cells = [entry.name, f"{c.parameters:,}", *known, f"{c.evaluation_seconds:,.1f}"]
        rows.append(Row(cells, number))
    return Table(heads, rows)


def trainings(board: Board) -> Table:
    kinds = _kinds(board)
    heads = [("system", ""), ("seed", ""), ("folder", ""), ("step", "")]
    heads += [(kind, f"{SIGN[kind]} bits per {board.unit}") for kind in kinds] + [("weights", "sha256")]
    rows = [
        Row([e.name, str(s.seed), s.folder, f"{s.step:,}", *_by_kind(e.kind, kinds, s), s.weights_sha256[:16]], n)
        for n, e in enumerate(board.entries)
        for s in e.seeds
    ]
    return Table(heads, rows, words=frozenset({2}))
