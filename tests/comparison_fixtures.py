"""A comparison report with every part, and hostile text in it."""

from logosphere.evaluation.likelihood import TimeBin
from logosphere.report.comparison import (
    ComparisonReport,
    Costs,
    CurvePoint,
    Entry,
    MetricInfo,
    SamplingResult,
    SeedResult,
    Value,
    load_published_results,
)
from logosphere.report.page import Animation

HOSTILE = "</script><script>alert('x')</script> & \"quoted\" | piped"


def entry(name: str, kind: str, bits: float, above: float = 0.0) -> Entry:
    figures = {"entropy": Value(4.0, 0.1), "spelling": Value(0.5, 0.02)}
    samplings = [
        SamplingResult(steps, temperature, 8, float(steps), 1.0, 0.8, figures)
        for steps, temperature in ((4, 1.0), (16, 1.0), (16, 0.7))
    ]
    return Entry(
        name=name, system=name, title=name, kind=kind, options=[], bits=bits, error=0.01, spread=None, above=above,
        above_error=0.005, recon=0.0, diffusion=bits, prior=0.0,
        seeds=[SeedResult(0, f"runs/{name}", bits, 0.01, "ab" * 32, 20)],
        curve=[CurvePoint(10, 640, 1.0, bits + 1), CurvePoint(20, 1280, 2.0, bits)],
        time_bins=[TimeBin(0.0, 0.5, 1.0, 0.1), TimeBin(0.5, 1.0, 2.0, 0.1)],
        samplings=samplings, texts=["some text", HOSTILE],
        animation=Animation(3, ["a", "<"], [[[0, 0, 2, 1], [1, 1]], [[1, 0], []]]),
        costs=Costs(1000, 1e9, 20, 1280, 2.0, 1.9, None, 3.0),
    )  # fmt: skip


def make_report(*entries: Entry) -> ComparisonReport:
    measures = [MetricInfo(name, name, "share", "higher", "def") for name in ("entropy", "spelling")]
    return ComparisonReport(
        title=f"two on {HOSTILE}", created="now", command=["logosphere", "compare"], data="text8 test", length=3,
        data_sha256="00", corpus_sha256="11", tokenizer="t", unit="character", sequences=8, draws=2, budget="20 steps",
        entries=list(entries), metrics=measures, real={"entropy": Value(4.1, 0.1), "spelling": Value(0.9, None)},
        real_texts=["real"], published=load_published_results("text8", "character"), environment={"python": "3"},
    )  # fmt: skip
