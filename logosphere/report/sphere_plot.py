"""Plots of the sphere S² with paths and points on it, in orthographic projection; points behind it are faint.

A point X is drawn at (<X, r>, <X, o>) and lies in front where <X, v> > 0; r points to the right, o upwards and v to the
viewer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from logosphere.report.svg import draw_group, draw_marker, draw_polyline, draw_svg, draw_text

Point = Sequence[float]
"""Three coordinates."""

SIZE, RADIUS = 360.0, 150.0
DIAGONAL = (1.0, 1.0, 1.0)
"""The view from here is symmetric in the three axes."""


@dataclass(frozen=True)
class SphereSeries:
    """A line through points of the sphere, or the points themselves, in the colour of an entry."""

    entry: int
    points: Sequence[Point]
    line: bool = True
    size: float = 3.0


@dataclass(frozen=True)
class SpherePlot:
    """A plot of series on the sphere."""

    series: Sequence[SphereSeries]
    names: Sequence[str] = ()
    """Labels of the three vertices (1, 0, 0), (0, 1, 0), (0, 0, 1)."""
    title: str = "the sphere"
    viewpoint: Point = DIAGONAL
    axes: tuple[Point, Point, Point] = field(init=False)
    """Unit vectors to the right, upwards and to the viewer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", _view_axes(self.viewpoint))

    def draw(self) -> str:
        """Return the SVG element of the plot."""
        middle = SIZE / 2
        parts = [f'<circle class="globe" cx="{middle}" cy="{middle}" r="{RADIUS}"/>']
        parts += [self._draw_visible("globe", arc) for arc in _graticule()]
        for series in self.series:
            parts += self._draw_series(series)
        for vertex, name in zip(VERTICES, self.names, strict=False):
            x, y, _ = self._project(vertex)
            out = 1 + 16 / max(1.0, math.hypot(x - middle, y - middle))
            parts.append(draw_text("name", middle + out * (x - middle), middle + out * (y - middle) + 4, name))
        return draw_svg(SIZE, SIZE, self.title, parts)

    def _project(self, point: Point) -> tuple[float, float, float]:
        """Return the coordinates of a point in the drawing, and its depth towards the viewer."""
        right, up, to_viewer = (sum(a * b for a, b in zip(point, axis, strict=True)) for axis in self.axes)
        return SIZE / 2 + RADIUS * right, SIZE / 2 - RADIUS * up, to_viewer

    def _draw_series(self, series: SphereSeries) -> list[str]:
        projected = [self._project(point) for point in series.points]
        if not series.line:
            front = [draw_marker(series.entry, x, y, series.size) for x, y, depth in projected if depth >= 0]
            behind = [draw_marker(series.entry, x, y, series.size) for x, y, depth in projected if depth < 0]
            return [draw_group(series.entry, behind, " faint"), draw_group(series.entry, front)]
        return [draw_group(series.entry, [draw_polyline([(x, y) for x, y, _ in projected], series.entry)], " thin")]

    def _draw_visible(self, css_class: str, arc: Sequence[Point]) -> str:
        """Draw the part of a line that lies in front."""
        runs: list[list[str]] = [[]]
        for x, y, depth in map(self._project, arc):
            if depth >= 0:
                runs[-1].append(f"{x:.1f},{y:.1f}")
            elif runs[-1]:
                runs.append([])
        return "".join(f'<polyline class="{css_class}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1)


VERTICES: tuple[Point, Point, Point] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def _view_axes(viewpoint: Point) -> tuple[Point, Point, Point]:
    """Return unit vectors to the right, upwards (as far as possible along the third axis) and to the viewer."""
    length = math.hypot(*viewpoint)
    to_viewer = (viewpoint[0] / length, viewpoint[1] / length, viewpoint[2] / length)
    across = math.hypot(to_viewer[0], to_viewer[1]) or 1.0
    right = (-to_viewer[1] / across, to_viewer[0] / across, 0.0) if across > 1e-9 else (1.0, 0.0, 0.0)
    up = (
        to_viewer[1] * right[2] - to_viewer[2] * right[1],
        to_viewer[2] * right[0] - to_viewer[0] * right[2],
        to_viewer[0] * right[1] - to_viewer[1] * right[0],
    )
    return right, up, to_viewer


def _graticule(parts: int = 6, steps: int = 60) -> Sequence[Sequence[Point]]:
    """Return the lines of meridians and parallels."""
    round_ = [2 * math.pi * i / steps for i in range(steps + 1)]
    meridians = [
        [(math.cos(a) * math.cos(b), math.sin(a) * math.cos(b), math.sin(b)) for b in round_]
        for a in (math.pi * i / parts for i in range(parts))
    ]
    parallels = [
        [(math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)) for a in round_]
        for b in (math.pi * i / parts - math.pi / 2 for i in range(1, parts))
    ]
    return meridians + parallels
