"""The tables of a comparison report as rows of plain cells, for HTML and Markdown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from logosphere.report.comparison import ComparisonReport, Entry, PublishedResult, SamplingResult, SeedResult, Value
from logosphere.types import SIGN, Kind

KINDS: tuple[Kind, ...] = ("exact", "bound", "surrogate")
ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """Cells, the number of the entry they belong to (for its colour) and the CSS class of the row."""

    cells: Sequence[str]
    entry: int | None = None
    css_class: str = ""


@dataclass(frozen=True)
class Table:
    """Headings with a remark each, and rows."""

    heads: Sequence[tuple[str, str]]
    rows: Sequence[Row]
    quoted_columns: frozenset[int] = frozenset()
    """Columns of results quoted from papers."""
    prose_columns: frozenset[int] = frozenset()
    """Columns of prose, aligned to the left."""


def format_value(value: Value) -> str:
    """Format a value with its error, to the digits that the error allows."""
    if value.error is None or not 0 < value.error < math.inf:
        return f"{value.value:.4g}"
    exponent = int(f"{value.error:e}".split("e")[1])
    digits = max(0, min(6, 1 - exponent))
    return f"{value.value:.{digits}f} ± {value.error:.{digits}f}"


def tabulate_likelihood(report: ComparisonReport) -> Table:
    """Tabulate bits per unit, with a separate column for each kind."""
    kinds = _list_kinds(report)
    papers = [kind for kind in KINDS if any(p.kind == kind and _is_included(report, p) for p in report.published)]
    several = any(len(entry.seeds) > 1 for entry in report.entries)
    paths = any(entry.path for entry in report.entries)
    blocks = any(entry.block for entry in report.entries)
    heads = [("system", "")] + ([("path", "")] if paths else []) + ([("block", "")] if blocks else [])
    heads += [(kind, f"{SIGN[kind]} bits per {report.unit}") for kind in kinds]
    heads += [("above the best", "paired, ± s.e.")] + ([("seeds", "± s.d.")] if several else [])
    heads += [("recon", ""), ("diffusion", ""), ("prior", "")]
    quoted = frozenset(range(len(heads), len(heads) + len(papers)))
    heads += [(f"paper, {kind}", "other protocol") for kind in papers]
    rows = []
    for number, entry in enumerate(report.entries):
        best = number == 0 or (entry.kind == "surrogate") != (report.entries[number - 1].kind == "surrogate")
        cells = [entry.name, *([entry.path] if paths else [])]
        cells += [str(entry.block or ABSENT)] if blocks else []
        cells += _kind_cells(entry.kind, kinds, entry)
        cells.append("best" if best else f"{entry.above:+.4f} ± {entry.above_error:.4f}")
        if several:
            cells.append(ABSENT if entry.spread is None else f"{entry.spread:.4f} ({len(entry.seeds)})")
        cells += [f"{value:.4f}" for value in (entry.recon, entry.diffusion, entry.prior)]
        cells += [_quote_cell(report, entry, kind) for kind in papers]
        first_surrogate = best and number > 0
        rows.append(Row(cells, number, "best parting" if first_surrogate else "best" if best else ""))
    return Table(heads, rows, quoted, frozenset({1} if paths else {}))


def _list_kinds(report: ComparisonReport) -> list[Kind]:
    """Return the kinds that occur."""
    return [kind for kind in KINDS if any(entry.kind == kind for entry in report.entries)]


def _kind_cells(own: Kind, kinds: Sequence[Kind], result: Entry | SeedResult) -> list[str]:
    """Return one cell for each kind; only the one of its own kind holds the result."""
    return [f"{SIGN[own]} {result.bits:.4f} ± {result.error:.4f}" if kind == own else "" for kind in kinds]


def _is_included(report: ComparisonReport, result: PublishedResult) -> bool:
    return any(entry.system == result.system for entry in report.entries)


def _quote_cell(report: ComparisonReport, entry: Entry, kind: Kind) -> str:
    found = [p for p in report.published if p.system == entry.system and p.kind == kind]
    return f"{SIGN[kind]} {_format_published(found[0].value)}" if found else ""


def _format_published(value: float) -> str:
    """Format a value with two decimals as papers do, or with more where there are more."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:g}"


