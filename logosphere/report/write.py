"""Comparison reports on disk: a self-contained HTML page, the same as Markdown, and all data as JSON, side by side."""

import json
from dataclasses import asdict
from html import escape
from pathlib import Path

from logosphere.io import json_safe, write_atomic, write_json
from logosphere.report import figures, tables
from logosphere.report.comparison import ComparisonReport, MetricInfo
from logosphere.report.markdown import code_block, code_span, escape_text
from logosphere.report.page import Player, read_asset, render_page, render_players
from logosphere.report.svg import STYLE, draw_swatch
from logosphere.report.tables import Table
from logosphere.types import SIGN


def render_html(report: ComparisonReport) -> str:
    """Render the page."""
    style = json.dumps(STYLE).replace("<", "\\u003c")
    body = [
        _render_header(report),
        _render_likelihood(report),
        _render_training(report),
        _render_time(report),
        _render_metrics(report),
        _render_samples(report),
        _render_costs(report),
        _render_provenance(report),
        f'<script type="application/json" id="figure-style">{style}</script>',
        f"<script>{read_asset('figures.js')}</script>",
    ]
    return render_page(report.title, "".join(body))


def _render_header(report: ComparisonReport) -> str:
    first = report.entries[0]
    value = f"{SIGN[first.kind]} {first.bits:.4f} ± {first.error:.4f} bits per {report.unit} ({first.kind_and_path})"
    summary = f"{first.name} ranks first with {value}"
    legend = "".join(f"<li>{draw_swatch(n)}{escape(entry.name)}</li>" for n, entry in enumerate(report.entries))
    return (
        f'<header><button class="theme" id="theme" type="button">Light / dark</button><h1>{escape(report.title)}</h1>'
        f'<p class="lead">{escape(summary)}.</p>'
        f"<p>{escape(report.data)}: {report.sequences:,} held-out sequences of {report.length} tokens, {report.draws} "
        f"draws of time each. {escape(_describe_budget(report))} Made {escape(report.created)}.</p>"
        f"<ul class='legend'>{legend}</ul></header>"
    )


def _describe_budget(report: ComparisonReport) -> str:
    if not report.budget:
        return "The runs were trained with different settings; their differences are not due to the systems alone."
    return (
        "Every system had the same network, the same data in the same order, and the same budget: "
        f"{report.budget}{', except for learning rates' if report.own_rates else ''}."
    )


def _render_table(table: Table) -> str:
    def css_class(i: int) -> str:
        names = [name for name, yes in (("lit", i in table.quoted_columns), ("text", i in table.prose_columns)) if yes]
        return f' class="{" ".join(names)}"' if names else ""

    heads = "".join(
        f"<th{css_class(i)}>{escape(head)}{f'<small>{escape(remark)}</small>' if remark else ''}</th>"
        for i, (head, remark) in enumerate(table.heads)
    )
    rows = []
    for row in table.rows:
        marks = ["" if row.entry is None else draw_swatch(row.entry)] + [""] * (len(row.cells) - 1)
        cells = "".join(
            f"<td{css_class(i)}>{mark}{_render_cell(cell)}</td>"
            for i, (mark, cell) in enumerate(zip(marks, row.cells, strict=True))
        )
        rows.append(f'<tr class="{row.css_class}">{cells}</tr>' if row.css_class else f"<tr>{cells}</tr>")
    drawn = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="wide"><div class="scroll" tabindex="0" role="region" aria-label="table">{drawn}</div></div>'


def _render_cell(text: str) -> str:
    value, plus, error = text.partition(" ± ")
    return f"{escape(value)} <small>± {escape(error)}</small>" if plus else escape(text)


def _render_figure(title: str, remark: str, svg: str) -> str:
    if not svg:
        return ""
    save = "".join(
        f'<button type="button" data-save="{kind}" title="Save this plot as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("svg", "png")
    )
    caption = f"<figcaption>{escape(title)} <span>{escape(remark)}</span></figcaption>"
    return f'<figure><div class="save">{save}</div>{caption}<div class="drawing">{svg}</div></figure>'


