"""The plots of a comparison report: likelihood, training, bound over time, sample metrics."""

from collections.abc import Callable, Sequence

from logosphere.report.comparison import ComparisonReport, Entry, MetricInfo, SamplingResult
from logosphere.report.plots import Dot, DotPlotRow, Series, dot_plot, plot
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
