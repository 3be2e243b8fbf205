"""Figures of reports.

The plots of a comparison report: likelihood, training, bound over time, sample metrics.

Plots of the sphere S² with paths and points on it, in orthographic projection; points behind it are faint.

A point X is drawn at (<X, r>, <X, o>) and lies in front where <X, v> > 0; r points to the right, o upwards and v to the
viewer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from logosphere.report.comparison import ComparisonReport, Entry, MetricInfo, SamplingResult
from logosphere.report.plots import Dot, DotPlotRow, Series, dot_plot, plot
from logosphere.report.svg import draw_group, draw_marker, draw_polyline, draw_svg, draw_text
from logosphere.report.tables import format_value
from logosphere.types import SIGN


def plot_likelihood(report: ComparisonReport) -> str:
    """Plot exact values and bounds; surrogates have a plot of their own."""
    return _plot_entries(report, [e for e in report.entries if e.kind != "surrogate"], "likelihood")


def plot_surrogates(report: ComparisonReport) -> str:
    return _plot_entries(report, [e for e in report.entries if e.kind == "surrogate"], "surrogates")


def _plot_entries(report: ComparisonReport, entries: Sequence[Entry], title: str) -> str:
    rows = [
        DotPlotRow(
            report.entries.index(e), e.name, e.bits, e.error, e.kind != "exact",
            f"{e.name} {SIGN[e.kind]} {e.bits:.4f} ± {e.error:.4f} bits per {report.unit} ({e.kind_and_path})",
        )
        for e in entries
    ]  # fmt: skip
    return dot_plot(rows, title=title, x=f"bits per {report.unit}, ± 1 s.e.") if rows else ""


def plot_training(report: ComparisonReport, against: str) -> str:
    """Plot the bound on validation text during training; `against` is cpu_seconds or tokens."""
    titles = {"cpu_seconds": "CPU seconds", "tokens": "tokens seen"}
    series = []
    for number, entry in enumerate(report.entries):
        if entry.kind == "surrogate":
            continue  # surrogates must not share an axis with bounds
        notes = [f"{entry.name}, step {point.step:,}: {point.bits:.4f}" for point in entry.curve]
        dots = [Dot(float(getattr(p, against)), p.bits, note=note) for p, note in zip(entry.curve, notes, strict=True)]
        series.append(Series(number, entry.name, dots))
    return plot(series, title=f"training against {titles[against]}", x=titles[against], y=f"bits per {report.unit}")


def plot_over_time(report: ComparisonReport) -> str:
    """Plot bits per quantile of time; the area under a line is the bound, so surrogates are left out."""
    series = []
    for number, entry in enumerate(report.entries):
        if entry.kind == "surrogate":
            continue
        notes = [f"quantiles {s.low:.2f}–{s.high:.2f}: {s.bits:.3f} ± {s.error:.3f}" for s in entry.time_bins]
        dots = [
            Dot(s.low, s.bits, s.error, f"{entry.name}, {note}") for s, note in zip(entry.time_bins, notes, strict=True)
        ]
        if dots:
            last = entry.time_bins[-1]
            series.append(Series(number, entry.name, [*dots, Dot(last.high, last.bits)], steps=True))
    return plot(
        series,
        title="the bound over time",
        x="quantile of time, 0 is data and 1 is noise",
        y=f"bits per {report.unit}",
        bounds_x=(0.0, 1.0),
        floor=0.0,
    )


def plot_metric_against_cost(
    report: ComparisonReport, metric: MetricInfo, cost: Callable[[SamplingResult], float], x: str
) -> str:
    """Plot a sample metric at temperature 1 against the cost of sampling."""
    series = []
    for number, entry in enumerate(report.entries):
        dots = [
            _make_dot(entry, s, cost(s), metric)
            for s in entry.samplings
            if s.temperature == 1 and metric.name in s.metrics
        ]
        series.append(Series(number, entry.name, sorted(dots, key=lambda dot: dot.x)))
    real = report.real.get(metric.name)
    level = None if real is None else (real.value, "real text")
    return plot(
        series, title=f"{metric.title} against {x}", x=x, y=f"{metric.title}, {metric.unit}", log_x=True, level=level
    )


def _make_dot(entry: Entry, s: SamplingResult, x: float, metric: MetricInfo) -> Dot:
    value = s.metrics[metric.name]
    setting = f"{s.steps} steps, temperature {s.temperature:g}, {s.nfe:g} evaluations"
    note = f"{entry.name}, {setting}: {metric.title} {format_value(value)}"
    return Dot(x, value.value, value.error or 0.0, note)


def plot_metric_against_entropy(report: ComparisonReport, metric: MetricInfo) -> str:
    """Plot a sample metric against the entropy of samples, one point per temperature."""
    most = {entry.name: max((s.nfe for s in entry.samplings), default=0) for entry in report.entries}
    series = []
    for number, entry in enumerate(report.entries):
        chosen = [s for s in entry.samplings if s.nfe >= 0.99 * most[entry.name] or s.temperature != 1]
        chosen = [s for s in chosen if {metric.name, "entropy"} <= s.metrics.keys()]
        chosen.sort(key=lambda s: s.temperature)
        dots = [_make_dot(entry, s, s.metrics["entropy"].value, metric) for s in chosen]
        series.append(Series(number, entry.name, dots))
    if real := report.real.get(metric.name):
        note = f"real text: {metric.title} {format_value(real)}"
        point = Dot(report.real["entropy"].value, real.value, real.error or 0.0, note)
        series.append(Series(7, "real text", [point], line=False))
    return plot(
        series,
        title=f"{metric.title} against entropy",
        x="entropy per sample, bits",
        y=f"{metric.title}, {metric.unit}",
    )


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
