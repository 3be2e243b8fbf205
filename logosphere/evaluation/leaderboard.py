"""Who stands where: reports of several seeds as one, ranked with paired differences, kinds apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from logosphere.errors import UserError
from logosphere.evaluation.paired_comparison import compare
from logosphere.evaluation.report import Report
from logosphere.types import SIGN


@dataclass(frozen=True)
class LeaderboardRow:
    """A system's place: its mean over seeds, and how far it lies above the best it may be ranked with."""

    name: str
    report: Report
    """The mean over seeds."""
    seeds: tuple[Report, ...]
    spread: float | None
    above: float
    above_error: float


def rank_reports(groups: Mapping[str, Sequence[Report]]) -> list[LeaderboardRow]:
    """From best to worst: exact values and bounds, then surrogates, which are never ranked with them."""
    if not groups:
        raise UserError("There is nothing to compare.")
    means = {name: mean(name, reports) for name, reports in groups.items()}
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


def mean(name: str, reports: Sequence[Report]) -> Report:
    """The mean of reports of one system over the same sequences; its error is that over sequences."""
    for other in reports[1:]:
        compare([reports[0], replace(other, name=f"{other.name} seed")])  # refuses what does not belong together
    nats = torch.tensor([report.nats for report in reports]).double().mean(0)
    first, n = reports[0], len(reports)
    bits, error = first.per_unit(nats) if any(first.nats) else (first.bits, first.error)
    return replace(
        first, name=name, bits=bits, error=error, nats=nats.tolist(),
        recon=sum(r.recon for r in reports) / n, diffusion=sum(r.diffusion for r in reports) / n,
        prior=sum(r.prior for r in reports) / n, seconds=sum(r.seconds for r in reports),
    )  # fmt: skip


def _between_seeds(reports: Sequence[Report], best: Sequence[Report]) -> float:
    """The variance of the mean difference that comes from the luck of training; 0 when it is not known."""
    differences = [a.bits - b.bits for a, b in zip(reports, best, strict=False)]
    return statistics.variance(differences) / len(differences) if len(differences) > 1 else 0.0


def table(rows: Sequence[LeaderboardRow]) -> str:
    """The rank_reports as text: a column for every kind that occurs."""
    kinds = [kind for kind in SIGN if any(row.report.kind == kind for row in rows)]
    width = max(len(row.name) for row in rows)
    several = any(len(row.seeds) > 1 for row in rows)
    head = [f"{'bits per ' + rows[0].report.unit:{width}}", *[f"{kind:<19}" for kind in kinds], "above the best"]
    lines = ["  ".join(head)]
    for number, row in enumerate(rows):
        report = row.report
        value = f"{SIGN[report.kind]} {report.bits:.4f} ± {report.error:.4f}"
        cells = [f"{value if kind == report.kind else '':<19}" for kind in kinds]
        best = number == 0 or (report.kind == "surrogate") != (rows[number - 1].report.kind == "surrogate")
        above = "" if best else f"{row.above:+.4f} ± {row.above_error:.4f}"
        seeds = f"  seeds ± {row.spread:.4f}" if several and row.spread is not None else ""
        lines.append("  ".join([f"{row.name:{max(width, len(head[0]))}}", *cells, above + seeds]).rstrip())
    return "\n".join(lines)
