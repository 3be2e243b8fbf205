"""SVG elements for plots: axes with round ticks, lines, text and markers; and SVG files with their own style.

Entry k has the class `s{k}`: eight colours for colour-blind readers (after Okabe and Ito 2008) and four shapes of
markers, so that 32 entries differ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from logosphere.io import write_atomic

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
    """Maps numbers to coordinates of the drawing."""

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


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers, 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, or 1, 2 and 5 times them when there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**d for d in decades for f in factors if low * 0.999 <= f * 10.0**d <= high * 1.001]
        if len(found) >= 3:
            return found
    return found or [low, high]


def format_number(value: float) -> str:
    """Format a number briefly for an axis."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):g}{letter}"
    return f"{value:.4g}"


def draw_line(css_class: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Draw a straight line."""
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def draw_text(css_class: str, x: float, y: float, text: str, anchor: str = "middle", vertical: bool = False) -> str:
    """Draw a text, horizontally or upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if vertical else ""
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def draw_polyline(points: Sequence[tuple[float, float]], entry: int) -> str:
    """Draw a line through points; from the ninth entry on it is dashed, since colours repeat."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = DASHES[entry // COLOURS % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}"{dashed}/>'


def draw_marker(entry: int, x: float, y: float, size: float = 4.2, note: str = "") -> str:
    """Draw the marker of an entry with `note` as its tooltip."""
    shape = SHAPES[(entry + entry // COLOURS) % len(SHAPES)]
    corners = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in shape)
    return (
        f'<polygon points="{corners}"><title>{escape(note)}</title></polygon>'
        if note
        else f'<polygon points="{corners}"/>'
    )


def draw_group(entry: int, parts: Sequence[str], css_class: str = "") -> str:
    """Group parts in the colour of an entry; `css_class` begins with a space."""
    return f'<g class="series s{entry % COLOURS}{css_class}" data-entry="{entry}">{"".join(parts)}</g>'


def draw_svg(width: float, height: float, title: str, body: Sequence[str]) -> str:
    """Return the SVG element of a whole drawing, to be styled by its page."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def draw_swatch(entry: int) -> str:
    """Draw the marker of an entry for legends and tables."""
    inside = draw_group(entry, [draw_marker(entry, 7.0, 7.0, 4.6)])
    return f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true">{inside}</svg>'


STYLE = """
svg{--paper:#fbfaf7;--ink:#1d1f24;--soft:#62666f;--line:#d9d6ce;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#cc79a7;--s4:#b8860b;--s5:#3a9bdc;--s6:#7a5195;--s7:#4d4d4d}
text{font:13px system-ui,sans-serif;fill:var(--soft)}text.name,text.label{fill:var(--ink)}
.sheet{fill:var(--paper)}.grid{stroke:var(--line);stroke-width:1}.axis,.mark{stroke:var(--soft);stroke-width:1}
.level{stroke:var(--soft);stroke-dasharray:3 4}.globe{fill:none;stroke:var(--line)}
.series{stroke:currentColor;fill:currentColor;stroke-width:1.8}.series polyline{fill:none;stroke-linejoin:round}
.series .error{stroke-width:1.6;opacity:.75}.thin polyline{stroke-width:1;opacity:.55}
.hollow polygon{fill:var(--paper)}.faint{opacity:.3}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
"""
"""The light colours of report/style.css, for drawings outside of a page."""


@dataclass(frozen=True)
class Drawing:
    """A whole SVG file, which notebooks display."""

    svg: str

    def save(self, path: str | Path) -> None:
        write_atomic(Path(path), self.svg.encode())

    def _repr_svg_(self) -> str:
        return self.svg


def make_standalone(element: str) -> Drawing:
    """Turn an element of `draw_svg` into a file with its style and background inside."""
    begin = element.index(">")
    head = element[:begin].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    background = '<rect class="sheet" width="100%" height="100%" rx="8"/>'
    return Drawing(f"{head}><style>{STYLE}</style>{background}{element[begin + 1 :]}\n")
