"""Sample metrics: diversity, n-grams and words compared with the training text, memorisation, and their registry."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from logosphere.data.tokenizers import WithEOS
from logosphere.errors import UserError, suggest
from logosphere.evaluation.ngram_mauve import NGRAM_MAUVE
from logosphere.evaluation.scorers import Scorer
from logosphere.evaluation.texts import Metric, MetricValue, Reference, Texts, extract_ngrams
from logosphere.types import Bool, Float, Int64, Tokens

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
    """Return the fraction of distinct n-grams among all n-grams of all samples (Li et al. 2016)."""
    ngrams = extract_ngrams(tokens, n).flatten(0, 1)
    return len(ngrams.unique(dim=0)) / len(ngrams)


def repetition_rate(tokens: Tokens, n: int = REPETITION_ORDER) -> Float[Tensor, " B"]:
    """1 - (distinct n-grams) / (all n-grams) within each sample (Welleck et al. 2020, rep-n)."""
    return torch.tensor([1 - len(ngrams.unique(dim=0)) / len(ngrams) for ngrams in extract_ngrams(tokens, n)]).double()


def _distinct_metric(n: int) -> Metric:
    def measure(texts: Texts, reference: Reference) -> MetricValue:
        return MetricValue(distinct_rate(texts.tokens, n))

    return Metric(
        f"distinct-{n}", f"distinct {n}-grams", "fraction", "as real text",
        f"different runs of {n} tokens among all runs of {n} in all samples; falls with the number of samples", measure,
    )  # fmt: skip


ORDER = 3
SMOOTHING = 0.01
"""Weight of the uniform distribution mixed into the reference, so that unseen n-grams cost a finite number of bits."""


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
    """Return the fraction of a text's words in the vocabulary, without the first and the last, which may be cut."""
    words = text.split()[1:-1]
    return sum(word in vocabulary for word in words) / len(words) if words else 0.0


def _known_words(texts: Texts, reference: Reference) -> MetricValue:
    return MetricValue.mean(torch.tensor([known_word_rate(text, reference.words) for text in texts.strings]))


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


METRICS: list[Metric] = [
    Metric(
        "entropy", "entropy", "bits", "as real text",
        "entropy of the frequencies of tokens within one sample, averaged over samples",
        lambda texts, reference: MetricValue.mean(token_entropies(texts.tokens)),
    ),
    _distinct_metric(4),
    _distinct_metric(8),
    Metric(
        "repetition", "repetition", "fraction", "as real text",
        f"runs of {REPETITION_ORDER} tokens that occurred earlier in the same sample",
        lambda texts, reference: MetricValue.mean(repetition_rate(texts.tokens)),
    ),
    Metric(
        "spelling", "known words", "fraction", "higher",
        "words (between white space, without the first and the last) that occur in the training text", _known_words,
    ),
    Metric(
        "ngram-kl", f"{ORDER}-gram KL", "bits", "as real text",
        f"KL(samples || training text) of runs of {ORDER} tokens, {SMOOTHING:.0%} of the latter uniform",
        _ngram_kl,
    ),
    NGRAM_MAUVE,
    Metric(
        f"overlap-{OVERLAP_ORDER}", f"{OVERLAP_ORDER}-gram overlap", "fraction", "as real text",
        f"runs of {OVERLAP_ORDER} tokens, without ends, that occur in the training text, averaged over samples",
        _overlap_rate,
    ),
    Metric(
        "memorised", "memorised", "fraction", "as real text",
        f"runs of {COPY_ORDER} tokens that occur in the training text", _memorised_rate,
    ),
    Metric(
        "longest-copy", "longest copy", "tokens", "as real text",
        "longest run of tokens of a sample that occurs in the training text, averaged over samples", _longest_copy,
    ),
]  # fmt: skip


def find_metrics(names: Sequence[str] = ()) -> list[Metric]:
    """Return metrics by name, or all of them. Entropy is always included, because quality alone rewards repetition."""
    known = {metric.name for metric in METRICS}
    for name in names:
        if name not in known:
            raise UserError(f"There is no metric '{name}'.{suggest(name, known)}")
    return [metric for metric in METRICS if not names or metric.name in names or metric.name == "entropy"]


def scorer_metric(scorer: Scorer) -> Metric:
    """Return the metric of bits per character under a scorer."""

    def measure(texts: Texts, reference: Reference) -> MetricValue:
        score = scorer.score(texts.strings)
        return MetricValue(score.value, score.error)

    return Metric(
        f"judge:{scorer.name}", f"scorer {scorer.name}", "bits per character", "as real text",
        f"-log2 p of {scorer.description}, per character; low values reward repetition, see entropy",
        measure, scorer.version,
    )  # fmt: skip


def measure_samples(texts: Texts, reference: Reference, chosen: Sequence[Metric]) -> dict[str, MetricValue]:
    """Return the values of the chosen metrics for a set of samples."""
    return {metric.name: metric.measure(texts, reference) for metric in chosen}
