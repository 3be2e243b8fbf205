"""Ranking of reports by paired differences over the same sequences; several seeds of a system count as one.

Reports that measure different things are refused, and surrogates are ranked apart from likelihoods and bounds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.types import SIGN


@dataclass(frozen=True)
class RankedReport:
    """A report and its difference to the best one."""

    report: Report
    difference: float
    """Bits per unit above the first row, over the same sequences."""
    error: float
    """Standard error of the difference; pairing removes the variance between sequences that all models share."""

    @property
    def z(self) -> float:
        return self.difference / self.error if self.error > 0 else 0.0


@dataclass(frozen=True)
class Comparison:
    """Reports from best to worst."""

    rows: list[RankedReport]

    def __str__(self) -> str:
        unit = self.rows[0].report.unit
        width = max(len(row.report.name) for row in self.rows)
        lines = [f"{'':{width}}  bits per {unit:<14} above the best"]
        for row in self.rows:
            report = row.report
            value = f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f}"
            above = "" if row is self.rows[0] else f"{row.difference:+.4f} ± {row.error:.4f}  ({row.z:.1f} s.e.)"
            lines.append(f"{report.name:{width}}  {value:<23} {above}".rstrip())
        return "\n".join(lines)


def compare(reports: list[Report]) -> Comparison:
    """Rank reports, with paired differences to the best. Refuses reports that do not measure the same thing."""
    if not reports:
        raise UserError("There is nothing to compare: no reports were given.")
    first = reports[0]
    for other in reports[1:]:
        _check_same("unit", first, other, first.unit, other.unit, "evaluate both with the same tokenizer")
        if first.text_sha256 or other.text_sha256:
            text, other_text = (report.text_sha256[:12] or "unknown" for report in (first, other))
            _check_same("text", first, other, text, other_text, "evaluate both on the same text")
            _check_kinds(first, other)
            continue
        _check_same(
            "tokenizer", first, other, first.tokenizer[:12], other.tokenizer[:12], "train both with the same tokenizer"
        )
        _check_same("length", first, other, first.length, other.length, "evaluate both at the same length")
        text, other_text = (f"{report.data} {report.data_sha256[:12]}" for report in (first, other))
        remedy = "evaluate both on the same split and the same number of sequences"
        _check_same("text", first, other, text, other_text, remedy)
        order, other_order = (report.order or "none" for report in (first, other))
        _check_same("order", first, other, order, other_order, "evaluate both in the same order, or both without one")
        _check_kinds(first, other)
    ranked = sorted(reports, key=lambda report: report.bits)
    best = ranked[0]
    return Comparison([_compare_to_best(report, best) for report in ranked])


def _compare_to_best(report: Report, best: Report) -> RankedReport:
    if report is not best and report.text_sha256 and report.data_sha256 != best.data_sha256:
        # Sequences of different tokenizers are no pairs; the text has the same bytes.
        return RankedReport(report, report.bits - best.bits, math.hypot(report.error, best.error))
    nats, other = torch.tensor(report.nats).double(), torch.tensor(best.nats).double()
    if report is best or float(nats.sum()) == 0:
        return RankedReport(report, 0.0, 0.0)
    return RankedReport(report, *report.per_unit(nats - other))


def _check_kinds(first: Report, other: Report) -> None:
    if (first.kind == "surrogate") != (other.kind == "surrogate"):
        raise UserError(
            f"{first.name} reports a number of kind '{first.kind}' and {other.name} one of kind '{other.kind}': "
            "a surrogate may be below the likelihood and cannot be ranked with bounds."
        )


def _check_same(what: str, first: Report, other: Report, a: object, b: object, remedy: str) -> None:
    if a != b:
        raise UserError(f"{first.name} and {other.name} differ in {what} ({a} and {b}); {remedy} to compare them.")


@dataclass(frozen=True)
class LeaderboardRow:
    """A system in the ranking: its mean over seeds, and its difference to the best system of its ranking."""

    name: str
    report: Report
    """The mean over seeds."""
    seeds: tuple[Report, ...]
    spread: float | None
    above: float
    above_error: float


def rank_reports(groups: Mapping[str, Sequence[Report]]) -> list[LeaderboardRow]:
    """Rank reports from best to worst: exact values and bounds first, then surrogates, in a ranking of their own."""
    if not groups:
        raise UserError("There is nothing to compare: no reports were given.")
    means = {name: average_seeds(name, reports) for name, reports in groups.items()}
    likelihoods = [report for report in means.values() if report.kind != "surrogate"]
    surrogates = [report for report in means.values() if report.kind == "surrogate"]
    ranked = []
    for part in (likelihoods, surrogates):
        if not part:
            continue
        rows = compare(part).rows
        best = groups[rows[0].report.name]
        for row in rows:
            seeds = groups[row.report.name]
            error = row.error if row is rows[0] else (row.error**2 + _between_seeds(seeds, best)) ** 0.5
            bits = [report.bits for report in seeds]
            spread = statistics.stdev(bits) if len(bits) > 1 else None
            ranked.append(LeaderboardRow(row.report.name, row.report, tuple(seeds), spread, row.difference, error))
    return ranked


def average_seeds(name: str, reports: Sequence[Report]) -> Report:
    """Return the mean of the reports of one system over the same sequences; its error is that over sequences."""
    for other in reports[1:]:
        compare([reports[0], replace(other, name=f"{other.name} seed")])  # raises UserError if they are not comparable
    nats = torch.tensor([report.nats for report in reports]).double().mean(0)
    first, n = reports[0], len(reports)
    bits, error = first.per_unit(nats) if any(first.nats) else (first.bits, first.error)
    return replace(
        first, name=name, bits=bits, error=error, nats=nats.tolist(),
        recon=sum(r.recon for r in reports) / n, diffusion=sum(r.diffusion for r in reports) / n,
        prior=sum(r.prior for r in reports) / n, seconds=sum(r.seconds for r in reports),
    )  # fmt: skip


def _between_seeds(reports: Sequence[Report], best: Sequence[Report]) -> float:
    """Return the variance of the mean difference over training seeds; 0 with one seed."""
    differences = [a.bits - b.bits for a, b in zip(reports, best, strict=False)]
    return statistics.variance(differences) / len(differences) if len(differences) > 1 else 0.0


def format_leaderboard(rows: Sequence[LeaderboardRow]) -> str:
    """Format the ranking as text, with a column for every kind that occurs."""
    kinds = [kind for kind in SIGN if any(row.report.kind == kind for row in rows)]
    width = max(len(row.name) for row in rows)
    several = any(len(row.seeds) > 1 for row in rows)
    paths = any(row.report.path for row in rows)
    blocks = any(row.report.block for row in rows)
    head = [f"{'bits per ' + rows[0].report.unit:{width}}", *([f"{'path':<9}"] if paths else [])]
    head += ["block"] if blocks else []
    beside = next((unit for unit in ("character", "byte") if unit in rows[0].report.units), "")
    beside = beside if rows[0].report.unit == "token" else ""
    head += [*[f"{kind:<19}" for kind in kinds], *([f"{'per ' + beside:<15}"] if beside else []), "above the best"]
    lines = ["  ".join(head)]
    for number, row in enumerate(rows):
        report = row.report
        value = f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f}"
        cells = [f"{report.path:<9}"] if paths else []
        cells += [f"{report.block or '':<5}"] if blocks else []
        cells += [f"{value if kind == report.kind else '':<19}" for kind in kinds]
        if beside:
            bits, error = report.in_units().get(beside, (math.nan, math.nan))
            cells += [f"{bits:.4f} ± {error:.4f}"]
        best = number == 0 or (report.kind == "surrogate") != (rows[number - 1].report.kind == "surrogate")
        above = "" if best else f"{row.above:+.4f} ± {row.above_error:.4f}"
        seeds = f"  seeds ± {row.spread:.4f}" if several and row.spread is not None else ""
        lines.append("  ".join([f"{row.name:{max(width, len(head[0]))}}", *cells, above + seeds]).rstrip())
    return "\n".join(lines)
