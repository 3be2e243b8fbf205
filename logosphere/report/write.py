"""Comparison reports on disk: an HTML page, the same as Markdown, and all data as JSON, side by side."""

from dataclasses import asdict
from pathlib import Path

from logosphere.io import json_safe, write_atomic, write_json
from logosphere.report import tables
from logosphere.report.comparison import ComparisonReport
from logosphere.report.html import render_html
from logosphere.report.tables import Table


def write_comparison_report(report: ComparisonReport, page: Path) -> list[Path]:
    """Write out.html, out.md and out.json; return the paths written."""
    written = [page, page.with_suffix(".md"), page.with_suffix(".json")]
    write_atomic(written[0], render_html(report).encode())
    write_atomic(written[1], render_markdown(report).encode())
    write_json(written[2], json_safe(asdict(report)))
    return written


def render_markdown(report: ComparisonReport) -> str:
    """Render the tables, one text of each system, and the provenance as Markdown."""
    parts = [
        f"# {report.title}",
        f"{report.data}: {report.sequences:,} held-out sequences of {report.length}, {report.draws} draws each; "
        f"budget {report.budget or 'not the same for all'}; {report.created}.",
        "Kinds: = exact, ≤ a proven upper bound, ~ a surrogate that may lie on either side. "
        "Differences are paired over sequences.",
        "## Likelihood", _render_table(tables.tabulate_likelihood(report)),
    ]  # fmt: skip
    if report.literature:
        parts += ["## Published figures", _render_table(tables.tabulate_published(report))]
    if any(entry.samplings for entry in report.entries):
        parts += ["## Samples", _render_table(tables.tabulate_samples(report))]
        parts += ["\n".join(f"- {m.title}: {m.definition}." for m in report.measures)]
        parts += [f"**{entry.name}**\n\n{_indent(entry.texts[0])}" for entry in report.entries if entry.texts]
    parts += ["## Costs", _render_table(tables.tabulate_costs(report))]
    parts += ["## Trainings", _render_table(tables.tabulate_seeds(report))]
    provenance = f"Text sha256 {report.corpus_sha256}; tokenizer {report.tokenizer}."
    parts += [f"Command: `{' '.join(report.command)}`. {provenance}"]
    return "\n\n".join(parts) + "\n"


def _render_table(table: Table) -> str:
    heads = [f"{head} ({remark})" if remark else head for head, remark in table.heads]
    left = {0, *table.prose_columns}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    rows = [[_escape_cell(cell) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, rule, *rows])


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
