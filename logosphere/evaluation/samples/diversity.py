"""Diversity of samples: entropy of tokens, distinct n-grams, repetition."""

import torch
from torch import Tensor

from logosphere.evaluation.samples.ngrams import extract_ngrams
from logosphere.evaluation.samples.texts import Metric, MetricValue, Reference, Texts
from logosphere.types import Float, Tokens

REPETITION_ORDER = 8
"""Length of the n-grams whose repetition within one sample is counted."""


def token_entropies(tokens: Tokens) -> Float[Tensor, " B"]:
    """H = -Σ_k f_k log2 f_k over the frequencies f of tokens within each sample, in bits."""
    values = []
    for row in tokens:
        frequencies = row.unique(return_counts=True)[1].double() / len(row)
        values.append(-(frequencies * frequencies.log2()).sum())
    return torch.stack(values)


def distinct_rate(tokens: Tokens, n: int) -> float:
    """The fraction of distinct n-grams among all n-grams of all samples (Li et al. 2016)."""
    ngrams = extract_ngrams(tokens, n).flatten(0, 1)
    return len(ngrams.unique(dim=0)) / len(ngrams)


def repetition_rate(tokens: Tokens, n: int = REPETITION_ORDER) -> Float[Tensor, " B"]:
    """1 - (distinct n-grams) / (all n-grams) within each sample (Welleck et al. 2020, rep-n)."""
    return torch.tensor([1 - len(ngrams.unique(dim=0)) / len(ngrams) for ngrams in extract_ngrams(tokens, n)]).double()


def _distinct_metric(n: int) -> Metric:
    def measure(texts: Texts, reference: Reference) -> MetricValue:
        return MetricValue(distinct_rate(texts.tokens, n))

    return Metric(
        f"distinct-{n}", f"distinct {n}-grams", "share", "as real text",
        f"different runs of {n} tokens among all runs of {n} in all samples; falls with the number of samples", measure,
    )  # fmt: skip


METRICS = [
    Metric(
        "entropy", "entropy", "bits", "as real text",
        "entropy of the frequencies of tokens within one sample, averaged over samples",
        lambda texts, reference: MetricValue.mean(token_entropies(texts.tokens)),
    ),
    _distinct_metric(4),
    _distinct_metric(8),
    Metric(
        "repetition", "repetition", "share", "as real text",
        f"runs of {REPETITION_ORDER} tokens that occurred earlier in the same sample",
        lambda texts, reference: MetricValue.mean(repetition_rate(texts.tokens)),
    ),
]  # fmt: skip
