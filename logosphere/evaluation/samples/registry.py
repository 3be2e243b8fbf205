"""All sample metrics by name, and the metric of a scorer."""

from collections.abc import Sequence

from logosphere.errors import UserError, suggest
from logosphere.evaluation.samples import diversity, memorisation, ngram_mauve, ngrams
from logosphere.evaluation.samples.texts import Metric, MetricValue, Reference, Texts
from logosphere.evaluation.scorers import Scorer

METRICS: list[Metric] = [
    *diversity.METRICS,
    *ngrams.METRICS,
    *ngram_mauve.METRICS,
    *memorisation.METRICS,
]


def find_metrics(names: Sequence[str] = ()) -> list[Metric]:
    """Metrics by name; all without names. Entropy is always included, because quality alone rewards repetition."""
    known = {metric.name for metric in METRICS}
    for name in names:
        if name not in known:
            raise UserError(f"There is no metric '{name}'.{suggest(name, known)}")
    return [metric for metric in METRICS if not names or metric.name in names or metric.name == "entropy"]


def scorer_metric(scorer: Scorer) -> Metric:
    """The bits per character of samples under a scorer."""

    def measure(texts: Texts, reference: Reference) -> MetricValue:
        score = scorer.score(texts.strings)
        return MetricValue(score.value, score.error)

    return Metric(
        f"judge:{scorer.name}", f"judge {scorer.name}", "bits per character", "as real text",
        f"-log2 p of {scorer.description}, per character; low alone means dull, see entropy", measure, scorer.version,
    )  # fmt: skip


def measure_samples(texts: Texts, reference: Reference, chosen: Sequence[Metric]) -> dict[str, MetricValue]:
    """The values of the chosen metrics for a set of samples."""
    return {metric.name: metric.measure(texts, reference) for metric in chosen}
