"""A board as one HTML page that needs nothing but itself: style, plots and player are inside, nothing is fetched."""

from html import escape

from logosphere.reports import figures, tables
from logosphere.reports.board import Board, Measure
from logosphere.reports.page import page
from logosphere.reports.player import Showing, cinema
from logosphere.reports.svg import swatch
from logosphere.reports.tables import Table
from logosphere.types import SIGN


def html(board: Board) -> str:
    """The page."""
    body = [
        _header(board),
        _likelihood(board),
        _training(board),
        _time(board),
        _quality(board),
        _readings(board),
        _costs(board),
        _provenance(board),
    ]
    return page(board.title, "".join(body))


def _header(board: Board) -> str:
    first = board.entries[0]
    verdict = f"{first.name} leads with {SIGN[first.kind]} {first.bits:.4f} ± {first.error:.4f} bits per {board.unit}"
    legend = "".join(f"<li>{swatch(n)}{escape(entry.name)}</li>" for n, entry in enumerate(board.entries))
    return (
        f'<header><button class="theme" id="theme" type="button">Light / dark</button><h1>{escape(board.title)}</h1>'
        f'<p class="lead">{escape(verdict)}.</p>'
        f"<p>{escape(board.data)}: {board.sequences:,} held-out sequences of {board.length} tokens, {board.draws} "
        f"draws of time each. {escape(_terms(board))} Made {escape(board.created)}.</p>"
        f"<ul class='legend'>{legend}</ul></header>"
    )


def _terms(board: Board) -> str:
    if not board.budget:
        return "The runs were trained with different settings; differences between them are not those of systems alone."
    return (
        "Every system had the same network, the same data in the same order, and the same budget: "
        f"{board.budget}{', learning rates apart' if board.own_rates else ''}."
    )


