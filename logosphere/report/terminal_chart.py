"""Curves in the terminal, drawn with braille characters of two by four dots."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from logosphere.report.svg import format_number

Point = tuple[float, float]
OUTLIER_POINTS = 50
"""From this many points on, the highest tenth is drawn at the upper edge."""
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column and row (Unicode, U+2800)."""


def draw_chart(points: Sequence[Point], width: int = 60, height: int = 12) -> list[str]:
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


def _average_columns(points: Sequence[Point], first: float, step: float) -> list[Point]:
    """Return the mean point of each column that has points."""
    columns = dict[int, list[Point]]()
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
