"""Paired comparison of reports over the same sequences; refuses reports that measure different things."""

from dataclasses import dataclass

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
        raise UserError("There is nothing to compare.")
    first = reports[0]
    for other in reports[1:]:
        _check_same("unit", first, other, first.unit, other.unit, "evaluate both with the same tokenizer")
        _check_same(
            "tokenizer", first, other, first.tokenizer[:12], other.tokenizer[:12], "train both with the same tokenizer"
        )
        _check_same("length", first, other, first.length, other.length, "evaluate both at the same length")
        text, other_text = (f"{report.data} {report.data_sha256[:12]}" for report in (first, other))
        remedy = "evaluate both on the same split and the same number of sequences"
        _check_same("text", first, other, text, other_text, remedy)
        if (first.kind == "surrogate") != (other.kind == "surrogate"):
            raise UserError(
                f"{first.name} reports a number of kind '{first.kind}' and {other.name} one of kind '{other.kind}': "
                "a surrogate may lie below the truth and must not be ranked with bounds."
            )
    ranked = sorted(reports, key=lambda report: report.bits)
    best = ranked[0]
    return Comparison([_compare_to_best(report, best) for report in ranked])


def _compare_to_best(report: Report, best: Report) -> RankedReport:
    nats, other = torch.tensor(report.nats).double(), torch.tensor(best.nats).double()
    if report is best or float(nats.sum()) == 0:
        return RankedReport(report, 0.0, 0.0)
    return RankedReport(report, *report.per_unit(nats - other))


def _check_same(what: str, first: Report, other: Report, a: object, b: object, remedy: str) -> None:
    if a != b:
        raise UserError(f"{first.name} and {other.name} differ in {what} ({a} and {b}); {remedy} to compare them.")
