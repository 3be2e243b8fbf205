"""The Riemannian normal X = exp_μ(ρ z), z normal in the tangent space at μ: RDLM's approximation of a bridge's law.

Its mean is E[cos ρ|z|] μ with |z|² ~ χ²_n on S^n, and

    E cos(ρ|z|) = ₁F₁(n/2; 1/2; -ρ²/2)

The paper (its equation 115) has a further factor exp(-ρ²/2), which makes ρ too small by about √(n/(n+1)).
"""

import math

import torch
from torch import Tensor

from logosphere.geometry.bridges import Law, chi_square_quantiles
from logosphere.shapes import Float


def mean_cosine(rho: Float[Tensor, "N"], n: int, *, published: bool = False) -> Float[Tensor, "N"]:
    """₁F₁(n/2; 1/2; -ρ²/2) as the mean of cos(ρ|z|) over 4,096 quantiles of |z|; times exp(-ρ²/2) as published."""
    u = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
    length = chi_square_quantiles(n)(u).sqrt()
    mean = torch.cos(rho.double()[:, None] * length).mean(1)
    return mean * torch.exp(-rho.double().square() / 2) if published else mean


def matching_rho(mean: Float[Tensor, "N"], n: int, *, published: bool = False) -> Float[Tensor, "N"]:
    """The ρ whose mean cosine is this, by bisection below the angle at which the mean would be negative."""
    low = torch.zeros_like(mean, dtype=torch.float64)
    high = torch.full_like(low, math.pi / 2 / math.sqrt(n))
    for _ in range(50):
        middle = (low + high) / 2
        above = mean_cosine(middle, n, published=published) > mean
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def moment_matched(law: Law, d: int, *, published: bool = False, seed: int = 0) -> Law:
    """At each time the Riemannian normal with the mean of the law, as pairs (a, b)."""
    mean = torch.stack([law.a.double().mean(1), law.b.double().mean(1)])
    length = mean.norm(dim=0)
    mean_a, mean_b = (mean / length)[..., None]
    rho = matching_rho(length, d - 1, published=published)[:, None]
    u = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(law.a.shape[1], dtype=torch.float64)
    along = torch.special.ndtri(u[:, 0].clamp(1e-12, 1 - 1e-12))  # of the geodesic, within the plane of e and u
    angle = rho * (along.square() + chi_square_quantiles(d - 2)(u[:, 1])).sqrt()
    forward = rho * along * torch.sinc(angle / math.pi)
    a, b = angle.cos() * mean_a + forward * mean_b, angle.cos() * mean_b - forward * mean_a
    return Law(law.times, a.float(), b.float())