def _render_plots(*plots: str) -> str:
    shown = "".join(plots)
    return f'<div class="plots">{shown}</div>' if shown else ""


def _render_likelihood(report: ComparisonReport) -> str:
    remark = (
        "= is the exact likelihood, ≤ a proven upper bound, ~ a surrogate that may be above or below the likelihood. "
        "Each kind has its own column, and surrogates are ranked separately. Differences are paired over sequences. "
        "A path column shows whether a spherical system was measured on its joint or its any-order path."
    )
    parts = [f"<h2>Likelihood</h2><p class='soft'>{remark}</p>", _render_table(tables.tabulate_likelihood(report))]
    likelihood, surrogates = figures.plot_likelihood(report), figures.plot_surrogates(report)
    parts.append(
        _render_plots(
            _render_figure("Bits per " + report.unit, "left is better; filled: exact, hollow: bound", likelihood),
            _render_figure("Surrogates", "not comparable with the others", surrogates),
        )
    )
    if report.published:
        parts.append(
            "<details><summary>Published results</summary><p class='soft'>They come from other networks, budgets and "
            f"protocols.</p>{_render_table(tables.tabulate_published(report))}</details>"
        )
    return "".join(parts)


def _render_training(report: ComparisonReport) -> str:
    plots = _render_plots(
        _render_figure("Against CPU time", "bound on validation text", figures.plot_training(report, "cpu_seconds")),
        _render_figure("Against data", "bound on validation text", figures.plot_training(report, "tokens")),
    )
    return f"<h2>Training</h2>{plots}" if plots else ""


def _render_time(report: ComparisonReport) -> str:
    plot = figures.plot_over_time(report)
    remark = (
        "The bound is an average over the quantiles of the time distribution of each system. The height of a step is "
        "the contribution of a bin of time, and the area under a line is the bound. A flat line means that the time "
        "distribution minimises the variance."
    )
    spent = _render_plots(_render_figure("Bits over time", "each step is the mean of one bin", plot))
    return f"<h2>The bound over time</h2><p class='soft'>{remark}</p>{spent}" if plot else ""


def _render_metrics(report: ComparisonReport) -> str:
    if not any(entry.samplings for entry in report.entries):
        return ""
    parts = [
        "<h2>Samples: quality and cost</h2><p class='soft'>Every table includes real text of the same length "
        "and number. Bits per character under a scorer LM reward repetition, so compare them at equal entropy.</p>"
    ]
    parts += [f"<p class='soft'>{escape(note)}</p>" for note in report.notes]
    for metric in _choose_plotted(report):
        by_nfe = figures.plot_metric_against_cost(report, metric, lambda s: s.nfe, "network evaluations per text")
        by_time = figures.plot_metric_against_cost(
            report, metric, lambda s: s.cpu_seconds / s.samples, "CPU seconds per text"
        )
        by_entropy = figures.plot_metric_against_entropy(report, metric)
        parts.append(
            _render_plots(
                _render_figure(metric.title, f"{metric.unit}; {metric.better}", by_nfe),
                _render_figure(metric.title, "against time", by_time),
                _render_figure(f"{metric.title} and entropy", "points along a line: temperatures", by_entropy),
            )
        )
    parts.append(_render_table(tables.tabulate_samples(report, every=False)))
    every = _render_table(tables.tabulate_samples(report))
    parts.append(f"<details><summary>All sampling settings</summary>{every}</details>")
    terms = "".join(f"<dt>{escape(m.title)}</dt><dd>{escape(m.definition)}</dd>" for m in report.metrics)
    return "".join(parts) + f"<details><summary>Definitions of the metrics</summary><dl>{terms}</dl></details>"


