"""N-grams and words of samples compared with the training text."""

import math

import torch
from torch import Tensor

from logosphere.data.tokenizers import WithEOS
from logosphere.evaluation.samples.texts import Metric, MetricValue, Reference, Texts
from logosphere.types import Bool, Int64

ORDER = 3
SMOOTHING = 0.01
"""Weight of the uniform distribution mixed into the reference, so that unseen n-grams cost a finite number of bits."""


def extract_ngrams(tokens: Int64[Tensor, "... L"], n: int) -> Int64[Tensor, "... M n"]:
    """All runs of n tokens; shorter ones if a text has fewer."""
    return tokens.unfold(-1, min(n, tokens.shape[-1]), 1)


def ngram_divergence(
    samples: Int64[Tensor, "N n"], reference: Int64[Tensor, "R n"], vocab_size: int, smoothing: float = SMOOTHING
) -> float:
    """KL(p || q') = Σ p log2(p / q') in bits, p the frequencies of the samples' n-grams, q' = (1-ε) q + ε / V^n.

    The finite sample alone raises it by about (distinct n-grams)/(2N ln 2), and equally for real text of the same size.
    """
    powers = vocab_size ** torch.arange(samples.shape[1])  # n-grams as integers; V^3 fits 63 bits up to V = 2M
    seen, counts = (samples * powers).sum(1).unique(return_counts=True)
    known, known_counts = (reference * powers).sum(1).unique(return_counts=True)
    place = torch.searchsorted(known, seen).clamp_max(len(known) - 1)
    q = torch.where(known[place] == seen, known_counts[place].double() / len(reference), 0.0)
    smooth = (1 - smoothing) * q + smoothing * math.exp(-samples.shape[1] * math.log(vocab_size))
    p = counts.double() / len(samples)
    return float((p * (p / smooth).log2()).sum())


def _ngram_kl(texts: Texts, reference: Reference) -> MetricValue:
    samples, train = extract_ngrams(texts.tokens, ORDER).flatten(0, 1), extract_ngrams(reference.train_tokens, ORDER)
    if isinstance(reference.tokenizer, WithEOS):
        samples, train = (ngrams[_within_texts(ngrams, reference.tokenizer.eos)] for ngrams in (samples, train))
    return MetricValue(ngram_divergence(samples, train, reference.tokenizer.size) if len(samples) else math.nan)


def _within_texts(ngrams: Int64[Tensor, "N n"], eos: int) -> Bool[Tensor, " N"]:
    """Whether each n-gram lies within one text: no token but the last is EOS."""
    return (ngrams[:, :-1] != eos).all(1)


def known_word_rate(text: str, vocabulary: frozenset[str]) -> float:
    """The fraction of a text's words in the vocabulary, without the first and the last, which may be cut."""
    words = text.split()[1:-1]
    return sum(word in vocabulary for word in words) / len(words) if words else 0.0


def _known_words(texts: Texts, reference: Reference) -> MetricValue:
    return MetricValue.mean(torch.tensor([known_word_rate(text, reference.words) for text in texts.strings]))


METRICS = [
    Metric(
        "spelling", "spelling", "share", "higher",
        "words (between white space, without the first and the last) that occur in the training text", _known_words,
    ),
    Metric(
        "ngram-kl", f"{ORDER}-gram KL", "bits", "as real text",
        f"KL(samples || training text) of runs of {ORDER} tokens, {SMOOTHING:.0%} of the latter spread evenly",
        _ngram_kl,
    ),
]  # fmt: skip
