"""Dirichlet flow matching (Stark et al. 2024): the law of the shares is Dirichlet(1 + (α - 1) e_x), and α grows from 1.

The flow to token k moves z along e_k - z so that its marginals are these laws (equations 11 to 15),

    u_k = C(z_k, α) (e_k - z),      C(y, α) = -∂_α I_y(α, K - 1) · B(α, K - 1) / ((1 - y)^(K-1) y^(α-1)),

I the regularised incomplete beta function: I_{z_k}(α, K - 1) stays what it is. The flow itself leaves no room for
Girsanov's theorem. But for every h(α) > 0 the diffusion with the drift u_k + ½ h (α - 1)(e_k - z) + ½ h (1 - K z) and
Wright-Fisher noise of variance h has the same marginals, since G ∇ log q(z | k) = (α - 1)(e_k - z). So with
w_k = C(z_k, α) + ½ h (α - 1)

    -log p(x) ≤ ∫ E |w_x (e_x - z) - Σ_k p_k w_k (e_k - z)|² / 2h dα + E[-log p(x | z)]        (norm of G⁻¹)

is a bound for the sampler that adds this noise. It is not tight, for C depends on z_k: 4% to 5% above the entropy with
an exact posterior. Without noise (`churn` = 0) there is only a surrogate, the information that appears along the flow,

    ∫ E[u_x · ∇ log p(x | z)] dα = ∫ E[C(z_x, α) (α - 1)(1 - p_x) / z_x] dα,

which is the entropy for exact posteriors.
"""

import math

import numpy as np
import torch
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.noise import Noise, running_sum
from logosphere.processes.flow import Path, Share
from logosphere.shapes import Float
from logosphere.types import Kind, Logits, State

LOWEST, ACROSS, ALONG = -20.0, 512, 128
"""The table reaches down to log y = -20 in so many steps, and from α = 1 to the last in so many."""
SCALE, CAP = 1.7, 0.2
"""h = 1.7 E[C] / (α - 1 + 0.2): of those tried, the noise with the smallest bound (docs/LOG.md)."""