def _choose_plotted(report: ComparisonReport) -> list[MetricInfo]:
    """Return the metrics to plot: those of scorer LMs, or without one MAUVE and the rate of known words."""
    scorers = [m for m in report.metrics if m.name.startswith("judge:")]
    return scorers or [m for m in report.metrics if m.name in ("frontier", "spelling")]


def _render_samples(report: ComparisonReport) -> str:
    animated = [(n, entry) for n, entry in enumerate(report.entries) if entry.animation is not None]
    if not animated:
        return ""
    players = [
        Player(entry.name, entry.animation, entry.texts, draw_swatch(n)) for n, entry in animated if entry.animation
    ]
    real = "".join(f"<pre>{escape(text)}</pre>" for text in report.real_texts[:2])
    return (
        "<h2>Samples side by side</h2><p class='soft'>All systems are shown on one timeline. Dots are positions "
        "without a token, grey letters are predictions, and new tokens are coloured.</p>"
        + render_players(players, f'<div class="reading"><h3>real text</h3>{real}</div>')
    )


def _render_costs(report: ComparisonReport) -> str:
    remark = "FLOPs count matrix products only. Memory is the peak of the whole process during training."
    return f"<h2>Costs</h2><p class='soft'>{remark}</p>{_render_table(tables.tabulate_costs(report))}"


def _render_provenance(report: ComparisonReport) -> str:
    facts = {
        "command": " ".join(report.command),
        "text": f"{report.data}, sha256 {report.corpus_sha256}",
        "evaluated tokens": f"sha256 {report.data_sha256}",
        "tokenizer": report.tokenizer,
        **{key: _format_fact(value) for key, value in report.environment.items() if key != "command"},
    }
    listed = "".join(f"<dt>{escape(key)}</dt><dd><code>{escape(value)}</code></dd>" for key, value in facts.items())
    return f"<h2>Provenance</h2><dl>{listed}</dl>{_render_table(tables.tabulate_seeds(report))}"


def _format_fact(value: object) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)


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
        f"# {escape_text(report.title)}",
        f"{escape_text(report.data)}: {report.sequences:,} held-out sequences of {report.length}, "
        f"{report.draws} draws each; budget {escape_text(report.budget or 'not equal')}; "
        f"{escape_text(report.created)}.",
        "Kinds: = exact, ≤ a proven upper bound, ~ a surrogate that may be above or below the likelihood. "
        "Differences are paired over sequences.",
        "## Likelihood", _render_markdown_table(tables.tabulate_likelihood(report)),
    ]  # fmt: skip
    if report.published:
        parts += ["## Published results", _render_markdown_table(tables.tabulate_published(report))]
    if any(entry.samplings for entry in report.entries):
        parts += ["## Samples", _render_markdown_table(tables.tabulate_samples(report))]
        listed = [f"- {escape_text(m.title)}: {escape_text(m.definition)}." for m in report.metrics]
        parts += ["\n".join(listed), *map(escape_text, report.notes)]
        parts += [
            f"**{escape_text(entry.name)}**\n\n{code_block(entry.texts[0])}" for entry in report.entries if entry.texts
        ]
    parts += ["## Costs", _render_markdown_table(tables.tabulate_costs(report))]
    parts += ["## Trainings", _render_markdown_table(tables.tabulate_seeds(report))]
    provenance = f"Text sha256 {escape_text(report.corpus_sha256)}; tokenizer {escape_text(report.tokenizer)}."
    parts += [f"Command: {code_span(' '.join(report.command))}. {provenance}"]
    return "\n\n".join(parts) + "\n"


def _render_markdown_table(table: Table) -> str:
    heads = [escape_text(f"{head} ({remark})" if remark else head) for head, remark in table.heads]
    left = {0, *table.prose_columns}
    rule = ["---" if i in left else "---:" for i in range(len(heads))]
    rows = [[escape_text(cell) for cell in row.cells] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, rule, *rows])
