"""Dirichlet diffusion (after Avdeyev et al. 2023, DDSM) by Wright-Fisher diffusion, and its death process.

The paper breaks the simplex into K - 1 sticks, each with a Jacobi diffusion of its own (stick_breaking.py); here all
coordinates diffuse at once, and the order of the tokens does not matter. Wright-Fisher diffusion
dz = ½ (1 - K z) dτ + G^½ dW  preserves mixtures of Dirichlet distributions: what was Dirichlet(1 + M e_x) at τ = 0 is
Σ_m d_m(τ) Dirichlet(1 + m e_x) later, m a pure death process from M with rates m (m + K - 1)/2 (Griffiths 1979; Ethier
and Griffiths 1993). With M finite all sums are finite:

    q(z | k) / q(z | noise) = P(z_k),      P(y) = Σ_m d_m c_m y^m,      c_m = (K + m - 1)! / (m! (K - 1)!)

The reverse diffusion to k adds the drift G ∇ log P(z_k) = g_k (e_k - z), g_k = z_k P'(z_k) / P(z_k), and by Girsanov's
theorem

    -log p(x) ≤ ½ ∫ E |g_x (e_x - z) - Σ_k p_k g_k (e_k - z)|² dτ + E[-log p(x | z_0)] + KL(q(z_T | x) || noise)

(norm of G⁻¹), tight for the exact posterior. The last term is at most log(1 + χ²), and χ² has a closed form.
"""

import math

import torch
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex.process import ConditionalPath, Fraction
from logosphere.rng import Noise, running_sum
from logosphere.types import Float, Kind, Logits, State

NODES = 1024
"""Steps of the table of d_m; between them it is linear."""
MAX_PRIOR_CHI2 = 1e-4
"""χ² of the marginal at the start of the path against the noise."""