class DirichletPath(Path):
    """From the uniform law of shares to Dirichlet(1 + (last - 1) e_x)."""

    offset = None
    smooth = True
    table: Tensor
    noisiness: Tensor

    def __init__(self, choices: int, last: float, *, churn: float = 1.0):
        super().__init__()
        self.width = self.choices = choices
        self.last, self.churn = last, churn
        self.deterministic = churn == 0
        self.kind: Kind = "bound" if churn > 0 else "surrogate"
        alphas = torch.linspace(1, last, ALONG + 1, dtype=torch.float64)
        table = speeds(choices, alphas)
        h = SCALE * mean_speeds(choices, alphas, table) / (alphas - 1 + CAP)
        self.register_buffer("table", table.float().flatten(), persistent=False)
        self.register_buffer("noisiness", (churn * h).float(), persistent=False)

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.even(batch, length, self.choices, noise)

    def _alpha(self, s: Share) -> Float[Tensor, "..."]:
        return 1 + (self.last - 1) * s

    def at(self, u: State, s: Share, noise: Noise) -> State:
        return simplex.favoured(u, simplex.gamma(self._alpha(s), noise), noise)

    def evidence(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return (self._alpha(s) - 1)[..., None] * z.clamp_min(simplex.TINY).log()

    def speed(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        """C(z_k, α), from the table of C / y, linear in log y and α."""
        place = (1 - z.clamp_min(math.exp(LOWEST)).log() / LOWEST) * ACROSS
        left = place.long().clamp(0, ACROSS - 1)
        low, share = self._between(s)
        at = (low * (ACROSS + 1))[..., None] + left
        before, after = self.table[at], self.table[at + 1]
        at = at + ACROSS + 1
        rows = torch.lerp(before, after, place - left), torch.lerp(self.table[at], self.table[at + 1], place - left)
        return z * torch.lerp(*rows, share[..., None])

    def _between(self, s: Share) -> tuple[Tensor, Tensor]:
        place = s * ALONG
        low = place.long().clamp(0, ALONG - 1)
        return low, place - low

    def noise(self, s: Share) -> Float[Tensor, "..."]:
        """h(α)."""
        low, share = self._between(s)
        return torch.lerp(self.noisiness[low], self.noisiness[low + 1], share)

    def nats(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        gained, p, speed = self._alpha(s) - 1, out.softmax(-1), self.speed(z, s)
        width = length * (self.last - 1)
        if self.churn == 0:
            share = (z * u).sum(-1).clamp_min(simplex.TINY)
            return width * gained * (speed * u).sum(-1) * (1 - (p * u).sum(-1)) / share
        h = self.noise(s)
        weights = (u - p) * (speed + (0.5 * h * gained)[..., None])
        return width * simplex.squared_norm(weights, z) / (2 * h)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """Drift, then noise as it is in the middle of the step."""
        step = (self.last - 1) * (then - s).clamp_min(0)
        if self.churn == 0:
            return simplex.drifted(z, out.softmax(-1) * self.speed(z, s) * step[..., None])
        h = self.noise((s + then) / 2)
        pull = self.speed(z, s) + (0.5 * h * (self._alpha(s) - 1))[..., None]
        z = simplex.drifted(z, out.softmax(-1) * pull * step[..., None])
        return simplex.diffused(z, (h * step)[..., None], noise)

    def flow(self, out: Logits, z: State, s: Share) -> State:
        weights = (self.last - 1) * out.softmax(-1) * self.speed(z, s)
        return weights - weights.sum(-1, keepdim=True) * z

    def onto(self, z: State) -> State:
        return simplex.onto(z)

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        return torch.zeros_like(z[..., 0])

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """Of Dirichlet(1 + m e_x), m = α - 1, over the even law: z_x^m Γ(K + m) / (Γ(1 + m) Γ(K))."""
        m, choices = self.last - 1, self.choices
        scale = math.lgamma(choices + m) - math.lgamma(1 + m) - math.lgamma(choices)
        return m * (z * u).sum(-1).clamp_min(simplex.TINY).log() + scale


def speeds(choices: int, alphas: Float[Tensor, "A"]) -> Float[Tensor, "A X"]:
    """C(y, α) / y at log y from -20 to 0, by Gauss-Legendre quadrature in log y, 8 points to a step.

    -∂_α I · B(α, b) = ∫_0^y (E log x - log x) x^(α-1) (1 - x)^(b-1) dx is integrated from whichever end is nearer: the
    whole integral is 0. Up to exp(-20) it has its closed form, for there 1 - x is 1.
    """
    b = choices - 1
    edges = torch.linspace(LOWEST, 0, ACROSS + 1, dtype=torch.float64)
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(8))
    half = edges.diff()[:, None] / 2
    log_x = (edges[:-1, None] + half) + half * points
    alpha = alphas.double()[:, None, None]
    mean = torch.digamma(alpha) - torch.digamma(alpha + b)
    integrand = (mean - log_x) * (alpha * log_x + (b - 1) * torch.log1p(-log_x.exp())).exp()
    parts = (integrand * half * weights).sum(-1)
    alpha, mean = alpha[:, 0], mean[:, 0]
    head = (alpha * LOWEST).exp() * ((mean - LOWEST) / alpha + 1 / alpha.square())
    from_below = torch.cat([head, head + running_sum(parts, 1)], 1)
    from_above = -torch.cat([running_sum(parts.flip(1), 1).flip(1), torch.zeros_like(head)], 1)
    integral = torch.where(from_below.abs() < from_above.abs(), from_below, from_above)
    y = edges[:-1].exp()
    inside = integral[:, :-1] / (alpha * edges[:-1] + b * torch.log1p(-y)).exp()
    return torch.cat([inside, -mean / b], 1)  # at y = 1 by its limit


def mean_speeds(choices: int, alphas: Float[Tensor, "A"], table: Float[Tensor, "A X"]) -> Float[Tensor, "A"]:
    """E[C(y, α)] for y ~ Beta(α, K - 1), the share of the token."""
    log_y = torch.linspace(LOWEST, 0, ACROSS + 1, dtype=torch.float64)[:-1]
    log_density = alphas[:, None] * log_y + (choices - 2) * torch.log1p(-log_y.exp())
    weights = log_density.softmax(1)
    return (weights * log_y.exp() * table[:, :-1]).sum(1)


def clear_alpha(choices: int) -> float:
    """The last α: the paper's 8, or more where so many tokens need it to be told apart."""
    return max(8.0, 2 + 2 * math.log(choices))
