"""Dirichlet flow matching (Stark et al. 2024): states are Dirichlet(1 + (α - 1) e_x), and α grows from 1.

The flow to token k moves z along e_k - z so that its marginals are these distributions (equations 11 to 15),

    u_k = C(z_k, α) (e_k - z),      C(y, α) = -∂_α I_y(α, K - 1) · B(α, K - 1) / ((1 - y)^(K-1) y^(α-1)),

I the regularised incomplete beta function: I_{z_k}(α, K - 1) is constant along the flow. Girsanov's theorem gives no
bound for the flow itself. But for every h(α) > 0 the diffusion with the drift u_k + ½ h (α - 1)(e_k - z) +
½ h (1 - K z) and Wright-Fisher noise of variance h has the same marginals, since G ∇ log q(z | k) = (α - 1)(e_k - z).
So with w_k = C(z_k, α) + ½ h (α - 1)

    -log p(x) ≤ ∫ E |w_x (e_x - z) - Σ_k p_k w_k (e_k - z)|² / 2h dα + E[-log p(x | z)]        (norm of G⁻¹)

is a bound for the sampler that adds this noise. It is not tight, because C depends on z_k: 4% to 5% above the entropy
with an exact posterior. Without noise (`churn` = 0) there is only a surrogate, the information gained along the flow,

    ∫ E[u_x · ∇ log p(x | z)] dα = ∫ E[C(z_x, α) (α - 1)(1 - p_x) / z_x] dα,

which is the entropy for exact posteriors.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex.process import ConditionalPath, DensityPath, EulerPath, Fraction
from logosphere.rng import Noise
from logosphere.types import Float, Kind, Logits, State

LOG_Y_MIN, Y_STEPS, ALPHA_STEPS = -20.0, 512, 128
"""The table of C covers log y from -20 to 0 and α from 1 to the last, in so many steps."""
MEAN_EXCESS = 2.0
"""The mean of α - 1 in training, in the paper."""
QUADRATURE_NODES = 48
NOISE_SCALE, NOISE_OFFSET = 1.7, 0.2
"""h = 1.7 E[C] / (α - 1 + 0.2): of those tried, the noise with the smallest bound (docs/LOG.md)."""


class DirichletPath(ConditionalPath, DensityPath, EulerPath):
    """From the uniform distribution on the simplex to Dirichlet(1 + (alpha_max - 1) e_x)."""

    offset = None
    smooth = True
    table: Tensor
    noise_table: Tensor

    def __init__(self, num_classes: int, alpha_max: float, *, churn: float = 1.0, unbounded: bool = False):
        """`churn` multiplies the noise h. With `unbounded` training draws α beyond the last: α - last ~ 2 Exp(1)."""
        super().__init__()
        self.tail = MEAN_EXCESS / (alpha_max - 1) if unbounded else 0.0
        self.width = self.num_classes = num_classes
        self.alpha_max, self.churn = alpha_max, churn
        self.deterministic = churn == 0
        self.kind: Kind = "bound" if churn > 0 else "surrogate"
        alphas = torch.linspace(1, alpha_max, ALPHA_STEPS + 1, dtype=torch.float64)
        table = speed_table(num_classes, alphas)
        h = NOISE_SCALE * mean_speeds(num_classes, alphas, table) / (alphas - 1 + NOISE_OFFSET)
        self.register_buffer("table", table.float().flatten(), persistent=False)
        self.register_buffer("noise_table", (churn * h).float(), persistent=False)

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def alpha(self, s: Fraction) -> Float[Tensor, "..."]:
        return 1 + (self.alpha_max - 1) * s

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        return simplex.sample_dirichlet_corner(u, simplex.sample_gamma(self.alpha(s), noise), noise)

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        return (self.alpha(s) - 1)[..., None] * z.clamp_min(simplex.TINY).log()

    def speed(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        """C(z_k, α), from the table of C / y, linear in log y and α."""
        position = (1 - z.clamp_min(math.exp(LOG_Y_MIN)).log() / LOG_Y_MIN) * Y_STEPS
        left = position.long().clamp(0, Y_STEPS - 1)
        low, within_alpha = self._alpha_position(s)
        index = (low * (Y_STEPS + 1))[..., None] + left
        table, within = self.table.to(z.dtype), position - left
        earlier = torch.lerp(table[index], table[index + 1], within)
        index = index + Y_STEPS + 1
        later = torch.lerp(table[index], table[index + 1], within)
        return z * torch.lerp(earlier, later, within_alpha[..., None].to(z.dtype))

    def _alpha_position(self, s: Fraction) -> tuple[Tensor, Tensor]:
        """The row of the table below s, and the position between it and the next."""
        position = (s * ALPHA_STEPS).clamp_max(ALPHA_STEPS)
        low = position.long().clamp(0, ALPHA_STEPS - 1)
        return low, position - low

    def noise_rate(self, s: Fraction) -> Float[Tensor, "..."]:
        """h(α)."""
        low, within = self._alpha_position(s)
        h = self.noise_table.to(s.dtype)
        return torch.lerp(h[low], h[low + 1], within)

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        excess, p, speed = self.alpha(s) - 1, out.softmax(-1), self.speed(z, s)
        width = length * (self.alpha_max - 1)
        if self.churn == 0:
            z_x = (z * u).sum(-1).clamp_min(simplex.TINY)
            return width * excess * (speed * u).sum(-1) * (1 - (p * u).sum(-1)) / z_x
        h = self.noise_rate(s)
        weights = (u - p) * (speed + (0.5 * h * excess)[..., None])
        return width * simplex.squared_norm(weights, z) / (2 * h)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """The drift, then noise with the variance at the middle of the step."""
        step = (self.alpha_max - 1) * (then - s).clamp_min(0)
        if self.churn == 0:
            return simplex.drift_step(z, out.softmax(-1) * self.speed(z, s) * step[..., None])
        h = self.noise_rate((s + then) / 2)
        strength = self.speed(z, s) + (0.5 * h * (self.alpha(s) - 1))[..., None]
        z = simplex.drift_step(z, out.softmax(-1) * strength * step[..., None])
        return simplex.diffusion_step(z, (h * step)[..., None], noise)

    def velocity(self, out: Logits, z: State, s: Fraction) -> State:
        weights = (self.alpha_max - 1) * out.softmax(-1) * self.speed(z, s)
        return weights - weights.sum(-1, keepdim=True) * z

    def euler(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """Euler's step, projected to the simplex if it leaves it."""
        return simplex.project_euclidean(z + (then - s).clamp_min(0)[..., None] * self.velocity(out, z, s))

    def project(self, z: State) -> State:
        return simplex.project(z)

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        return torch.zeros_like(z[..., 0])

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """Of Dirichlet(1 + m e_x), m = α - 1, over the uniform density: z_x^m Γ(K + m) / (Γ(1 + m) Γ(K))."""
        m, K = self.alpha_max - 1, self.num_classes
        scale = math.lgamma(K + m) - math.lgamma(1 + m) - math.lgamma(K)
        return m * (z * u).sum(-1).clamp_min(simplex.TINY).log() + scale