class WrightFisherPath(ConditionalPath):
    """From noise to Dirichlet(1 + max_lineages · e_x). `dilation` multiplies the sampler's time, as in the paper."""

    kind: Kind = "bound"
    offset = None
    lineage_probs: Tensor
    times: Tensor
    normalisers: Tensor

    def __init__(self, num_classes: int, max_lineages: int, *, dilation: float = 1.0):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.max_lineages, self.dilation = max_lineages, dilation
        log_c = log_normalisers(2 * max_lineages, float(num_classes))
        times = self._path_times(log_c)
        probs = lineage_probabilities(times, max_lineages, float(num_classes))
        self.prior_chi2 = float(chi_square(probs[0], log_c))
        self.register_buffer("normalisers", log_c[: max_lineages + 1].exp(), persistent=False)
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("lineage_probs", probs.float(), persistent=False)

    def _path_times(self, log_c: Float[Tensor, " N"]) -> Float[Tensor, " T"]:
        """τ at s = 0 … 1: the mean of m grows linearly, from where χ² is negligible to M."""
        end = 2 * (math.log(self.max_lineages) + 2 * math.log(self.num_classes) + 10) / self.num_classes
        fine = torch.cat([torch.zeros(1), torch.logspace(-6, 0, 4000)]).double() * end
        probs = lineage_probabilities(fine, self.max_lineages, float(self.num_classes))
        mean = probs @ torch.arange(self.max_lineages + 1, dtype=torch.float64)
        lowest = float(mean[chi_square(probs, log_c) < MAX_PRIOR_CHI2].amax())
        return linear_lineage_times(fine, mean, lowest, NODES)

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        """m lineages are left; the gamma variable of 1 + m is a sum of 1 + m exponential ones."""
        ends = running_sum(interpolate(self.lineage_probs, s).double())
        left = (noise.uniform(*s.shape)[..., None] * ends[..., -1:] > ends).sum(-1, keepdim=True)
        exponentials = -noise.uniform(*s.shape, self.max_lineages + 1).log()
        counted = torch.arange(self.max_lineages + 1, device=s.device) <= left
        return simplex.sample_dirichlet_corner(u, (exponentials * counted).sum(-1), noise)

    def _polynomial(self, z: State, s: Fraction) -> tuple[Float[Tensor, "... K"], Float[Tensor, "... K"]]:
        """P(z_k) and z_k P'(z_k)."""
        terms = interpolate(self.lineage_probs, s).double() * self.normalisers
        return evaluate_polynomial(terms[..., None, :], z.double())

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        return self._polynomial(z, s)[0].clamp_min(1e-300).log().to(z.dtype)

    def drift_strength(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        """g_k."""
        value, slope = self._polynomial(z, s)
        return (slope / value.clamp_min(1e-300)).to(z.dtype)

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        weights = (u - out.softmax(-1)) * self.drift_strength(z, s)
        return 0.5 * length * time_slope(self.times, s) * simplex.squared_norm(weights, z)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        step = self.dilation * (interpolate(self.times, s) - interpolate(self.times, then)).clamp_min(0)[..., None]
        z = simplex.drift_step(z, out.softmax(-1) * self.drift_strength(z, s) * step)
        return simplex.diffusion_step(z, step, noise)

    def prior_kl(self) -> float:
        return math.log1p(self.prior_chi2)


def default_count(num_classes: int) -> int:
    """The last m, as for Dirichlet flows."""
    return max(7, round(1 + 2 * math.log(num_classes)))


# ---- the death process of Wright-Fisher and Jacobi diffusions (Griffiths 1979; Ethier and Griffiths 1993)
#
# A coordinate that diffuses with mutation θ (its noise is Beta(1, θ - 1)) and was Beta(1 + M, θ - 1) at τ = 0 is
# Σ_m d_m(τ) Beta(1 + m, θ - 1) later, m a pure death process from M with rates m (m + θ - 1)/2. The same d_m hold for
# Beta(1, θ - 1 + M).


def lineage_probabilities(
    times: Float[Tensor, " T"], last: int, theta: float, speed: float = 1.0
) -> Float[Tensor, "T n"]:
    """d_m(τ) for m = 0 … M: exp(τ A) from M, with time multiplied by `speed`."""
    m = torch.arange(last + 1, dtype=torch.float64)
    rates = speed * m * (m + theta - 1) / 2
    generator = torch.diag(-rates) + torch.diag(rates[1:], 1)  # column m flows to row m - 1
    return torch.linalg.matrix_exp(times.double()[:, None, None] * generator)[..., -1].clamp_min(0)


def chi_square(probs: Float[Tensor, "... n"], log_c: Float[Tensor, " N"]) -> Float[Tensor, "..."]:
    """∫ q²/noise - 1 = Σ_mn d_m d_n c_m c_n / c_(m+n) - 1, without the terms of m = 0 or n = 0, which cancel.

    c_m normalises y^m to a density relative to the noise; `log_c` goes up to 2M.
    """
    last = probs.shape[-1] - 1
    m = torch.arange(1, last + 1)
    ratio = (log_c[1 : last + 1, None] + log_c[1 : last + 1] - log_c[m[:, None] + m]).exp() - 1
    return torch.einsum("...m,mn,...n->...", probs[..., 1:], ratio, probs[..., 1:])


def log_normalisers(count: int, theta: float) -> Float[Tensor, " n"]:
    """log c_m = log B(1, θ - 1)/B(1 + m, θ - 1) = log Γ(θ + m)/(Γ(1 + m) Γ(θ)) for m = 0 … count."""
    m = torch.arange(count + 1, dtype=torch.float64)
    return torch.lgamma(m + theta) - torch.lgamma(m + 1) - torch.lgamma(torch.tensor(theta, dtype=torch.float64))


def evaluate_polynomial(
    terms: Float[Tensor, "... n"], y: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """P(y) = Σ_m terms_m y^m and y P'(y), by Horner's rule; all terms are positive."""
    value, slope = torch.zeros_like(y), torch.zeros_like(y)
    for m in reversed(range(terms.shape[-1])):
        slope = slope * y + m * terms[..., m]
        value = value * y + terms[..., m]
    return value, slope


def linear_lineage_times(
    times: Float[Tensor, " T"], mean: Float[Tensor, " T"], lowest: float, nodes: int
) -> Float[Tensor, " n"]:
    """τ at `nodes` equal steps of the mean number of lineages, from `lowest` up to all of them at τ = 0."""
    wanted = torch.linspace(0, 1, nodes + 1, dtype=torch.float64) * (mean[0] - lowest) + lowest
    right = torch.searchsorted(-mean, -wanted).clamp(1, len(times) - 1)
    within = ((mean[right - 1] - wanted) / (mean[right - 1] - mean[right])).clamp(0, 1)
    return torch.lerp(times[right - 1], times[right], within)


def interpolate(table: Float[Tensor, "n ..."], s: Fraction) -> Float[Tensor, "..."]:
    """Rows of a table at fractions from 0 to 1 of its length, linear in between."""
    position = s * (len(table) - 1)
    low = position.long().clamp(0, len(table) - 2)
    within = (position - low).to(table).view((*s.shape, *[1] * (table.dim() - 1)))
    return torch.lerp(table[low], table[low + 1], within)


def time_slope(times: Float[Tensor, " n"], s: Fraction) -> Float[Tensor, "..."]:
    """-dτ/ds."""
    low = (s * (len(times) - 1)).long().clamp(0, len(times) - 2)
    return (times[low] - times[low + 1]) * (len(times) - 1)
