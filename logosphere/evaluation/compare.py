"""Comparison: reports over the same sequences, paired, and nothing that cannot be compared."""

from dataclasses import dataclass

import torch

from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.types import SIGN


@dataclass(frozen=True)
class Row:
    """A report, and by how much it lies above the best one."""

    report: Report
    difference: float
    """Bits per unit above the first row, over the same sequences."""
    error: float
    """Standard error of the difference; pairing takes out what makes a sequence hard for every model."""

    @property
    def z(self) -> float:
        return self.difference / self.error if self.error > 0 else 0.0


@dataclass(frozen=True)
class Comparison:
    """Rows from best to worst."""

    rows: list[Row]

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
        _same("unit", first, other, first.unit, other.unit, "evaluate both with the same tokenizer")
        _same(
            "tokenizer", first, other, first.tokenizer[:12], other.tokenizer[:12], "train both with the same tokenizer"
        )
        _same("length", first, other, first.length, other.length, "evaluate both at the same length")
        _same("text", first, other, f"{first.data} {first.data_sha256[:12]}", f"{other.data} {other.data_sha256[:12]}",
              "evaluate both on the same split and the same number of sequences")  # fmt: skip
        if (first.kind == "surrogate") != (other.kind == "surrogate"):
            raise UserError(
                f"{first.name} reports a number of kind '{first.kind}' and {other.name} one of kind '{other.kind}': "
                "a surrogate may lie below the truth and must not be ranked with bounds."
            )
    ranked = sorted(reports, key=lambda report: report.bits)
    best = ranked[0]
    return Comparison([_row(report, best) for report in ranked])


def _row(report: Report, best: Report) -> Row:
    nats, other = torch.tensor(report.nats).double(), torch.tensor(best.nats).double()
    if report is best or float(nats.sum()) == 0:
        return Row(report, 0.0, 0.0)
    return Row(report, *report.per_unit(nats - other))


def _same(what: str, first: Report, other: Report, a: object, b: object, remedy: str) -> None:
    if a != b:
        raise UserError(f"{first.name} and {other.name} differ in {what} ({a} and {b}); {remedy} to compare them.")