def speed_table(num_classes: int, alphas: Float[Tensor, " A"]) -> Float[Tensor, "A X"]:
    """C(y, α) / y at log y from -20 to 0, to a relative error below 1e-6.

    With m = E log x, -∂_α I · B(α, b) is ∫_0^y (m - log x) x^(α-1) (1 - x)^(b-1) dx, and the integral to 1 is 0. It is
    integrated from below where log y < m and from above elsewhere: integrands are positive, and nothing cancels. Both
    are divided by y^α (1 - y)^b before they are summed, so that nothing underflows for any number of tokens.
    """
    edges = torch.linspace(LOG_Y_MIN, 0, Y_STEPS + 1, dtype=torch.float64)
    alpha = alphas.double()[:, None]
    mean = torch.digamma(alpha) - torch.digamma(alpha + num_classes - 1)
    below, above = _from_below(edges, alpha, mean, num_classes - 1), _from_above(edges, alpha, mean, num_classes - 1)
    return torch.where(edges < mean, below, above)


def _from_below(edges: Tensor, alpha: Tensor, mean: Tensor, b: int) -> Float[Tensor, "A X"]:
    """Gauss-Legendre quadrature in log x, 8 points per step; up to exp(-20) (1 - x)^(b-1) is 1 - (b - 1) x."""
    points, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(8))
    half = edges.diff()[:, None] / 2
    log_x = (edges[:-1, None] + half) + half * points
    density = alpha[..., None] * log_x + (b - 1) * (-torch.expm1(log_x)).log()
    # Beyond the mean the integrand is negative, and `_from_above` is used.
    parts = (density + (mean[..., None] - log_x).clamp_min(1e-300).log() + (half * weights).log()).logsumexp(-1)
    first, second = ((mean - LOG_Y_MIN) / a + 1 / a.square() for a in (alpha, alpha + 1))
    head = alpha * LOG_Y_MIN + (first - (b - 1) * math.exp(LOG_Y_MIN) * second).log()
    total = torch.cat([head, parts], 1).logcumsumexp(1)
    inside = total[:, :-1] - alpha * edges[:-1] - b * (-torch.expm1(edges[:-1])).log()
    return F.pad(inside.exp(), (0, 1))


def _from_above(edges: Tensor, alpha: Tensor, mean: Tensor, b: int) -> Float[Tensor, "A X"]:
    """Gauss-Jacobi quadrature: with x = y + (1 - y) r the weight is b (1 - r)^(b-1) for every y."""
    r, weights = gauss_jacobi(b, QUADRATURE_NODES)
    y = edges.exp()[:, None]
    log_x = torch.log(y + (1 - y) * r)
    integrals = torch.empty(len(alpha), len(edges), dtype=torch.float64)
    for row, (a, m) in enumerate(zip(alpha[:, 0], mean[:, 0], strict=True)):  # one α at a time, to save memory
        growth = ((a - 1) * (log_x - edges[:, None])).exp()
        integrals[row] = ((log_x - m) * growth * weights).sum(1) / (b * y[:, 0])
    return integrals


def gauss_jacobi(b: int, points: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Nodes and weights for ∫_0^1 f(r) b (1 - r)^(b-1) dr (Golub and Welsch 1969).

    Weights are 1 / Σ p_k² with the orthonormal polynomials p_k, which is accurate for small ones, too.
    """
    n = torch.arange(points, dtype=torch.float64)
    c = b - 1  # Jacobi polynomials of (c, 0) on [-1, 1], shifted to [0, 1]
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
    """E[C(y, α)] for y ~ Beta(α, K - 1), the coordinate of the token."""
    log_y = torch.linspace(LOG_Y_MIN, 0, Y_STEPS + 1, dtype=torch.float64)[:-1]
    log_density = alphas[:, None] * log_y + (num_classes - 2) * torch.log1p(-log_y.exp())
    weights = log_density.softmax(1)
    return (weights * log_y.exp() * table[:, :-1]).sum(1)


def default_alpha(num_classes: int) -> float:
    """The last α: the paper's 8, or more for vocabularies that need it to determine tokens."""
    return max(8.0, 2 + 2 * math.log(num_classes))
