"""Plots: lines and points over two axes, and ladders of values with error bars."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from logosphere.reports.svg import Axis, group, line, marker, number, paper, polyline, words

WIDTH, HEIGHT = 560.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 14.0, 44.0
ROW, NAMES = 26.0, 190.0


@dataclass(frozen=True)
class Dot:
    """A point, its error bar, and what is said when it is touched."""

    x: float
    y: float
    error: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one entry, which has its colour and marker on every plot of the page."""

    entry: int
    name: str
    dots: Sequence[Dot]
    line: bool = True
    steps: bool = False
    """Draw level steps, from each point to the next."""


def _span(values: Sequence[float], logarithmic: bool = False) -> tuple[float, float]:
    """From the smallest to the largest, and a little more."""
    low, high = min(values), max(values)
    if logarithmic:
        return (low / 1.15, high * 1.15) if high > low else (low / 2, high * 2)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


FAR = 3.0
"""Values beyond so many times the median would flatten all others; they are drawn at the edge."""


def _near(values: Sequence[float]) -> list[float]:
    """The values that a plot must show to scale."""
    limit = FAR * statistics.median(values)
    return [value for value in values if value <= limit] if limit > 0 else list(values)


def plot(
    series: Sequence[Series],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    level: tuple[float, str] | None = None,
    bounds_x: tuple[float, float] | None = None,
    floor: float | None = None,
    named: bool = False,
) -> str:
    """Lines and points over two axes; nothing if there are none. `level` is a horizontal line with a name.

    A page has one legend for all of its plots; a plot that stands alone is `named` and has its own.
    """
    series = [one for one in (_drawable(one, log_x) for one in series) if one.dots]
    if not series:
        return ""
    heights = [dot.y + sign * dot.error for one in series for dot in one.dots for sign in (-1, 1)]
    low, high = _span([*_near(heights), *([] if level is None else [level[0]])])
    spread = bounds_x or _span([dot.x for one in series for dot in one.dots], log_x)
    across = Axis(*spread, LEFT, WIDTH - RIGHT, log_x)
    up = Axis(low if floor is None else floor, high, HEIGHT - BOTTOM, TOP)
    body = [*_frame(across, up, x, y)]
    if level is not None:
        at = up(level[0])
        body += [line("level", LEFT, at, WIDTH - RIGHT, at), words("note", WIDTH - RIGHT - 4, at - 5, level[1], "end")]
    body += [_drawn(one, across, up) for one in series]
    if named:
        body += _legend(series, across, up)
    return paper(WIDTH, HEIGHT, title, body)


def _legend(series: Sequence[Series], across: Axis, up: Axis) -> list[str]:
    """Marker and name of each entry, one below the other at the right: above, or below where lines end high."""
    edge, parts = WIDTH - RIGHT - 12, list[str]()
    ends = [up(dot.y) for one in series for dot in one.dots if across(dot.x) > 0.7 * WIDTH]
    first = HEIGHT - BOTTOM - 18 * len(series) if ends and min(ends) < TOP + 18 * len(series) + 12 else TOP + 12
    for row, one in enumerate(series):
        y = first + 18 * row
        parts += [group(one.entry, [marker(one.entry, edge, y - 4)]), words("name", edge - 12, y, one.name, "end")]
    return parts


def _drawable(series: Series, log_x: bool) -> Series:
    dots = [d for d in series.dots if math.isfinite(d.x) and math.isfinite(d.y) and (d.x > 0 or not log_x)]
    return Series(series.entry, series.name, dots, series.line, series.steps)


def _frame(across: Axis, up: Axis, x: str, y: str) -> list[str]:
    foot, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in up.ticks():
        at = up(tick)
        parts += [line("grid", LEFT, at, right, at), words("tick", LEFT - 7, at + 4, number(tick), "end")]
    for tick in across.ticks():
        at = across(tick)
        parts += [line("mark", at, foot, at, foot + 4), words("tick", at, foot + 17, number(tick))]
    parts += [line("axis", LEFT, foot, right, foot), words("label", (LEFT + right) / 2, HEIGHT - 6, x)]
    return [*parts, words("label", 14.0, (TOP + foot) / 2, y, turned=True)]


def _drawn(series: Series, across: Axis, up: Axis) -> str:
    places = [(across(dot.x), up(min(dot.y, up.high))) for dot in series.dots]
    parts = []
    if series.line and len(places) > 1:
        parts.append(polyline(_stairs(places) if series.steps else places, series.entry))
    for dot, (px, py) in zip(series.dots, places, strict=True):
        if dot.error > 0:
            middle = px if not series.steps else px + _half_step(places)
            top, bottom = (up(min(dot.y + sign * dot.error, up.high)) for sign in (1, -1))
            parts.append(line("error", middle, top, middle, bottom))
        if dot.note:
            shift = _half_step(places) if series.steps else 0.0
            parts.append(marker(series.entry, px + shift, py, 3.2 if series.steps else 4.2, dot.note))
    return group(series.entry, parts)


def _stairs(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [corner for a, b in zip(places, places[1:], strict=False) for corner in (a, (b[0], a[1]), b)]


def _half_step(places: Sequence[tuple[float, float]]) -> float:
    return (places[1][0] - places[0][0]) / 2 if len(places) > 1 else 0.0


@dataclass(frozen=True)
class Rung:
    """A row of a ladder: a value with its error bar."""

    entry: int
    name: str
    value: float
    error: float
    hollow: bool
    """Hollow markers are bounds, filled ones exact."""
    note: str


def ladder(rows: Sequence[Rung], *, title: str, x: str) -> str:
    """Values one below the other: what is to the left is better."""
    height = TOP + ROW * len(rows) + BOTTOM
    foot, right = height - BOTTOM, WIDTH - RIGHT - 6
    ends = [row.value + sign * row.error for row in rows for sign in (-1, 1)]
    across = Axis(*_span(_near(ends)), NAMES, right)
    parts = []
    for tick in across.ticks():
        at = across(tick)
        parts += [line("grid", at, TOP, at, foot), words("tick", at, foot + 17, number(tick))]
    parts.append(words("label", (NAMES + right) / 2, height - 6, x))
    for i, row in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        if row.value > across.high:
            parts.append(words("name", NAMES - 12, y + 4, row.name, "end"))
            parts.append(words("note", right, y + 4, f"{number(row.value)} →", "end"))
            continue
        bar = line("error", across(row.value - row.error), y, across(min(row.value + row.error, across.high)), y)
        point = marker(row.entry, across(row.value), y, 5.0, row.note)
        parts.append(words("name", NAMES - 12, y + 4, row.name, "end"))
        parts.append(group(row.entry, [bar, point], " hollow" if row.hollow else ""))
    return paper(WIDTH, height, title, parts)
