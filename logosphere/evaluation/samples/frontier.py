"""A MAUVE-style score without a judge: how alike are two sets of texts, once both are sorted into the same bins?

Pillutla et al. 2021 (MAUVE), with hashed n-grams in place of a language model's features: k-means bins of both sets
together, then the area under the frontier of exp(-c KL(q || r)) against exp(-c KL(p || r)), r = λ p + (1-λ) q.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts
from logosphere.evaluation.samples.variety import grams
from logosphere.noise import Drawn
from logosphere.shapes import Float, Int64
from logosphere.types import Tokens

BUCKETS, ORDERS = 1024, (1, 2, 3, 4)
SCALE = 5.0
"""MAUVE's c."""
ROUNDS = 20
FRONTIER = 64
"""Values of λ between 0 and 1."""


def features(tokens: Tokens) -> Float[Tensor, "B F"]:
    """√(counts) of n-grams of orders 1 to 4, hashed into buckets, each order of length 1."""
    parts = []
    for n in ORDERS:
        odd = torch.tensor([(2 * i + 1) * 0x9E3779B1 for i in range(n)])
        mixed = ((grams(tokens, n) + 1) * odd).sum(-1) * 0x2545F4914F6CDD1D
        buckets = (mixed >> 40) % BUCKETS
        counts = torch.zeros(len(tokens), BUCKETS, dtype=torch.float64)
        counts.scatter_add_(1, buckets, torch.ones_like(buckets, dtype=torch.float64))
        parts.append((counts / counts.sum(1, keepdim=True)).sqrt())
    return torch.cat(parts, 1)


def clusters(points: Float[Tensor, "N F"], k: int, rng: torch.Generator) -> Int64[Tensor, "N"]:
    """k-means (Lloyd), begun by k-means++ (Arthur and Vassilvitskii 2007): the cluster of each point."""
    u = Drawn(rng, 1).uniform(1, k)[0]
    centres = points[[int(u[0] * len(points))]]
    for i in range(1, k):
        far = torch.cdist(points, centres).amin(1).square()
        chosen = torch.searchsorted(far.cumsum(0), u[i] * far.sum()).clamp_max(len(points) - 1)
        centres = torch.cat([centres, points[chosen][None]])
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(1)
        full = nearest.bincount(minlength=k)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        centres = torch.where(full[:, None] > 0, sums / full.clamp_min(1)[:, None], centres)
    return torch.cdist(points, centres).argmin(1)


def area(p: Float[Tensor, "k"], q: Float[Tensor, "k"], scale: float = SCALE) -> float:
    """The area under the divergence frontier of two laws: 1 when they agree, 0 when they share nothing."""
    mix = torch.linspace(0, 1, FRONTIER + 2, dtype=torch.float64)[1:-1, None]
    r = mix * p + (1 - mix) * q

    def closeness(law: Tensor) -> Tensor:
        ratio = torch.where(law > 0, law / r.clamp_min(1e-300), 1.0)
        return torch.exp(-scale * (law * ratio.log()).sum(1))

    # From λ = 0, where r = q, to λ = 1, where r = p; flipped, so that x rises from (0, 1) to (1, 0).
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    x, y = torch.cat([one, closeness(q), zero]).flip(0), torch.cat([zero, closeness(p), one]).flip(0)
    return float(torch.trapezoid(y, x))


def likeness(samples: Float[Tensor, "N F"], real: Float[Tensor, "M F"], rng: torch.Generator) -> float:
    """The area for the features of two sets of texts, sorted into one bin for every ten of them, at least 2."""
    both = torch.cat([samples, real])
    k = max(2, min(len(both) // 10, 500))
    bins = clusters(both, k, rng)
    p, q = (part.bincount(minlength=k).double() / len(part) for part in (bins[: len(samples)], bins[len(samples) :]))
    return area(p, q)


def _measure(texts: Texts, reference: Reference) -> Figure:
    made, real = features(texts.tokens), features(reference.real.tokens)
    return Figure(likeness(made, real, torch.Generator().manual_seed(0)))


def seen_by(name: str, embed: Callable[[Sequence[str]], Float[Tensor, "N F"]]) -> Metric:
    """The same over the features that an encoder has of texts; it should be one that the generator never used."""

    def measure(texts: Texts, reference: Reference) -> Figure:
        made, real = embed(texts.strings).double(), embed(reference.real.strings).double()
        return Figure(likeness(made, real, torch.Generator().manual_seed(0)))

    return Metric(
        f"frontier:{name}", f"likeness by {name}", "area", "higher",
        f"area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of {name}", measure,
    )  # fmt: skip


METRICS = [
    Metric(
        "frontier", "likeness", "area", "higher",
        "area under the divergence frontier (MAUVE) of samples and held-out text over k-means bins of hashed n-grams",
        _measure,
    ),
]  # fmt: skip
