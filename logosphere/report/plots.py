"""Plots as SVG (lines and points over two axes, dot plots of values with error bars), and curves in the terminal."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from logosphere.report.svg import (
    Axis,
    draw_group,
    draw_line,
    draw_marker,
    draw_polyline,
    draw_svg,
    draw_text,
    format_number,
)

WIDTH, HEIGHT = 540.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 24.0, 14.0, 48.0
LEGEND_ROW, LETTER = 22.0, 9.2
"""The height of a row of names, and room for a letter, which is larger on narrow screens."""
ROW, MOST_LETTERS = 26.0, 28
"""The height of a row of a dot plot, and how long its names may be."""


@dataclass(frozen=True)
class Dot:
    """A point with its error bar and tooltip."""

    x: float
    y: float
    error: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one entry, which has the same colour and marker on every plot of a page."""

    entry: int
    name: str
    dots: Sequence[Dot]
    line: bool = True
    steps: bool = False
    """Whether to draw horizontal steps from each point to the next."""


def _find_range(values: Sequence[float], logarithmic: bool = False) -> tuple[float, float]:
    """Return the range of values with some padding."""
    low, high = min(values), max(values)
    if logarithmic:
        return (low / 1.15, high * 1.15) if high > low else (low / 2, high * 2)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


OUTLIER_FACTOR = 3.0
"""Values above this multiple of the median are drawn at the edge, so that the others stay legible."""


def _without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values that determine the scale of a plot."""
    limit = OUTLIER_FACTOR * statistics.median(values)
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
) -> str:
    """Draw lines and points over two axes with a legend below them; return "" if there are none.

    `level` is a horizontal line and its label.
    """
    series = [one for one in (_keep_drawable(one, log_x) for one in series) if one.dots]
    if not series:
        return ""
    heights = [dot.y + sign * dot.error for one in series for dot in one.dots for sign in (-1, 1)]
    low, high = _find_range([*_without_outliers(heights), *([] if level is None else [level[0]])])
    spread = bounds_x or _find_range([dot.x for one in series for dot in one.dots], log_x)
    x_axis = Axis(*spread, LEFT, WIDTH - RIGHT, log_x)
    y_axis = Axis(low if floor is None else floor, high, HEIGHT - BOTTOM, TOP)
    body = [*_draw_axes(x_axis, y_axis, x, y)]
    if level is not None:
        at = y_axis(level[0])
        body += [
            draw_line("level", LEFT, at, WIDTH - RIGHT, at),
            draw_text("note", WIDTH - RIGHT - 4, at - 5, level[1], "end"),
        ]
    body += [_draw_series(one, x_axis, y_axis) for one in series]
    legend, height = _draw_legend([(one.entry, one.name, "") for one in series], HEIGHT)
    return draw_svg(WIDTH, height, title, [*body, *legend])


def _draw_legend(entries: Sequence[tuple[int, str, str]], top: float) -> tuple[list[str], float]:
    """Draw markers and names in rows below a plot; each entry has the class of its marker. Return the height, too."""
    parts, x, y = list[str](), LEFT, top + 12
    for entry, name, css_class in entries:
        width = 24 + LETTER * len(name)
        if x > LEFT and x + width > WIDTH:
            x, y = LEFT, y + LEGEND_ROW
        parts += [
            draw_group(entry, [draw_marker(entry, x + 6, y - 4)], css_class),
            draw_text("name", x + 16, y, name, "start"),
        ]
        x += width + 10
    return parts, y + 10


def _keep_drawable(series: Series, log_x: bool) -> Series:
    dots = [d for d in series.dots if math.isfinite(d.x) and math.isfinite(d.y) and (d.x > 0 or not log_x)]
    return Series(series.entry, series.name, dots, series.line, series.steps)


def _draw_axes(x_axis: Axis, y_axis: Axis, x: str, y: str) -> list[str]:
    foot, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y_axis.ticks():
        at = y_axis(tick)
        parts += [
            draw_line("grid", LEFT, at, right, at),
            draw_text("tick", LEFT - 7, at + 4, format_number(tick), "end"),
        ]
    for tick in x_axis.ticks():
        at = x_axis(tick)
        parts += [draw_line("mark", at, foot, at, foot + 4), draw_text("tick", at, foot + 17, format_number(tick))]
    parts += [draw_line("axis", LEFT, foot, right, foot), draw_text("label", (LEFT + right) / 2, HEIGHT - 6, x)]
    return [*parts, draw_text("label", 20.0, (TOP + foot) / 2, y, vertical=True)]


def _draw_series(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    coordinates = [(x_axis(dot.x), y_axis(min(dot.y, y_axis.high))) for dot in series.dots]
    parts = []
    if series.line and len(coordinates) > 1:
        parts.append(draw_polyline(_make_steps(coordinates) if series.steps else coordinates, series.entry))
    for dot, (px, py) in zip(series.dots, coordinates, strict=True):
        if dot.error > 0:
            middle = px if not series.steps else px + _half_step_width(coordinates)
            top, bottom = (y_axis(min(dot.y + sign * dot.error, y_axis.high)) for sign in (1, -1))
            parts.append(draw_line("error", middle, top, middle, bottom))
        if dot.note:
            shift = _half_step_width(coordinates) if series.steps else 0.0
            parts.append(draw_marker(series.entry, px + shift, py, 3.2 if series.steps else 4.2, dot.note))
    return draw_group(series.entry, parts)


def _make_steps(coordinates: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [corner for a, b in zip(coordinates, coordinates[1:], strict=False) for corner in (a, (b[0], a[1]), b)]


def _half_step_width(coordinates: Sequence[tuple[float, float]]) -> float:
    return (coordinates[1][0] - coordinates[0][0]) / 2 if len(coordinates) > 1 else 0.0


@dataclass(frozen=True)
class DotPlotRow:
    """A row of a dot plot: a value with its error bar."""

    entry: int
    name: str
    value: float
    error: float
    hollow: bool
    """Whether the value is a bound; markers of exact values are filled."""
    note: str


def dot_plot(rows: Sequence[DotPlotRow], *, title: str, x: str) -> str:
    """Draw one value per row with its error bar."""
    height = TOP + ROW * len(rows) + BOTTOM
    foot, right = height - BOTTOM, WIDTH - RIGHT - 6
    edge = 30 + LETTER * min(MOST_LETTERS, max(len(row.name) for row in rows))
    ends = [row.value + sign * row.error for row in rows for sign in (-1, 1)]
    x_axis = Axis(*_find_range(_without_outliers(ends)), edge, right)
    parts = []
    for tick in x_axis.ticks():
        at = x_axis(tick)
        parts += [draw_line("grid", at, TOP, at, foot), draw_text("tick", at, foot + 17, format_number(tick))]
    parts.append(draw_text("label", (edge + right) / 2, height - 6, x))
    for i, row in enumerate(rows):
        y = TOP + ROW * (i + 0.5)
        if row.value > x_axis.high:
            parts.append(draw_text("name", edge - 12, y + 4, _shorten(row.name), "end"))
            parts.append(draw_text("note", right, y + 4, f"{format_number(row.value)} →", "end"))
            continue
        bar = draw_line("error", x_axis(row.value - row.error), y, x_axis(min(row.value + row.error, x_axis.high)), y)
        point = draw_marker(row.entry, x_axis(row.value), y, 5.0, row.note)
        parts.append(draw_text("name", edge - 12, y + 4, _shorten(row.name), "end"))
        parts.append(draw_group(row.entry, [bar, point], " hollow" if row.hollow else ""))
    if len({row.hollow for row in rows}) == 1:
        return draw_svg(WIDTH, height, title, parts)
    legend, height = _draw_legend([(7, "exact", ""), (7, "bound", " hollow")], height)
    return draw_svg(WIDTH, height, title, [*parts, *legend])


def _shorten(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


ChartPoint = tuple[float, float]
OUTLIER_POINTS = 50
"""From this many points on, the highest tenth is drawn at the upper edge."""
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column and row (Unicode, U+2800)."""


