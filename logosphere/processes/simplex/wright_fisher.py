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
from logosphere.processes.simplex import death_process
from logosphere.processes.simplex.process import Path, Share
from logosphere.rng import Noise, running_sum
from logosphere.types import Float, Kind, Logits, State

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
    normalisers: Tensor

    def __init__(self, num_classes: int, last: int, *, dilation: float = 1.0):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.last, self.dilation = last, dilation
        log_c = death_process.log_normalisers(2 * last, float(num_classes))
        times = self._pace(log_c)
        lives = death_process.lineage_probabilities(times, last, float(num_classes))
        self.faint = float(death_process.chi_square(lives[0], log_c))
        self.register_buffer("normalisers", log_c[: last + 1].exp(), persistent=False)
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("coefficients", lives.float(), persistent=False)

    # ---- the death process --------------------------------------------------------------------------------------

    def _pace(self, log_c: Float[Tensor, " N"]) -> Float[Tensor, " T"]:
        """τ at s = 0 … 1: the mean of m grows evenly, from where χ² is faint to M."""
        end = 2 * (math.log(self.last) + 2 * math.log(self.num_classes) + 10) / self.num_classes
        fine = torch.cat([torch.zeros(1), torch.logspace(-6, 0, 4000)]).double() * end
        lives = death_process.lineage_probabilities(fine, self.last, float(self.num_classes))
        mean = lives @ torch.arange(self.last + 1, dtype=torch.float64)
        return death_process.even_pace(
            fine, mean, float(mean[death_process.chi_square(lives, log_c) < FAINT].amax()), NODES
        )

    def lives(self, s: Share) -> Float[Tensor, "... n"]:
        """d_m at s."""
        return death_process.between(self.coefficients, s)

    def tau(self, s: Share) -> Float[Tensor, "..."]:
        return death_process.between(self.times, s)

    # ---- the path -----------------------------------------------------------------------------------------------

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def at(self, u: State, s: Share, noise: Noise) -> State:
        """m lives are left, and the gamma variable of 1 + m is a sum of as many exponential ones."""
        ends = running_sum(self.lives(s).double())
        left = (noise.uniform(*s.shape)[..., None] * ends[..., -1:] > ends).sum(-1, keepdim=True)
        waits = -noise.uniform(*s.shape, self.last + 1).log()
        counted = torch.arange(self.last + 1, device=s.device) <= left
        return simplex.sample_dirichlet_corner(u, (waits * counted).sum(-1), noise)

    def _polynomial(self, z: State, s: Share) -> tuple[Float[Tensor, "... K"], Float[Tensor, "... K"]]:
        """P(z_k) and z_k P'(z_k)."""
        return death_process.polynomial((self.lives(s).double() * self.normalisers)[..., None, :], z.double())

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return self._polynomial(z, s)[0].clamp_min(1e-300).log().to(z.dtype)

    def drift_strength(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        """g_k."""
        value, slope = self._polynomial(z, s)
        return (slope / value.clamp_min(1e-300)).to(z.dtype)

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        tau_per_s = death_process.steepness(self.times, s)
        weights = (u - out.softmax(-1)) * self.drift_strength(z, s)
        return 0.5 * length * tau_per_s * simplex.squared_norm(weights, z)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        step = self.dilation * (self.tau(s) - self.tau(then)).clamp_min(0)[..., None]
        z = simplex.drift_step(z, out.softmax(-1) * self.drift_strength(z, s) * step)
        return simplex.diffusion_step(z, step, noise)

    def prior_kl(self) -> float:
        return math.log1p(self.faint)


def default_count(num_classes: int) -> int:
    """The last m, as for Dirichlet flows."""
    return max(7, round(1 + 2 * math.log(num_classes)))
