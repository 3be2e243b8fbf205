"""The death process behind Wright-Fisher and Jacobi diffusions (Griffiths 1979; Ethier and Griffiths 1993).

A share that diffuses with mutation θ (its noise is Beta(1, θ - 1)) and was Beta(1 + M, θ - 1) at τ = 0 is
Σ_m d_m(τ) Beta(1 + m, θ - 1) later, m a pure death process from M with rates m (m + θ - 1)/2. So with M finite
marginals are finite sums; and likewise for Beta(1, θ - 1 + M), with the same d_m.
"""

import torch
from torch import Tensor

from logosphere.types import Float


def lineage_probabilities(
    times: Float[Tensor, " T"], last: int, theta: float, pace: float = 1.0
) -> Float[Tensor, "T n"]:
    """d_m(τ) for m = 0 … M: exp(τ A) from M, with time run `pace` times as fast."""
    m = torch.arange(last + 1, dtype=torch.float64)
    rates = pace * m * (m + theta - 1) / 2
    generator = torch.diag(-rates) + torch.diag(rates[1:], 1)  # column m flows to row m - 1
    return torch.linalg.matrix_exp(times.double()[:, None, None] * generator)[..., -1].clamp_min(0)


def chi_square(lives: Float[Tensor, "... n"], log_c: Float[Tensor, " N"]) -> Float[Tensor, "..."]:
    """∫ q²/noise - 1 = Σ_mn d_m d_n c_m c_n / c_(m+n) - 1, without the terms of m = 0 or n = 0, which cancel.

    c_m is what turns y^m into a density over the noise; `log_c` goes up to 2M.
    """
    last = lives.shape[-1] - 1
    m = torch.arange(1, last + 1)
    ratio = (log_c[1 : last + 1, None] + log_c[1 : last + 1] - log_c[m[:, None] + m]).exp() - 1
    return torch.einsum("...m,mn,...n->...", lives[..., 1:], ratio, lives[..., 1:])


def log_normalisers(count: int, theta: float) -> Float[Tensor, " n"]:
    """log c_m = log B(1, θ - 1)/B(1 + m, θ - 1) = log Γ(θ + m)/(Γ(1 + m) Γ(θ)) for m = 0 … count."""
    m = torch.arange(count + 1, dtype=torch.float64)
    return torch.lgamma(m + theta) - torch.lgamma(m + 1) - torch.lgamma(torch.tensor(theta, dtype=torch.float64))


def polynomial(
    terms: Float[Tensor, "... n"], y: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """P(y) = Σ_m terms_m y^m and y P'(y), by Horner's rule; all terms are positive."""
    value, slope = torch.zeros_like(y), torch.zeros_like(y)
    for m in reversed(range(terms.shape[-1])):
        slope = slope * y + m * terms[..., m]
        value = value * y + terms[..., m]
    return value, slope


def even_pace(times: Float[Tensor, " T"], mean: Float[Tensor, " T"], lowest: float, nodes: int) -> Float[Tensor, " n"]:
    """τ at so many equal steps of the mean number of lives, from `lowest` up to all of them at τ = 0."""
    wanted = torch.linspace(0, 1, nodes + 1, dtype=torch.float64) * (mean[0] - lowest) + lowest
    right = torch.searchsorted(-mean, -wanted).clamp(1, len(times) - 1)
    share = ((mean[right - 1] - wanted) / (mean[right - 1] - mean[right])).clamp(0, 1)
    return torch.lerp(times[right - 1], times[right], share)


def between(table: Float[Tensor, "n ..."], s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Rows of a table at shares from 0 to 1 of its length, linear in between."""
    place = s * (len(table) - 1)
    low = place.long().clamp(0, len(table) - 2)
    share = (place - low).to(table).view((*s.shape, *[1] * (table.dim() - 1)))
    return torch.lerp(table[low], table[low + 1], share)


def steepness(times: Float[Tensor, " n"], s: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """-dτ/ds."""
    low = (s * (len(times) - 1)).long().clamp(0, len(times) - 2)
    return (times[low] - times[low + 1]) * (len(times) - 1)
