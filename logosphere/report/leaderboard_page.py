"""The page of the leaderboard: one self-contained HTML file, which makes no request and opens without a network."""

import json
from collections.abc import Sequence
from html import escape

from logosphere.report.comparison import PublishedResult
from logosphere.report.leaderboard import Board, BoardRow, Extrapolation, describe_budget, extrapolate_rows
from logosphere.report.page import read_asset, render_page
from logosphere.report.plots import Dot, Series, plot
from logosphere.report.row_records import RowRecord
from logosphere.report.svg import STYLE
from logosphere.report.tables import ABSENT
from logosphere.types import SIGN, Kind

KINDS: tuple[Kind, ...] = ("exact", "bound", "surrogate")
LARGEST_PLOT = 16
"""Curves on one plot, at most: the best rows of a board."""
MARK = "‡"
"""Marks a row of another commit than most rows of its board."""
UNKNOWN = "not recorded"


def render_leaderboard(
    boards: Sequence[Board], published: Sequence[PublishedResult], problems: Sequence[str] = ()
) -> str:
    """Render the page; `problems` are sentences about records that could not be read."""
    style = json.dumps(STYLE).replace("<", "\\u003c")
    body = [
        _render_header(boards),
        _render_filters(boards),
        *(_render_board(number, board, boards, published) for number, board in enumerate(boards)),
        _render_published(published),
        _render_notes(problems),
        '<aside id="origin" role="status" hidden></aside>',
        f'<script type="application/json" id="figure-style">{style}</script>',
        f"<script>{read_asset('leaderboard.js')}</script><script>{read_asset('figures.js')}</script>",
    ]
    return render_page("Leaderboard", "".join(body), read_asset("leaderboard.css"))


def _render_header(boards: Sequence[Board]) -> str:
    trainings = sum(len(row.records) for board in boards for row in board.rows)
    return (
        '<header><button class="theme" id="theme" type="button">Light / dark</button><h1>Leaderboard</h1>'
        f'<p class="lead">{len(boards)} boards, {trainings:,} measurements.</p>'
        "<p>A board holds rows with the same text, split, budget and number of sequences. = is an exact likelihood, "
        "≤ a proven upper bound, ~ a surrogate that may be above or below the likelihood. Exact values and bounds are "
        "ranked together, surrogates apart. The interval of a rank is what errors over sequences and, where there are "
        "several seeds, between trainings allow at 95%.</p></header>"
    )


def _render_filters(boards: Sequence[Board]) -> str:
    families = sorted({row.family for board in boards for row in board.rows})
    kinds = [kind for kind in KINDS if any(row.kind == kind for board in boards for row in board.rows)]
    options = [
        (f"board-{number}", f"{board.title}, {board.sequences:,} sequences") for number, board in enumerate(boards)
    ]
    return (
        '<div class="filters">'
        + _render_select("board", "Board", options)
        + _render_select("family", "Family", [("", "all families"), *((name, name) for name in families)])
        + _render_select("kind", "Kind", [("", "all kinds"), *((name, f"{SIGN[name]} {name}") for name in kinds)])
        + '<output id="shown"></output></div>'
    )


def _render_select(name: str, title: str, options: Sequence[tuple[str, str]]) -> str:
    listed = "".join(f'<option value="{escape(value)}">{escape(text)}</option>' for value, text in options)
    return f'<label>{title}<select id="{name}" autocomplete="off">{listed}</select></label>'


def _render_board(number: int, board: Board, boards: Sequence[Board], published: Sequence[PublishedResult]) -> str:
    quoted = [one for one in published if one.dataset == board.dataset and one.unit == board.unit]
    shown = [kind for kind in KINDS if any(row.kind == kind for row in board.rows)]
    papers = [kind for kind in KINDS if any(one.kind == kind and _is_on(board, one) for one in quoted)]
    heads = ["system", "rank", "family", *(f"{kind}|{SIGN[kind]} bits per {board.unit}" for kind in shown)]
    heads += ["above the best|± s.e.", *_spent_heads(board)]
    heads += [f"paper, {kind}|{SIGN[kind]} other protocol" for kind in papers] + ["commit"]
    lit = set(range(len(heads) - 1 - len(papers), len(heads) - 1))
    cells = "".join(_render_head(head, i in lit) for i, head in enumerate(heads))
    rows = "".join(_render_row(board, row, shown, papers, quoted) for row in board.rows)
    table = _wrap_table(board.title, cells, rows)
    return (
        f'<section class="board" id="board-{number}"><h2>{escape(board.title)}</h2>'
        f"<p class='soft'>{escape(_describe(board))}</p>{table}{_render_curves(board)}"
        f"{_render_extrapolations(board, boards)}{_render_samples(board)}</section>"
    )