def _table(table: Table) -> str:
    def mark(i: int) -> str:
        names = [name for name, yes in (("lit", i in table.quoted), ("text", i in table.words)) if yes]
        return f' class="{" ".join(names)}"' if names else ""

    heads = "".join(
        f"<th{mark(i)}>{escape(head)}{f'<small>{escape(remark)}</small>' if remark else ''}</th>"
        for i, (head, remark) in enumerate(table.heads)
    )
    rows = []
    for row in table.rows:
        cells = "".join(
            f"<td{mark(i)}>{_mark(row.entry) if i == 0 else ''}{_cell(cell)}</td>" for i, cell in enumerate(row.cells)
        )
        rows.append(f'<tr class="{row.look}">{cells}</tr>' if row.look else f"<tr>{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _mark(entry: int | None) -> str:
    return "" if entry is None else swatch(entry)


def _cell(text: str) -> str:
    value, plus, error = text.partition(" ± ")
    return f"{escape(value)} <small>± {escape(error)}</small>" if plus else escape(text)


def _figure(title: str, remark: str, svg: str) -> str:
    return (
        f"<figure><figcaption>{escape(title)} <span>{escape(remark)}</span></figcaption>{svg}</figure>" if svg else ""
    )


def _plots(*drawn: str) -> str:
    inside = [figure for figure in drawn if figure]
    look = "plots three" if len(inside) > 2 else "plots"
    return f'<div class="{look}">{"".join(inside)}</div>' if inside else ""


def _likelihood(board: Board) -> str:
    remark = (
        "= is the likelihood itself, ≤ a proven upper bound, ~ a surrogate that may lie on either side of the truth. "
        "Each kind has its own column, and surrogates are ranked apart. Differences are taken sequence by sequence."
    )
    parts = [f"<h2>Likelihood</h2><p class='soft'>{remark}</p>", _table(tables.likelihood(board))]
    parts.append(
        _plots(
            _figure("Bits per " + board.unit, "left is better; filled: exact, hollow: bound", figures.standing(board)),
            _figure("Surrogates", "not comparable with the others", figures.surrogates(board)),
        )
    )
    if board.literature:
        parts.append(
            "<details><summary>Figures from the literature</summary><p class='soft'>Other networks, budgets and "
            f"protocols: for orientation only.</p>{_table(tables.literature(board))}</details>"
        )
    return "".join(parts)


def _training(board: Board) -> str:
    plots = _plots(
        _figure("Against CPU time", "bound on validation text", figures.training(board, "cpu_seconds")),
        _figure("Against data", "bound on validation text", figures.training(board, "tokens")),
    )
    return f"<h2>Training</h2>{plots}" if plots else ""


def _time(board: Board) -> str:
    plot = figures.over_time(board)
    remark = (
        "The bound is an average over the quantiles of the law of time each system draws from. The height of a step is "
        "what a stretch of time costs; the area under a line is the bound. An even line means that times are drawn "
        "where they matter."
    )
    spent = _plots(_figure("Bits over time", "level steps are averages over a slice", plot))
    return f"<h2>Where the bound is spent</h2><p class='soft'>{remark}</p>{spent}" if plot else ""


def _quality(board: Board) -> str:
    if not any(entry.samplings for entry in board.entries):
        return ""
    parts = [
        "<h2>Samples: quality and cost</h2><p class='soft'>Real text of the same length and number stands beside "
        "every figure. Low bits under a judge alone prove nothing: read them against the entropy.</p>"
    ]
    for measure in _plotted(board):
        by_nfe = figures.against_cost(board, measure, lambda s: s.nfe, "network evaluations per text")
        by_time = figures.against_cost(board, measure, lambda s: s.cpu_seconds / s.samples, "CPU seconds per text")
        frontier = figures.frontier(board, measure)
        parts.append(
            _plots(
                _figure(measure.title, f"{measure.unit}; {measure.better}", by_nfe),
                _figure(measure.title, "against time", by_time),
                _figure(f"{measure.title} and entropy", "points along a line: temperatures", frontier),
            )
        )
    parts.append(_table(tables.samples(board, every=False)))
    parts.append(f"<details><summary>Every way of sampling</summary>{_table(tables.samples(board))}</details>")
    terms = "".join(f"<dt>{escape(m.title)}</dt><dd>{escape(m.definition)}</dd>" for m in board.measures)
    return "".join(parts) + f"<details><summary>What the figures mean</summary><dl>{terms}</dl></details>"


def _plotted(board: Board) -> list[Measure]:
    """Judges first; without one, likeness and spelling."""
    judges = [m for m in board.measures if m.name.startswith("judge:")]
    return judges or [m for m in board.measures if m.name in ("frontier", "spelling")]


def _readings(board: Board) -> str:
    filmed = [(n, entry) for n, entry in enumerate(board.entries) if entry.film is not None]
    if not filmed:
        return ""
    showings = [Showing(entry.name, entry.film, entry.texts, swatch(n)) for n, entry in filmed if entry.film]
    real = "".join(f"<pre>{escape(text)}</pre>" for text in board.real_texts[:2])
    return (
        "<h2>Samples side by side</h2><p class='soft'>All systems write along one timeline: dots are not written yet, "
        "grey letters are guesses, what has just changed is coloured.</p>"
        + cinema(showings, f'<div class="reading"><h3>real text</h3>{real}</div>')
    )


def _costs(board: Board) -> str:
    remark = "Operations are those of matrix products. Memory is that of the whole process while it trained."
    return f"<h2>Costs</h2><p class='soft'>{remark}</p>{_table(tables.costs(board))}"


def _provenance(board: Board) -> str:
    facts = {
        "command": " ".join(board.command),
        "text": f"{board.data}, sha256 {board.corpus_sha256}",
        "evaluated tokens": f"sha256 {board.data_sha256}",
        "tokenizer": board.tokenizer,
        **{key: _plain(value) for key, value in board.environment.items() if key != "command"},
    }
    listed = "".join(f"<dt>{escape(key)}</dt><dd><code>{escape(value)}</code></dd>" for key, value in facts.items())
    return f"<h2>Where this comes from</h2><dl>{listed}</dl>{_table(tables.trainings(board))}"


def _plain(value: object) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
