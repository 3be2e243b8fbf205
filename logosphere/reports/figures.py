"""Which plots a board has: training, time, quality against cost, temperature."""

import math
from collections.abc import Callable, Sequence

from logosphere.reports.board import Board, Entry, Measure, Sampling, Value
from logosphere.reports.plots import Dot, Rung, Series, ladder, plot
from logosphere.types import SIGN


def valued(figure: Value) -> str:
    """A figure with its error, to the digits that the error allows."""
    if figure.error is None or not 0 < figure.error < math.inf:
        return f"{figure.value:.4g}"
    digits = max(0, min(6, 1 - _power(figure.error)))
    return f"{figure.value:.{digits}f} ± {figure.error:.{digits}f}"


def _power(value: float) -> int:
    return int(f"{value:e}".split("e")[1])


def standing(board: Board) -> str:
    """All likelihoods of the same rank; surrogates have a figure of their own."""
    return _ladder(board, [e for e in board.entries if e.kind != "surrogate"], "likelihood")


def surrogates(board: Board) -> str:
    return _ladder(board, [e for e in board.entries if e.kind == "surrogate"], "surrogates")


def _ladder(board: Board, entries: Sequence[Entry], title: str) -> str:
    rows = [
        Rung(
            board.entries.index(e), e.name, e.bits, e.error, e.kind != "exact",
            f"{e.name} {SIGN[e.kind]} {e.bits:.4f} ± {e.error:.4f} bits per {board.unit} ({e.kind})",
        )
        for e in entries
    ]  # fmt: skip
    return ladder(rows, title=title, x=f"bits per {board.unit}, ± 1 s.e.") if rows else ""


def training(board: Board, against: str) -> str:
    """The bound on validation text while training; `against` is cpu_seconds or tokens."""
    titles = {"cpu_seconds": "CPU seconds", "tokens": "tokens seen"}
    series = []
    for number, entry in enumerate(board.entries):
        if entry.kind == "surrogate":
            continue  # surrogates never share an axis with bounds
        notes = [f"{entry.name}, step {point.step:,}: {point.bits:.4f}" for point in entry.curve]
        dots = [Dot(float(getattr(p, against)), p.bits, note=note) for p, note in zip(entry.curve, notes, strict=True)]
        series.append(Series(number, entry.name, dots))
    return plot(series, title=f"training against {titles[against]}", x=titles[against], y=f"bits per {board.unit}")


def over_time(board: Board) -> str:
    """Bits per quantile of time; the area under each line is its bound, so that surrogates have none."""
    series = []
    for number, entry in enumerate(board.entries):
        if entry.kind == "surrogate":
            continue
        dots = [
            Dot(
                s.low,
                s.bits,
                s.error,
                f"{entry.name}, quantiles {s.low:.2f}–{s.high:.2f}: {s.bits:.3f} ± {s.error:.3f}",
            )
            for s in entry.shares
        ]
        if dots:
            last = entry.shares[-1]
            series.append(Series(number, entry.name, [*dots, Dot(last.high, last.bits)], steps=True))
    return plot(
        series, title="the bound over time", x="quantile of time, 0 is data and 1 is noise", y=f"bits per {board.unit}",
        bounds_x=(0.0, 1.0), floor=0.0,
    )  # fmt: skip


def against_cost(board: Board, measure: Measure, cost: Callable[[Sampling], float], x: str) -> str:
    """A sample metric at temperature 1 against what sampling costs."""
    series = []
    for number, entry in enumerate(board.entries):
        dots = [
            _dot(entry, s, cost(s), measure)
            for s in entry.samplings
            if s.temperature == 1 and measure.name in s.figures
        ]
        series.append(Series(number, entry.name, sorted(dots, key=lambda dot: dot.x)))
    real = board.real.get(measure.name)
    level = None if real is None else (real.value, "real text")
    return plot(
        series, title=f"{measure.title} against {x}", x=x, y=f"{measure.title}, {measure.unit}", log_x=True, level=level
    )


def _dot(entry: Entry, s: Sampling, x: float, measure: Measure) -> Dot:
    figure = s.figures[measure.name]
    way = f"{s.steps} steps, temperature {s.temperature:g}, {s.nfe:g} evaluations"
    note = f"{entry.name}, {way}: {measure.title} {valued(figure)}"
    return Dot(x, figure.value, figure.error or 0.0, note)


def frontier(board: Board, measure: Measure) -> str:
    """Quality against entropy, over temperature: one point would hide what was paid for it."""
    most = {entry.name: max((s.nfe for s in entry.samplings), default=0) for entry in board.entries}
    series = []
    for number, entry in enumerate(board.entries):
        ways = [s for s in entry.samplings if s.nfe >= 0.99 * most[entry.name] or s.temperature != 1]
        ways = [s for s in ways if {measure.name, "entropy"} <= s.figures.keys()]
        dots = [_dot(entry, s, s.figures["entropy"].value, measure) for s in sorted(ways, key=lambda s: s.temperature)]
        series.append(Series(number, entry.name, dots))
    if real := board.real.get(measure.name):
        point = Dot(
            board.real["entropy"].value, real.value, real.error or 0.0, f"real text: {measure.title} {valued(real)}"
        )
        series.append(Series(7, "real text", [point], line=False))
    return plot(
        series,
        title=f"{measure.title} against entropy",
        x="entropy per sample, bits",
        y=f"{measure.title}, {measure.unit}",
    )
