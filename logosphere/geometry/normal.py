"""The Riemannian normal X = exp_μ(ρ z), z normal in the tangent space at μ: RDLM's approximation of a bridge's law.

Its mean is E[cos ρ|z|] μ with |z|² ~ χ²_n on S^n, and

    E cos(ρ|z|) = ₁F₁(n/2; 1/2; -ρ²/2)

The paper (its equation 115) has a further factor exp(-ρ²/2), which makes ρ too small by about √(n/(n+1)).
"""

import math

import torch
from torch import Tensor

from logosphere.geometry.bridges import Law, chi_square_quantiles
from logosphere.types import Float

TERMS = 40
"""Of the series of ₁F₁, whose terms fall fast for ρ√n ≤ π/2."""


def mean_cosine(rho: Float[Tensor, "..."], n: int, *, published: bool = False) -> Float[Tensor, "..."]:
    """₁F₁(n/2; 1/2; -x) = exp(-x) ₁F₁((1-n)/2; 1/2; x) with x = ρ²/2; times exp(-ρ²/2) as published."""
    x = rho.double().square() / 2
    term = total = torch.ones_like(x)
    for k in range(TERMS):
        term = term * ((1 - n) / 2 + k) / ((0.5 + k) * (k + 1)) * x
        total = total + term
    return total * torch.exp(-2 * x if published else -x)


def matching_rho(mean: Float[Tensor, " N"], n: int, *, published: bool = False) -> Float[Tensor, " N"]:
    """The ρ whose mean cosine is this, by bisection up to ρ√n = π/2, near which the mean cosine vanishes."""
    low = torch.zeros_like(mean, dtype=torch.float64)
    high = torch.full_like(low, math.pi / 2 / math.sqrt(n))
    for _ in range(50):
        middle = (low + high) / 2
        above = mean_cosine(middle, n, published=published) > mean
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def moment_matched(law: Law, d: int, *, published: bool = False, scale: float = 1.0, seed: int = 0) -> Law:
    """At each time the Riemannian normal with the mean of the law, as pairs (a, b); ρ is multiplied by `scale`."""
    mean_a, mean_b, rho = _matched(law, d, published=published, scale=scale)[..., None]
    u = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(law.a.shape[1], dtype=torch.float64)
    along = torch.special.ndtri(u[:, 0].clamp(1e-12, 1 - 1e-12))  # of the geodesic, within the plane of e and u
    angle = rho * (along.square() + chi_square_quantiles(d - 2)(u[:, 1])).sqrt()
    forward = rho * along * torch.sinc(angle / math.pi)
    a, b = angle.cos() * mean_a + forward * mean_b, angle.cos() * mean_b - forward * mean_a
    return Law(law.times, a.float(), b.float())


def normal_parameters(
    law: Law, d: int, start_cosine: float, *, published: bool = False, scale: float = 1.0
) -> Float[Tensor, "2 N"]:
    """α and ρ of the Riemannian normal at each time, for a start x₀ with cos φ₀ = <x₀, e>:

        μ = α (e - cos φ₀ x₀) / sin φ₀ + √(1 - α²) x₀

    with μ along E X, whose length is E cos(ρ|z|).
    """
    mean_a, mean_b, rho = _matched(law, d, published=published, scale=scale)
    alpha = mean_a * math.sqrt(1 - start_cosine**2) - mean_b * start_cosine
    return torch.stack([alpha.clamp(0, 1), rho])


def _matched(law: Law, d: int, *, published: bool, scale: float) -> Float[Tensor, "3 N"]:
    """The direction of E X in the frame of the law, and ρ."""
    mean = torch.stack([law.a.double().mean(1), law.b.double().mean(1)])
    length = mean.norm(dim=0)
    rho = scale * matching_rho(length, d - 1, published=published)
    return torch.cat([mean / length.clamp_min(1e-12), rho[None]])
