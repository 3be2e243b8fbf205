"""How varied samples are: entropy of tokens, distinct n-grams, repetition."""

import torch
from torch import Tensor

from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts
from logosphere.shapes import Float, Int64
from logosphere.types import Tokens

REPEATED = 8
"""Length of the n-grams whose repetition within one sample is counted."""


def entropies(tokens: Tokens) -> Float[Tensor, "B"]:
    """H = -Σ_k f_k log2 f_k over the frequencies f of tokens within each sample, in bits."""
    values = []
    for row in tokens:
        share = row.unique(return_counts=True)[1].double() / len(row)
        values.append(-(share * share.log2()).sum())
    return torch.stack(values)


def grams(tokens: Int64[Tensor, "... L"], n: int) -> Int64[Tensor, "... M n"]:
    """All runs of n tokens."""
    return tokens.unfold(-1, min(n, tokens.shape[-1]), 1)


def distinct(tokens: Tokens, n: int) -> float:
    """The share of different n-grams among all n-grams of all samples (Li et al. 2016)."""
    every = grams(tokens, n).flatten(0, 1)
    return len(every.unique(dim=0)) / len(every)


def repetition(tokens: Tokens, n: int = REPEATED) -> Float[Tensor, "B"]:
    """1 - (different n-grams) / (all n-grams) within each sample (Welleck et al. 2020, rep-n)."""
    return torch.tensor([1 - len(every.unique(dim=0)) / len(every) for every in grams(tokens, n)]).double()


def _distinct(n: int) -> Metric:
    def measure(texts: Texts, reference: Reference) -> Figure:
        return Figure(distinct(texts.tokens, n))

    return Metric(
        f"distinct-{n}", f"distinct {n}-grams", "share", "as real text",
        f"different runs of {n} tokens among all runs of {n} in all samples; falls with the number of samples", measure,
    )  # fmt: skip


METRICS = [
    Metric(
        "entropy", "entropy", "bits", "as real text",
        "entropy of the frequencies of tokens within one sample, averaged over samples",
        lambda texts, reference: Figure.mean(entropies(texts.tokens)),
    ),
    _distinct(4),
    _distinct(8),
    Metric(
        "repetition", "repetition", "share", "as real text",
        f"runs of {REPEATED} tokens that occurred earlier in the same sample",
        lambda texts, reference: Figure.mean(repetition(texts.tokens)),
    ),
]  # fmt: skip