def tabulate_published(report: ComparisonReport) -> Table:
    """Tabulate all published results, each kind in its own column, with protocol and source."""
    kinds = [kind for kind in KINDS if any(p.kind == kind for p in report.published)]
    heads = [("system", "")] + [(kind, f"{SIGN[kind]} bits per {report.unit}") for kind in kinds]
    heads += [("protocol", ""), ("source", "")]
    rows = [
        Row(
            [
                p.system,
                *[f"{SIGN[kind]} {_format_published(p.value)}" if p.kind == kind else "" for kind in kinds],
                p.protocol,
                p.source,
            ]
        )
        for p in report.published
    ]
    last = len(heads)
    return Table(heads, rows, frozenset(range(1, len(kinds) + 1)), frozenset({last - 2, last - 1}))


def tabulate_samples(report: ComparisonReport, *, every: bool = True) -> Table:
    """Tabulate sample metrics, real text first.

    The table has every combination of steps and temperature, or with `every=False` the most steps at temperature 1.
    """
    heads = [("system", ""), ("steps", ""), ("temp.", ""), ("NFE", "per text"), ("CPU s", "per text")]
    heads += [(m.title, f"{m.unit}, {m.better}") for m in report.metrics]
    rows = []
    if report.real:
        values = [format_value(report.real[m.name]) if m.name in report.real else "" for m in report.metrics]
        rows.append(Row(["real text", "", "", "", "", *values], css_class="real"))
    for number, entry in enumerate(report.entries):
        plain = [s for s in entry.samplings if s.temperature == 1]
        for sampling in entry.samplings if every else plain[-1:]:
            rows.append(Row([entry.name, *_cost_cells(sampling), *_metric_cells(report, sampling)], number))
    return Table(heads, rows)


def _cost_cells(s: SamplingResult) -> list[str]:
    return [str(s.steps), f"{s.temperature:g}", f"{s.nfe:g}", f"{s.cpu_seconds / s.samples:.3f}"]


def _metric_cells(report: ComparisonReport, s: SamplingResult) -> list[str]:
    return [format_value(s.metrics[m.name]) if m.name in s.metrics else "" for m in report.metrics]


def tabulate_costs(report: ComparisonReport) -> Table:
    """Tabulate the costs of training and evaluation."""
    heads = [
        ("system", ""), ("parameters", ""), ("steps", ""), ("tokens", ""), ("TFLOP", "matrix products"),
        ("CPU s", "training"), ("s", "training"), ("tokens/CPU s", ""), ("peak MB", "resident"), ("s", "evaluation"),
    ]  # fmt: skip
    rows = []
    for number, entry in enumerate(report.entries):
        c = entry.costs
        speed = f"{c.tokens / c.cpu_seconds:,.0f}" if c.cpu_seconds else ABSENT
        seconds = ABSENT if c.seconds is None else f"{c.seconds:,.1f}"
        memory = ABSENT if c.peak_bytes is None else f"{c.peak_bytes / 1e6:,.0f}"
        training = [
            f"{c.steps:,}", f"{c.tokens:,}", f"{c.step_flops * c.steps / 1e12:.3g}",
            f"{c.cpu_seconds:,.1f}", seconds, speed, memory,
        ]  # fmt: skip
        known = training if c.steps else [ABSENT] * len(training)  # bundled checkpoints do not record it
        cells = [entry.name, f"{c.parameters:,}", *known, f"{c.evaluation_seconds:,.1f}"]
        rows.append(Row(cells, number))
    return Table(heads, rows)


def tabulate_seeds(report: ComparisonReport) -> Table:
    """Tabulate every training: its seed, folder, steps, likelihood and weights."""
    kinds = _list_kinds(report)
    heads = [("system", ""), ("seed", ""), ("folder", ""), ("step", "")]
    heads += [(kind, f"{SIGN[kind]} bits per {report.unit}") for kind in kinds] + [("weights", "sha256")]
    rows = [
        Row([e.name, str(s.seed), s.folder, f"{s.step:,}", *_kind_cells(e.kind, kinds, s), s.weights_sha256[:16]], n)
        for n, e in enumerate(report.entries)
        for s in e.seeds
    ]
    return Table(heads, rows, prose_columns=frozenset({2}))
