"""All sample metrics by name, and what a judge adds to them."""

from collections.abc import Sequence

from logosphere.errors import UserError, nearest
from logosphere.evaluation.judges import Judge
from logosphere.evaluation.samples import copying, frontier, ngrams, variety, words
from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts

METRICS: list[Metric] = [
    *variety.METRICS,
    *words.METRICS,
    *ngrams.METRICS,
    *frontier.METRICS,
    *copying.METRICS,
]


def metrics(names: Sequence[str] = ()) -> list[Metric]:
    """Metrics by name; all without names. Entropy is always among them: no figure of quality stands alone."""
    known = {metric.name for metric in METRICS}
    for name in names:
        if name not in known:
            raise UserError(f"There is no metric '{name}'.{nearest(name, known)}")
    return [metric for metric in METRICS if not names or metric.name in names or metric.name == "entropy"]


def judged(judge: Judge) -> Metric:
    """The bits per character that a judge needs for samples."""

    def measure(texts: Texts, reference: Reference) -> Figure:
        verdict = judge.bits(texts.strings)
        return Figure(verdict.value, verdict.error)

    return Metric(
        f"judge:{judge.name}", f"judge {judge.name}", "bits per character", "as real text",
        f"-log2 p of {judge.description}, per character; low alone means dull, see entropy", measure, judge.version,
    )  # fmt: skip


def measured(texts: Texts, reference: Reference, chosen: Sequence[Metric]) -> dict[str, Figure]:
    """All chosen figures of a set of samples."""
    return {metric.name: metric.measure(texts, reference) for metric in chosen}
