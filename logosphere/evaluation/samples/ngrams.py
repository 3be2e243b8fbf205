"""How far the n-grams of samples are from those of real text."""

import math

import torch
from torch import Tensor

from logosphere.data.special import Ended
from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts
from logosphere.evaluation.samples.variety import grams
from logosphere.shapes import Bool, Int64

ORDER = 3
SMOOTHING = 0.01
"""Share of the reference law that is spread evenly, so that what it has never seen costs a finite number of bits."""


def divergence(
    samples: Int64[Tensor, "N n"], reference: Int64[Tensor, "R n"], vocab_size: int, smoothing: float = SMOOTHING
) -> float:
    """KL(p || q') = Σ p log2(p / q') in bits, p the frequencies of the samples' n-grams, q' = (1-ε) q + ε / V^n.

    p is that of a finite sample, which alone raises it by about (n-grams seen)/(2N ln 2); real text of the same size
    pays the same.
    """
    powers = vocab_size ** torch.arange(samples.shape[1])  # n-grams as numbers; V^3 fits 63 bits up to V = 2M
    seen, counts = (samples * powers).sum(1).unique(return_counts=True)
    known, known_counts = (reference * powers).sum(1).unique(return_counts=True)
    place = torch.searchsorted(known, seen).clamp_max(len(known) - 1)
    q = torch.where(known[place] == seen, known_counts[place].double() / len(reference), 0.0)
    smooth = (1 - smoothing) * q + smoothing * math.exp(-samples.shape[1] * math.log(vocab_size))
    p = counts.double() / len(samples)
    return float((p * (p / smooth).log2()).sum())


def _measure(texts: Texts, reference: Reference) -> Figure:
    samples, train = grams(texts.tokens, ORDER).flatten(0, 1), grams(reference.train_tokens, ORDER)
    if isinstance(reference.tokenizer, Ended):
        samples, train = (every[_within(every, reference.tokenizer.end)] for every in (samples, train))
    return Figure(divergence(samples, train, reference.tokenizer.size) if len(samples) else math.nan)


def _within(every: Int64[Tensor, "N n"], end: int) -> Bool[Tensor, "N"]:
    """Runs within one text: none but the last token ends it."""
    return (every[:, :-1] != end).all(1)


METRICS = [
    Metric(
        "ngram-kl", f"{ORDER}-gram KL", "bits", "as real text",
        f"KL(samples || training text) of runs of {ORDER} tokens, {SMOOTHING:.0%} of the latter spread evenly",
        _measure,
    ),
]  # fmt: skip
