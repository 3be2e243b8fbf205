"""Sample metrics and their registry: diversity, n-grams and words of the training text, memorisation, and MAUVE.

MAUVE (Pillutla et al. 2021) is computed with hashed n-grams, or an encoder's features, in place of a language model's.
Both sets of texts are binned by k-means together; the score is the area under the frontier of exp(-c KL(q || r))
against exp(-c KL(p || r)), r = λ p + (1-λ) q, where p and q are the frequencies of the bins.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logosphere.data.tokenizers import WithEOS
from logosphere.errors import UserError, suggest
from logosphere.evaluation.scorers import Scorer
from logosphere.evaluation.texts import Metric, MetricValue, Reference, Texts, extract_ngrams
from logosphere.rng import GeneratorNoise
from logosphere.types import Bool, Float, Int64, Tokens

BUCKETS, ORDERS = 1024, (1, 2, 3, 4)
SCALE = 5.0
"""MAUVE's c."""
ROUNDS = 20
FRONTIER = 64
"""Values of λ between 0 and 1."""
MAUVE_TEXTS = 250
"""The fewest samples and held-out texts that MAUVE is measured on. With 32 of each, its standard deviation over samples
is 0.07, and text of which a tenth of the characters was replaced scores like the text itself."""
RESAMPLES = 100
"""Bootstrap samples for the error of MAUVE."""


def ngram_features(tokens: Tokens) -> Float[Tensor, "B F"]:
    """√(frequencies) of n-grams of orders 1 to 4, hashed into buckets; each order has norm 1."""
    parts = []
    for n in ORDERS:
        odd = torch.tensor([(2 * i + 1) * 0x9E3779B1 for i in range(n)])
        hashes = ((extract_ngrams(tokens, n) + 1) * odd).sum(-1) * 0x2545F4914F6CDD1D
        buckets = (hashes >> 40) % BUCKETS
        counts = torch.zeros(len(tokens), BUCKETS, dtype=torch.float64)
        counts.scatter_add_(1, buckets, torch.ones_like(buckets, dtype=torch.float64))
        parts.append((counts / counts.sum(1, keepdim=True)).sqrt())
    return torch.cat(parts, 1)


def kmeans(points: Float[Tensor, "N F"], k: int, rng: torch.Generator) -> Int64[Tensor, " N"]:
    """The cluster of each point by k-means (Lloyd), initialised by k-means++ (Arthur and Vassilvitskii 2007)."""
    u = GeneratorNoise(rng, 1).uniform(1, k)[0]
    centres = points[[int(u[0] * len(points))]]
    for i in range(1, k):
        distances = torch.cdist(points, centres).amin(1).square()
        chosen = torch.searchsorted(distances.cumsum(0), u[i] * distances.sum()).clamp_max(len(points) - 1)
        centres = torch.cat([centres, points[chosen][None]])
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(1)
        sizes = nearest.bincount(minlength=k)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp_min(1)[:, None], centres)
    return torch.cdist(points, centres).argmin(1)


def frontier_area(p: Float[Tensor, " k"], q: Float[Tensor, " k"], scale: float = SCALE) -> float:
    """The area under the divergence frontier of two distributions: 1 for equal, 0 for disjoint ones."""
    mix = torch.linspace(0, 1, FRONTIER + 2, dtype=torch.float64)[1:-1, None]
    r = mix * p + (1 - mix) * q

    def closeness(f: Tensor) -> Tensor:
        ratio = torch.where(f > 0, f / r.clamp_min(1e-300), 1.0)
        return torch.exp(-scale * (f * ratio.log()).sum(1))

    # From λ = 0, where r = q, to λ = 1, where r = p; flipped, so that x rises from (0, 1) to (1, 0).
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    x, y = torch.cat([one, closeness(q), zero]).flip(0), torch.cat([zero, closeness(p), one]).flip(0)
    return float(torch.trapezoid(y, x))


def mauve(samples: Float[Tensor, "N F"], real: Float[Tensor, "M F"], rng: torch.Generator) -> MetricValue:
    """The frontier area of the features of two sets of texts, with one bin for every ten texts, at least 2.

    The error is that of the bootstrap (Efron 1979): both sets are drawn again with replacement, in the same bins.
    """
    both = torch.cat([samples, real])
    k = max(2, min(len(both) // 10, 500))
    bins = kmeans(both, k, rng)
    sets = bins[: len(samples)], bins[len(samples) :]

    def area(parts: Sequence[Int64[Tensor, " n"]]) -> float:
        p, q = (part.bincount(minlength=k).double() / len(part) for part in parts)
        return frontier_area(p, q)

    draws = [GeneratorNoise(rng, RESAMPLES).uniform(RESAMPLES, len(part)) for part in sets]
    areas = [
        area([part[(u[i] * len(part)).long()] for part, u in zip(sets, draws, strict=True)]) for i in range(RESAMPLES)
    ]
    return MetricValue(area(sets), float(torch.tensor(areas, dtype=torch.float64).std()))


def _measure_ngram_mauve(texts: Texts, reference: Reference) -> MetricValue:
    generated, real = ngram_features(texts.tokens), ngram_features(reference.real.tokens)
    return mauve(generated, real, torch.Generator().manual_seed(0))


def encoder_mauve(name: str, embed: Callable[[Sequence[str]], Float[Tensor, "N F"]]) -> Metric:
    """MAUVE over the features of an encoder, which should not be one that the generator was trained with."""

    def measure(texts: Texts, reference: Reference) -> MetricValue:
        generated, real = embed(texts.strings).double(), embed(reference.real.strings).double()
        return mauve(generated, real, torch.Generator().manual_seed(0))

    return Metric(
        f"frontier:{name}", f"MAUVE by {name}", "area", "higher",
        f"area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of {name}; "
        f"needs {MAUVE_TEXTS} of each", measure, min_texts=MAUVE_TEXTS,
    )  # fmt: skip


NGRAM_MAUVE = Metric(
    "frontier", "n-gram MAUVE", "area", "higher",
    "area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of hashed n-grams; "
    f"needs {MAUVE_TEXTS} of each",
    _measure_ngram_mauve, min_texts=MAUVE_TEXTS,
)  # fmt: skip


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
    count = min(len(texts.strings), len(reference.real.strings))
    for metric in chosen:
        if count < metric.min_texts:
            raise UserError(f"{metric.name} needs at least {metric.min_texts} samples and held-out texts, not {count}.")
    return {metric.name: metric.measure(texts, reference) for metric in chosen}
