"""What plots are drawn with: axes with round ticks, lines, words, and markers in the colours of the style sheet.

Entry k has the class `s{k}`: eight colours that colour-blind readers tell apart (after Okabe and Ito 2008), together
with four shapes of markers, so that 32 entries differ. Nothing is fetched, nothing is random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 8
DASHES = ("", "6 3", "2 3")
SHAPES = (
    ((0.0, -1.0), (0.38, -0.92), (0.71, -0.71), (0.92, -0.38), (1.0, 0.0), (0.92, 0.38), (0.71, 0.71), (0.38, 0.92),
     (0.0, 1.0), (-0.38, 0.92), (-0.71, 0.71), (-0.92, 0.38), (-1.0, 0.0), (-0.92, -0.38), (-0.71, -0.71),
     (-0.38, -0.92)),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)),
    ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
)  # fmt: skip
"""Circle, square, triangle, diamond."""


@dataclass(frozen=True)
class Axis:
    """Numbers to places on the paper."""

    low: float
    high: float
    first: float
    last: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        a, b, v = (math.log10(x) if self.logarithmic else x for x in (self.low, self.high, value))
        return self.first + (v - a) / (b - a) * (self.last - self.first)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.logarithmic else linear_ticks(self.low, self.high)


def linear_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or 1, 2 and 5 times them when there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**d for d in decades for f in factors if low * 0.999 <= f * 10.0**d <= high * 1.001]
        if len(found) >= 3:
            return found
    return found or [low, high]


def number(value: float) -> str:
    """A short number for an axis."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):g}{letter}"
    return f"{value:.4g}"


def line(look: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line."""
    return f'<line class="{look}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def words(look: str, x: float, y: float, text: str, anchor: str = "middle", turned: bool = False) -> str:
    """A text, turned by a quarter for vertical axes."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def polyline(points: Sequence[tuple[float, float]], entry: int) -> str:
    """A line through points; dashed where the colours begin anew."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = DASHES[entry // COLOURS % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}"{dashed}/>'


def marker(entry: int, x: float, y: float, size: float = 4.2, note: str = "") -> str:
    """The marker of an entry, and what is said when it is touched."""
    shape = SHAPES[(entry + entry // COLOURS) % len(SHAPES)]
    corners = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in shape)
    return (
        f'<polygon points="{corners}"><title>{escape(note)}</title></polygon>'
        if note
        else f'<polygon points="{corners}"/>'
    )


def group(entry: int, parts: Sequence[str], look: str = "") -> str:
    """Parts in the colour of an entry."""
    return f'<g class="series s{entry % COLOURS}{look}" data-entry="{entry}">{"".join(parts)}</g>'


def paper(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """A drawing."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def swatch(entry: int) -> str:
    """The colour and shape of an entry, for legends and tables."""
    inside = group(entry, [marker(entry, 7.0, 7.0, 4.6)])
    return f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{inside}</svg>'