def draw_chart(points: Sequence[ChartPoint], width: int = 60, height: int = 12) -> list[str]:
    """Return the lines of a chart: the lowest and highest value at the left, the first and last x below.

    Points that share a column are averaged. With many points the highest tenth, the beginning of a training, is drawn
    at the upper edge and leaves room for the rest.
    """
    if not points:
        return []
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    points = _average_columns(points, first, (last - first) / (2 * width - 1) or 1.0)
    ys = sorted(y for _, y in points)
    low, high = ys[0], ys[-1] if len(ys) < OUTLIER_POINTS else ys[round(0.9 * len(ys)) - 1]
    cells = [[0] * width for _ in range(height)]
    dots = [
        (
            round((x - first) / ((last - first) or 1.0) * (2 * width - 1)),
            round((high - min(y, high)) / ((high - low) or 1.0) * (4 * height - 1)),
        )
        for x, y in points
    ]
    for across, down in _join_dots(dots):
        cells[down // 4][across // 2] |= DOTS[across % 2][down % 4]
    names = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    margin = max(map(len, names.values()))
    drawn = ["".join(chr(0x2800 + bits) for bits in row).rstrip("\u2800") for row in cells]
    lines = [f"{names.get(i, ''):>{margin}} │{row}" for i, row in enumerate(drawn)]
    lines.append(f"{'':>{margin}} └{'─' * width}")
    ends = f"{format_number(last)} steps"
    lines.append(f"{'':>{margin}}  {format_number(first)}{ends:>{width - len(format_number(first))}}")
    return lines


def _average_columns(points: Sequence[ChartPoint], first: float, step: float) -> list[ChartPoint]:
    """Return the mean point of each column that has points."""
    columns = dict[int, list[ChartPoint]]()
    for x, y in points:
        columns.setdefault(round((x - first) / step), []).append((x, y))
    ordered = [columns[column] for column in sorted(columns)]
    return [(sum(x for x, _ in some) / len(some), sum(y for _, y in some) / len(some)) for some in ordered]


def _join_dots(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the dots and the dots on straight lines between them, one per column."""
    yield dots[0]
    for (x, y), (to_x, to_y) in pairwise(dots):
        for i in range(1, max(1, to_x - x)):
            yield x + i, round(y + (to_y - y) * i / (to_x - x))
        yield to_x, to_y