def _wrap_table(label: str, heads: str, rows: str) -> str:
    """A table that scrolls where the window is narrow."""
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
    return f'<div class="wide">{scroll}</div>'


def _describe(board: Board) -> str:
    paired = "Differences are paired over sequences." if board.is_paired else (
        "Bits of single sequences are not recorded for all rows: their differences are not paired, which overstates "
        "their errors."
    )  # fmt: skip
    seeds = "The spread between trainings is pooled over the rows with several seeds." if board.has_seeds else (
        "One seed: differences between trainings are in no error and no interval of a rank."
    )  # fmt: skip
    known = f"{MARK} another commit than most rows ({board.common_commit or UNKNOWN})."
    commits = known if board.several_commits else f"Commit of all rows: {board.common_commit or UNKNOWN}."
    notes = {record.note for row in board.rows for record in row.records}
    notes = notes if len(notes) == 1 and "" not in notes else set()  # the note of a single row is in its origin
    return " ".join(
        [f"{board.sequences:,} sequences.", paired, seeds, commits, *(_as_sentence(note) for note in notes)]
    )


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _render_head(head: str, lit: bool) -> str:
    name, bar, remark = head.partition("|")
    small = f"<small>{escape(remark)}</small>" if bar else ""
    names = ["lit"] * lit + ["text"] * (name in ("system", "family"))
    css_class = f' class="{" ".join(names)}"' if names else ""
    return f'<th{css_class} scope="col"><button type="button">{escape(name)}</button>{small}</th>'


def _is_on(board: Board, result: PublishedResult) -> bool:
    return any(row.first.system == result.system for row in board.rows)


def _render_row(
    board: Board, row: BoardRow, shown: Sequence[Kind], papers: Sequence[Kind], quoted: Sequence[PublishedResult]
) -> str:
    ranked, first = row.ranked, row.first
    above = f"{ranked.above:+.3f} <small>± {ranked.above_error:.3f}</small>" if ranked.above else "best"
    cells = [
        f'<td class="text"><button type="button">{escape(row.name)}</button></td>',
        _cell(describe_rank(row), ranked.lowest + 1000 * (row.kind == "surrogate")),
        f'<td class="text">{escape(row.family)}</td>',
        *(_value_cell(row, kind) for kind in shown),
        _cell(above, ranked.above),
        *_spent_cells(board, row),
    ]
    for kind in papers:
        found = next((one for one in quoted if one.system == first.system and one.kind == kind), None)
        title = f' title="{escape(f"{found.protocol}; {found.source}")}"' if found else ""
        value = f' data-value="{found.value}"' if found else ""
        cells.append(f'<td class="lit"{title}{value}>{f"{SIGN[kind]} {found.value:.2f}" if found else ""}</td>')
    commits = [commit[:12] for commit in row.commits if commit]
    mark = (
        f' <span class="mark">{MARK}</span>' if row.commits != [board.common_commit] and board.several_commits else ""
    )
    cells.append(f"<td>{escape(', '.join(commits)) or UNKNOWN}{mark}</td>")
    return f'<tr data-family="{escape(row.family)}" data-kind="{row.kind}">{"".join(cells)}</tr>'.replace(
        "</td></tr>", f"<template>{_render_origin(row)}</template></td></tr>"
    )


def describe_rank(row: BoardRow) -> str:
    """The interval of a rank, with ~ in the ranking of surrogates."""
    low, high = row.ranked.lowest, row.ranked.highest
    return ("~ " if row.kind == "surrogate" else "") + (str(low) if low == high else f"{low}–{high}")


def _spent_heads(board: Board) -> list[str]:
    """The columns of seeds and costs that some row has."""
    records = [row.first for row in board.rows]
    known = {
        "seeds|each training": board.has_seeds,
        "steps": any(record.steps is not None for record in records),
        "tokens": any(record.tokens is not None for record in records),
        "CPU min": any(record.cpu_seconds is not None for record in records),
    }
    return [head for head, shown in known.items() if shown]


def _spent_cells(board: Board, row: BoardRow) -> list[str]:
    first = row.first
    cells = {
        "seeds|each training": _seeds_cell(row),
        "steps": _cell(*_count(first.steps)),
        "tokens": _cell(*_count(first.tokens)),
        "CPU min": _cell(*_minutes(first.cpu_seconds)),
    }
    return [cells[head] for head in _spent_heads(board)]


