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
import torch.nn.functional as F
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex.process import Path, Share
from logosphere.rng import Noise
from logosphere.types import Float, Int64, Kind, Logits, State

LOWEST, ACROSS, ALONG = -20.0, 512, 128
"""The table reaches down to log y = -20 in so many steps, and from α = 1 to the last in so many."""
PACE = 2.0
"""The mean of α - 1 in training, in the paper."""
POINTS = 48
"""Nodes of the quadrature from above."""
SCALE, CAP = 1.7, 0.2
"""h = 1.7 E[C] / (α - 1 + 0.2): of those tried, the noise with the smallest bound (docs/LOG.md)."""


class DirichletPath(Path):
    """From the uniform law of shares to Dirichlet(1 + (last - 1) e_x)."""

    offset = None
    smooth = True
    table: Tensor
    noisiness: Tensor

    def __init__(self, num_classes: int, last: float, *, churn: float = 1.0, endless: bool = False):
        """With `endless` training also sees α beyond the last: α - last ~ 2 Exp(1)."""
        super().__init__()
        self.tail = PACE / (last - 1) if endless else 0.0
        self.width = self.num_classes = num_classes
        self.last, self.churn = last, churn
        self.deterministic = churn == 0
        self.kind: Kind = "bound" if churn > 0 else "surrogate"
        alphas = torch.linspace(1, last, ALONG + 1, dtype=torch.float64)
        table = speeds(num_classes, alphas)
        h = SCALE * mean_speeds(num_classes, alphas, table) / (alphas - 1 + CAP)
        self.register_buffer("table", table.float().flatten(), persistent=False)
        self.register_buffer("noisiness", (churn * h).float(), persistent=False)

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def alpha(self, s: Share) -> Float[Tensor, "..."]:
        return 1 + (self.last - 1) * s

    def at(self, u: State, s: Share, noise: Noise) -> State:
        return simplex.sample_dirichlet_corner(u, simplex.sample_gamma(self.alpha(s), noise), noise)

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return (self.alpha(s) - 1)[..., None] * z.clamp_min(simplex.TINY).log()

    def speed(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        """C(z_k, α), from the table of C / y, linear in log y and α."""
        place = (1 - z.clamp_min(math.exp(LOWEST)).log() / LOWEST) * ACROSS
        left = place.long().clamp(0, ACROSS - 1)
        low, share = self._between(s)
        at = (low * (ACROSS + 1))[..., None] + left
        table, within = self.table.to(z.dtype), place - left
        earlier = torch.lerp(table[at], table[at + 1], within)
        at = at + ACROSS + 1
        later = torch.lerp(table[at], table[at + 1], within)
        return z * torch.lerp(earlier, later, share[..., None].to(z.dtype))

    def _between(self, s: Share) -> tuple[Tensor, Tensor]:
        place = (s * ALONG).clamp_max(ALONG)
        low = place.long().clamp(0, ALONG - 1)
        return low, place - low

    def noise(self, s: Share) -> Float[Tensor, "..."]:
        """h(α)."""
        low, share = self._between(s)
        h = self.noisiness.to(s.dtype)
        return torch.lerp(h[low], h[low + 1], share)

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        gained, p, speed = self.alpha(s) - 1, out.softmax(-1), self.speed(z, s)
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
            return simplex.drift_step(z, out.softmax(-1) * self.speed(z, s) * step[..., None])
        h = self.noise((s + then) / 2)
        strength = self.speed(z, s) + (0.5 * h * (self.alpha(s) - 1))[..., None]
        z = simplex.drift_step(z, out.softmax(-1) * strength * step[..., None])
        return simplex.diffusion_step(z, (h * step)[..., None], noise)

    def flow(self, out: Logits, z: State, s: Share) -> State:
        weights = (self.last - 1) * out.softmax(-1) * self.speed(z, s)
        return weights - weights.sum(-1, keepdim=True) * z

    def paced(self, share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return share

    def euler(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """Euler's step, projected onto the simplex should it leave it."""
        return simplex.project_euclidean(z + (then - s).clamp_min(0)[..., None] * self.flow(out, z, s))

    def decided(self, out: Logits, z: State, s: Share) -> Int64[Tensor, "..."]:
        """The likeliest token of the last prediction."""
        return out.argmax(-1)

    def onto(self, z: State) -> State:
        return simplex.project(z)

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        return torch.zeros_like(z[..., 0])

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """Of Dirichlet(1 + m e_x), m = α - 1, over the even law: z_x^m Γ(K + m) / (Γ(1 + m) Γ(K))."""
        m, num_classes = self.last - 1, self.num_classes
        scale = math.lgamma(num_classes + m) - math.lgamma(1 + m) - math.lgamma(num_classes)
        return m * (z * u).sum(-1).clamp_min(simplex.TINY).log() + scale


def speeds(num_classes: int, alphas: Float[Tensor, " A"]) -> Float[Tensor, "A X"]:
    """C(y, α) / y at log y from -20 to 0, to a relative error below 1e-6.

    With m = E log x, -∂_α I · B(α, b) is ∫_0^y (m - log x) x^(α-1) (1 - x)^(b-1) dx, and the whole integral is 0. So it
    is taken from below where log y < m and from above elsewhere: integrands are positive, and nothing cancels. Both
    are divided by y^α (1 - y)^b before they are summed, so that nothing underflows however many tokens there are.
    """
    edges = torch.linspace(LOWEST, 0, ACROSS + 1, dtype=torch.float64)
    alpha = alphas.double()[:, None]
    mean = torch.digamma(alpha) - torch.digamma(alpha + num_classes - 1)
    below, above = _from_below(edges, alpha, mean, num_classes - 1), _from_above(edges, alpha, mean, num_classes - 1)
    return torch.where(edges < mean, below, above)


def _from_below(edges: Tensor, alpha: Tensor, mean: Tensor, b: int) -> Float[Tensor, "A X"]:
    """By Gauss-Legendre quadrature in log x, 8 points to a step; up to exp(-20) (1 - x)^(b-1) is 1 - (b - 1) x."""
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(8))
    half = edges.diff()[:, None] / 2
    log_x = (edges[:-1, None] + half) + half * points
    density = alpha[..., None] * log_x + (b - 1) * (-torch.expm1(log_x)).log()
    # Beyond the mean the integrand is negative and not used.
    parts = (density + (mean[..., None] - log_x).clamp_min(1e-300).log() + (half * weights).log()).logsumexp(-1)
    first, second = ((mean - LOWEST) / a + 1 / a.square() for a in (alpha, alpha + 1))
    head = alpha * LOWEST + (first - (b - 1) * math.exp(LOWEST) * second).log()
    total = torch.cat([head, parts], 1).logcumsumexp(1)
    inside = total[:, :-1] - alpha * edges[:-1] - b * (-torch.expm1(edges[:-1])).log()
    return F.pad(inside.exp(), (0, 1))


def _from_above(edges: Tensor, alpha: Tensor, mean: Tensor, b: int) -> Float[Tensor, "A X"]:
    """By Gauss-Jacobi quadrature: with x = y + (1 - y) r the weight is b (1 - r)^(b-1), whatever y is."""
    r, weights = gauss_jacobi(b, POINTS)
    y = edges.exp()[:, None]
    log_x = torch.log(y + (1 - y) * r)
    found = torch.empty(len(alpha), len(edges), dtype=torch.float64)
    for row, (a, m) in enumerate(zip(alpha[:, 0], mean[:, 0], strict=True)):  # one α at a time, to save memory
        grown = ((a - 1) * (log_x - edges[:, None])).exp()
        found[row] = ((log_x - m) * grown * weights).sum(1) / (b * y[:, 0])
    return found


def gauss_jacobi(b: int, points: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Nodes and weights for ∫_0^1 f(r) b (1 - r)^(b-1) dr (Golub and Welsch 1969).

    Weights are one over Σ p_k² of the orthonormal polynomials p_k: small ones then keep their digits.
    """
    n = torch.arange(points, dtype=torch.float64)
    c = b - 1  # Jacobi polynomials of (c, 0) on [-1, 1], moved to [0, 1]
    middle = torch.where(n + c > 0, -(c**2) / ((2 * n + c) * (2 * n + c + 2)).clamp_min(1), 0.0)
    k = n[1:]
    beside = 4 * k * (k + c) * k * (k + c) / ((2 * k + c) ** 2 * (2 * k + c + 1) * (2 * k + c - 1))
    diagonal, off = (1 + middle) / 2, beside.sqrt() / 2
    nodes = torch.linalg.eigvalsh(torch.diag(diagonal) + torch.diag(off, 1) + torch.diag(off, -1))
    before, now = torch.zeros_like(nodes), torch.ones_like(nodes)
    total = torch.ones_like(nodes)
    for i in range(points - 1):
        step = (nodes - diagonal[i]) * now - (off[i - 1] * before if i else 0.0)
        before, now = now, step / off[i]
        total = total + now.square()
    return nodes, 1 / total


def mean_speeds(num_classes: int, alphas: Float[Tensor, " A"], table: Float[Tensor, "A X"]) -> Float[Tensor, " A"]:
    """E[C(y, α)] for y ~ Beta(α, K - 1), the share of the token."""
    log_y = torch.linspace(LOWEST, 0, ACROSS + 1, dtype=torch.float64)[:-1]
    log_density = alphas[:, None] * log_y + (num_classes - 2) * torch.log1p(-log_y.exp())
    weights = log_density.softmax(1)
    return (weights * log_y.exp() * table[:, :-1]).sum(1)


def default_alpha(num_classes: int) -> float:
    """The last α: the paper's 8, or more where so many tokens need it to be told apart."""
    return max(8.0, 2 + 2 * math.log(num_classes))
