"""Memorisation: n-grams and long runs of tokens that samples share with the training text."""

import torch

from logosphere.data.tokenizers import WithEOS
from logosphere.evaluation.samples.diversity import REPETITION_ORDER
from logosphere.evaluation.samples.ngrams import extract_ngrams
from logosphere.evaluation.samples.texts import Metric, MetricValue, Reference, Texts

OVERLAP_ORDER = 4
"""Order of the overlapping n-grams, as in papers on latent diffusion (Meshchaninov et al. 2025)."""
COPY_ORDER = 2 * REPETITION_ORDER
"""Length of the runs of tokens that count as memorised."""


def _longest_matches(texts: Texts, reference: Reference) -> torch.Tensor:
    """The longest match with the training text at every position of every sample, [n, L]."""
    rows = [torch.from_numpy(reference.suffixes.longest_matches(row)) for row in texts.tokens.numpy()]
    return torch.stack(rows)


def _overlap_rate(texts: Texts, reference: Reference) -> MetricValue:
    """N-grams with an EOS token are not counted, because every text that ends has them."""
    tokenizer, matches = reference.tokenizer, _longest_matches(texts, reference)
    ngrams = extract_ngrams(texts.tokens, OVERLAP_ORDER)
    counted = torch.ones_like(ngrams[..., 0], dtype=torch.bool)
    if isinstance(tokenizer, WithEOS):
        counted = (ngrams != tokenizer.eos).all(-1)
    shared = (matches[:, : ngrams.shape[1]] >= ngrams.shape[2]) & counted
    nonempty = counted.any(1)
    return MetricValue.mean(shared[nonempty].sum(1).double() / counted[nonempty].sum(1))


def _memorised_rate(texts: Texts, reference: Reference) -> MetricValue:
    n = min(COPY_ORDER, texts.tokens.shape[1])
    starts = texts.tokens.shape[1] - n + 1
    return MetricValue.mean((_longest_matches(texts, reference)[:, :starts] >= n).double().mean(1))


def _longest_copy(texts: Texts, reference: Reference) -> MetricValue:
    return MetricValue.mean(_longest_matches(texts, reference).amax(1).double())


METRICS = [
    Metric(
        f"overlap-{OVERLAP_ORDER}", f"{OVERLAP_ORDER}-gram overlap", "share", "as real text",
        f"runs of {OVERLAP_ORDER} tokens, without ends, that occur in the training text, averaged over samples",
        _overlap_rate,
    ),
    Metric(
        "memorised", "memorised", "share", "as real text",
        f"runs of {COPY_ORDER} tokens that occur in the training text", _memorised_rate,
    ),
    Metric(
        "longest-copy", "longest copy", "tokens", "as real text",
        "longest run of tokens of a sample that occurs in the training text, averaged over samples", _longest_copy,
    ),
]  # fmt: skip