def _cell(text: str, value: float | int | None) -> str:
    return f"<td{'' if value is None else f' data-value={chr(34)}{value}{chr(34)}'}>{text}</td>"


def _count(value: int | None) -> tuple[str, int | None]:
    return ("", None) if value is None else (f"{value:,}", value)


def _minutes(seconds: float | None) -> tuple[str, float | None]:
    return ("", None) if seconds is None else (f"{seconds / 60:.2f}", seconds)


def _value_cell(row: BoardRow, kind: Kind) -> str:
    if row.kind != kind:
        return "<td></td>"
    measured = row.ranked.row
    text = f"{SIGN[kind]} {measured.mean:.3f} <small>± {measured.error:.3f}</small>"
    return f'<td class="kind-{kind}" data-value="{measured.mean}">{text}</td>'


def _seeds_cell(row: BoardRow) -> str:
    measured = row.ranked.row
    if measured.spread is None:
        return f'<td data-value="0">{ABSENT}</td>'
    each = ", ".join(f"{bits:.3f}" for bits in measured.bits)
    return f'<td data-value="{measured.spread}">{each} <small>± {measured.spread:.3f}</small></td>'


def _render_origin(row: BoardRow) -> str:
    first = row.first
    steps = [f"{record.steps:,}" for record in row.records if record.steps is not None]
    rate = first.learning_rate
    facts = {
        "number": f"{first.test.kind}{f', {first.test.path} path' if first.test.path else ''}"
        f"{f', block {first.test.block}' if first.test.block else ''}, {first.test.data}",
        "command": first.command or UNKNOWN,
        "commit": ", ".join(commit or UNKNOWN for commit in row.commits),
        "seeds": ", ".join(UNKNOWN if record.seed is None else str(record.seed) for record in row.records),
        "budget": describe_budget(first.budget) + (f"; {', '.join(steps)} steps" if steps else ""),
        "learning rate": _describe_rate(rate) if rate else "",
        "measured": first.date or UNKNOWN,
        "repeat": f'logosphere compare --reproduce leaderboard "{first.name}"' if _can_repeat(first) else "",
        "note": first.note,
    }
    listed = "".join(f"<dt>{name}</dt><dd><code>{escape(text)}</code></dd>" for name, text in facts.items() if text)
    return f"<h3>{escape(row.name)}</h3><dl>{listed}</dl>"


def _describe_rate(rate: dict[str, object]) -> str:
    trials = rate.get("trials")
    tried = ", ".join(f"×{factor}: {bits:.3f}" for factor, bits in trials.items()) if isinstance(trials, dict) else ""
    chosen = f", chosen for {rate.get('chosen_for')} ({tried})" if tried else ""
    return f"{rate.get('lr')}{chosen}"


def _can_repeat(record: RowRecord) -> bool:
    return record.steps is not None and (record.recipe is not None or bool(record.arguments))


def _mark_kind(row: BoardRow) -> str:
    """The name of a row, with ~ before that of a surrogate."""
    return f"~ {row.name}" if row.kind == "surrogate" else row.name


def _render_curves(board: Board) -> str:
    drawn = [(n, row) for n, row in enumerate(board.rows) if row.first.curve][:LARGEST_PLOT]
    if not drawn:
        return "<p class='soft'>The records of this board have no curves.</p>"

    def series(cost: str) -> list[Series]:
        return [
            Series(n, _mark_kind(row), [
                Dot(float(getattr(point, cost)), point.bits, note=f"{row.name}, step {point.step:,}: {point.bits:.3f}")
                for point in row.first.curve
            ])
            for n, row in drawn
        ]  # fmt: skip

    plots = ""
    for cost, axis, title in (("cpu_seconds", "CPU seconds", "Against CPU time"), ("tokens", "tokens", "Against data")):
        svg = plot(series(cost), title=f"{board.part}, {axis}", x=axis, y=f"bits per {board.unit}", log_x=True)
        save = "".join(f'<button type="button" data-save="{one}">{one.upper()}</button>' for one in ("svg", "png"))
        caption = f"<figcaption>{title} <span>validation bound of the first seed</span></figcaption>"
        plots += f'<figure><div class="save">{save}</div>{caption}<div class="drawing">{svg}</div></figure>'
    return f"<h3>Curves</h3><div class='plots'>{plots}</div>"


