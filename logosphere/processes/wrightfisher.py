"""Dirichlet diffusion (after Avdeyev et al. 2023, DDSM): shares wander by Wright-Fisher diffusion until they are noise.

The paper breaks the simplex into K - 1 sticks, each with a Jacobi diffusion of its own; here all shares diffuse at once
and no token comes before another. Wright-Fisher diffusion  dz = ½ (1 - K z) dτ + G^½ dW  keeps mixtures of Dirichlet
laws: what was Dirichlet(1 + M e_x) at τ = 0 is Σ_m d_m(τ) Dirichlet(1 + m e_x) later, m a pure death process from M
with rates m (m + K - 1)/2 (Griffiths 1979; Ethier and Griffiths 1993). With M finite all is exact:

    q(z | k) / q(z | noise) = P(z_k),      P(y) = Σ_m d_m c_m y^m,      c_m = (K + m - 1)! / (m! (K - 1)!)

The reverse diffusion to k adds the drift G ∇ log P(z_k) = g_k (e_k - z), g_k = z_k P'(z_k) / P(z_k), and by Girsanov's
theorem

    -log p(x) ≤ ½ ∫ E |g_x (e_x - z) - Σ_k p_k g_k (e_k - z)|² dτ + E[-log p(x | z_0)] + KL(q(z_T | x) || noise)

(norm of G⁻¹), tight for the exact posterior. The last term is at most log(1 + χ²), and χ² is a closed form.
"""

import math

import torch
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.noise import Noise
from logosphere.processes.flow import Path, Share
from logosphere.shapes import Float
from logosphere.types import Kind, Logits, State

NODES = 1024
"""Steps of the table of d_m; between them it is linear."""
FAINT = 1e-4
"""χ² of the prior: the noise is noise but for this."""


class WrightFisherPath(Path):
    """From noise to Dirichlet(1 + last · e_x). `dilation` lets the sampler take its time, as in the paper."""

    kind: Kind = "bound"
    offset = None
    coefficients: Tensor
    times: Tensor

    def __init__(self, choices: int, last: int, *, dilation: float = 1.0):
        super().__init__()
        self.width = self.choices = choices
        self.last, self.dilation = last, dilation
        counts = torch.arange(last + 1, dtype=torch.float64)
        self._log_c = torch.lgamma(counts + choices) - torch.lgamma(counts + 1) - math.lgamma(choices)
        times = self._pace()
        lives = self.survivors(times)
        self.faint = float(self._chi_square(lives[0]))
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("coefficients", lives.float(), persistent=False)

    # ---- the death process --------------------------------------------------------------------------------------

    def survivors(self, times: Float[Tensor, "T"]) -> Float[Tensor, "T n"]:
        """d_m(τ) for m = 0 … M: exp(τ A) from M."""
        m = torch.arange(self.last + 1, dtype=torch.float64)
        rates = m * (m + self.choices - 1) / 2
        generator = torch.diag(-rates) + torch.diag(rates[1:], 1)  # column m flows to row m - 1
        return torch.linalg.matrix_exp(times.double()[:, None, None] * generator)[..., -1].clamp_min(0)

    def _chi_square(self, lives: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
        """Σ_mn d_m d_n c_m c_n / c_(m+n) - 1, without the terms of m = 0 or n = 0, which cancel."""
        m = torch.arange(1, self.last + 1, dtype=torch.float64)
        both = m[:, None] + m
        log_both = torch.lgamma(both + self.choices) - torch.lgamma(both + 1) - math.lgamma(self.choices)
        ratio = (self._log_c[1:, None] + self._log_c[1:] - log_both).exp() - 1
        return torch.einsum("...m,mn,...n->...", lives[..., 1:], ratio, lives[..., 1:])

    def _pace(self) -> Float[Tensor, "T"]:
        """τ at s = 0 … 1: the mean of m grows evenly, from where χ² is faint to M."""
        end = 2 * (math.log(self.last) + 2 * math.log(self.choices) + 10) / self.choices
        fine = torch.cat([torch.zeros(1), torch.logspace(-6, 0, 4000)]).double() * end
        lives = self.survivors(fine)
        mean = lives @ torch.arange(self.last + 1, dtype=torch.float64)
        lowest = mean[self._chi_square(lives) < FAINT].amax()
        wanted = torch.linspace(0, 1, NODES + 1, dtype=torch.float64) * (self.last - lowest) + lowest
        right = torch.searchsorted(-mean, -wanted).clamp(1, len(fine) - 1)
        share = ((mean[right - 1] - wanted) / (mean[right - 1] - mean[right])).clamp(0, 1)
        return torch.lerp(fine[right - 1], fine[right], share)

    def _between(self, s: Share) -> tuple[Tensor, Tensor]:
        place = s * NODES
        low = place.long().clamp(0, NODES - 1)
        return low, place - low

    def lives(self, s: Share) -> Float[Tensor, "... n"]:
        """d_m at s."""
        low, share = self._between(s)
        return torch.lerp(self.coefficients[low], self.coefficients[low + 1], share[..., None].to(self.coefficients))

    def tau(self, s: Share) -> Float[Tensor, "..."]:
        low, share = self._between(s)
        return torch.lerp(self.times[low], self.times[low + 1], share.to(self.times))

    # ---- the path -----------------------------------------------------------------------------------------------

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.even(batch, length, self.choices, noise)

    def at(self, u: State, s: Share, noise: Noise) -> State:
        """m lives are left, and the gamma variable of 1 + m is a sum of as many exponential ones."""
        ends = self.lives(s).double().cumsum(-1)
        left = (noise.uniform(*s.shape)[..., None] * ends[..., -1:] > ends).sum(-1, keepdim=True)
        waits = -noise.uniform(*s.shape, self.last + 1).log()
        counted = torch.arange(self.last + 1, device=s.device) <= left
        return simplex.favoured(u, (waits * counted).sum(-1), noise)

    def _polynomial(self, z: State, s: Share) -> tuple[Float[Tensor, "... K"], Float[Tensor, "... K"]]:
        """P(z_k) and z_k P'(z_k), by Horner's rule; all terms are positive."""
        terms = self.lives(s).double() * self._log_c.to(z.device).exp()
        y = z.double()
        value, slope = torch.zeros_like(y), torch.zeros_like(y)
        for m in reversed(range(self.last + 1)):
            slope = slope * y + m * terms[..., m, None]
            value = value * y + terms[..., m, None]
        return value, slope

    def evidence(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return self._polynomial(z, s)[0].clamp_min(1e-300).log().to(z.dtype)

    def pull(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        """g_k."""
        value, slope = self._polynomial(z, s)
        return (slope / value.clamp_min(1e-300)).to(z.dtype)

    def nats(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        low, _ = self._between(s)
        tau_per_s = (self.times[low] - self.times[low + 1]) * NODES
        weights = (u - out.softmax(-1)) * self.pull(z, s)
        return 0.5 * length * tau_per_s * simplex.squared_norm(weights, z)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        step = self.dilation * (self.tau(s) - self.tau(then)).clamp_min(0)[..., None]
        z = simplex.drifted(z, out.softmax(-1) * self.pull(z, s) * step)
        return simplex.diffused(z, step, noise)

    def prior_nats(self) -> float:
        return math.log1p(self.faint)


def clear_count(choices: int) -> int:
    """The last m, as for Dirichlet flows."""
    return max(7, round(1 + 2 * math.log(choices)))
