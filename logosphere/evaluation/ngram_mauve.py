"""MAUVE (Pillutla et al. 2021) with hashed n-grams, or an encoder's features, in place of a language model's.

Both sets of texts are binned by k-means together; the score is the area under the frontier of exp(-c KL(q || r))
against exp(-c KL(p || r)), r = λ p + (1-λ) q, where p and q are the frequencies of the bins.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logosphere.evaluation.texts import Metric, MetricValue, Reference, Texts, extract_ngrams
from logosphere.rng import GeneratorNoise
from logosphere.types import Float, Int64, Tokens

BUCKETS, ORDERS = 1024, (1, 2, 3, 4)
SCALE = 5.0
"""MAUVE's c."""
ROUNDS = 20
FRONTIER = 64
"""Values of λ between 0 and 1."""


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


def mauve(samples: Float[Tensor, "N F"], real: Float[Tensor, "M F"], rng: torch.Generator) -> float:
    """The frontier area of the features of two sets of texts, with one bin for every ten texts, at least 2."""
    both = torch.cat([samples, real])
    k = max(2, min(len(both) // 10, 500))
    bins = kmeans(both, k, rng)
    p, q = (part.bincount(minlength=k).double() / len(part) for part in (bins[: len(samples)], bins[len(samples) :]))
    return frontier_area(p, q)


def _measure_ngram_mauve(texts: Texts, reference: Reference) -> MetricValue:
    generated, real = ngram_features(texts.tokens), ngram_features(reference.real.tokens)
    return MetricValue(mauve(generated, real, torch.Generator().manual_seed(0)))


def encoder_mauve(name: str, embed: Callable[[Sequence[str]], Float[Tensor, "N F"]]) -> Metric:
    """MAUVE over the features of an encoder, which should not be one that the generator was trained with."""

    def measure(texts: Texts, reference: Reference) -> MetricValue:
        generated, real = embed(texts.strings).double(), embed(reference.real.strings).double()
        return MetricValue(mauve(generated, real, torch.Generator().manual_seed(0)))

    return Metric(
        f"frontier:{name}", f"MAUVE by {name}", "area", "higher",
        f"area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of {name}", measure,
    )  # fmt: skip


NGRAM_MAUVE = Metric(
    "frontier", "n-gram MAUVE", "area", "higher",
    "area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of hashed n-grams",
    _measure_ngram_mauve,
)  # fmt: skip