def _render_extrapolations(board: Board, boards: Sequence[Board]) -> str:
    found = extrapolate_rows(board, boards)
    if not found:
        return ""
    rows = "".join(
        f'<tr><td class="text">{escape(one.row)}</td><td>{one.prediction.cost / 60:g}</td>'
        f"<td>{one.prediction.value:.3f} <small>{one.prediction.low:.3f} to {one.prediction.high:.3f}</small></td>"
        f"<td>{_render_check(one)}</td></tr>"
        for one in found
    )
    heads = "".join(f"<th>{head}</th>" for head in ("system", "CPU min", "extrapolated", "measured"))
    return (
        "<h3>Extrapolation</h3><p class='soft'>Not measured: floor + scale · C<sup>−exponent</sup>, fitted to the "
        "curve of the validation bound and continued, with the interval of a measurement if the same law goes on. "
        "Learning rates that decay towards the end of the training bend the curve. The last column is what the "
        "first seed of a longer training reached, where there is one.</p>"
        f"{_wrap_table('extrapolation', heads, rows)}"
    )


def _render_check(one: Extrapolation) -> str:
    """What a longer training reached, and whether that is in the interval."""
    if one.measured is None:
        return ""
    inside = one.prediction.low <= one.measured <= one.prediction.high
    return f"{one.measured:.3f} <small>{'inside' if inside else 'outside'}</small>"


def _render_samples(board: Board) -> str:
    drawn = [(row, one) for row in board.rows for one in row.first.samplings]
    if not drawn:
        return ""
    metrics = list(dict.fromkeys(name for _, one in drawn for name in one.metrics))
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("system", "steps", "NFE", "CPU s per text", *metrics))
    rows = ""
    for row, one in drawn:
        values = [one.metrics.get(name) for name in metrics]
        cells = [str(one.steps), f"{one.nfe:g}", f"{one.cpu_seconds / one.samples:.3f}"]
        cells += ["" if v is None else f"{v.value:.4g}" + (f" ± {v.error:.2g}" if v.error else "") for v in values]
        rows += f'<tr><td class="text">{escape(row.name)}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    return f"<h3>Samples</h3>{_wrap_table('samples', heads, rows)}"


def _render_published(published: Sequence[PublishedResult]) -> str:
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in published)]
    heads = ["system", "text", "unit", *(f"{SIGN[kind]} {kind}" for kind in kinds), "protocol", "source"]
    rows = ""
    for one in published:
        values = [f"<td>{f'{SIGN[kind]} {one.value:g}' if one.kind == kind else ''}</td>" for kind in kinds]
        named = "".join(f"<td>{escape(text)}</td>" for text in (one.system, one.dataset, one.unit))
        prose = "".join(f'<td class="text">{escape(text)}</td>' for text in (one.protocol, one.source))
        rows += f"<tr>{named}{''.join(values)}{prose}</tr>"
    prose_heads = ("protocol", "source")
    cells = "".join(f"<th{' class=text' if head in prose_heads else ''}>{escape(head)}</th>" for head in heads)
    return (
        "<h2>Published figures</h2><p class='soft'>They come from other networks, budgets and protocols and are in no "
        "ranking. A surrogate has its reason in the column of the protocol.</p>"
        f"{_wrap_table('published figures', cells, rows)}"
    )


def _render_notes(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f"<h2>Records that are left out</h2><ul>{listed}</ul>"


def render_board_markdown(board: Board) -> str:
    """A board as a Markdown table."""
    kinds = [kind for kind in KINDS if any(row.kind == kind for row in board.rows)]
    heads = ["rank", "system", *(f"{SIGN[kind]} {kind}" for kind in kinds), "above the best", "seeds", "commit"]
    lines = [f"| {' | '.join(heads)} |", "|---:|---|" + "---|" * (len(heads) - 2)]
    for row in board.rows:
        ranked = row.ranked
        value = f"{SIGN[row.kind]} {ranked.row.mean:.3f} ± {ranked.row.error:.3f}"
        above = f"{ranked.above:+.3f} ± {ranked.above_error:.3f}" if ranked.above else "best"
        seeds = ", ".join("?" if record.seed is None else str(record.seed) for record in row.records)
        spread = "" if ranked.row.spread is None else f" (± {ranked.row.spread:.3f})"
        mark = f" {MARK}" if board.several_commits and row.commits != [board.common_commit] else ""
        commit = ", ".join(commit[:7] for commit in row.commits if commit) or UNKNOWN
        values = [value if kind == row.kind else "" for kind in kinds]
        lines.append(f"| {' | '.join([describe_rank(row), row.name, *values, above, seeds + spread, commit + mark])} |")
    return "\n".join(lines) + "\n"
