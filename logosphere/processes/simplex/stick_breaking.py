"""Dirichlet diffusion by stick breaking (Avdeyev et al. 2023, DDSM): each token takes its part of what others left.

Stick j = 1 … K - 1 is v_j = z_j / Σ_(i ≥ j) z_i. Sticks diffuse independently, each by a Jacobi diffusion (equation 5)

    dv = ½ h_j ((1 - v) - b_j v) dτ + √(h_j v (1 - v)) dW,      b_j = K - j,    h_j = 2 / (1 + b_j),

which keeps Beta(1, b_j), so that shares become even; the pace h_j lets all sticks forget equally fast. The paper starts
at v = 0 before the token and v = 1 at it, and cuts an infinite series of polynomials. Here sticks before the token
begin as Beta(1, b_j + M), its own as Beta(1 + M, b_j) and those after it as noise, and all sums are finite (death_process.py):

    log q(z | k) = Σ_(j < k) log P⁰_j(v_j) + log P¹_k(v_k) + const,

    P¹_j(v) = Σ_m d_m c¹_m v^m,    P⁰_j(v) = Σ_m d_m c⁰_m (1 - v)^m,    c¹_m = B(1, b)/B(1 + m, b),   c⁰_m = (b + m)/b.

With G the slopes of these logarithms, and Girsanov's theorem for each stick,

    -log p(x) ≤ ½ ∫ E Σ_j h_j v_j (1 - v_j) (G_j(x) - Σ_k p_k G_j(k))² dτ + E[-log p(x | z_0)] + prior.

Tokens of high numbers need many sticks, so unlike in wrightfisher.py their order matters to networks and samplers.
"""

import math

import torch
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex import death_process
from logosphere.processes.simplex.process import Path, Share
from logosphere.rng import Noise, running_sum
from logosphere.types import Float, Kind, Logits, State

NODES, FINE = 256, 800
"""Steps of the table of d_m; and of the times among which its own are chosen."""
FAINT = 1e-4
"""χ² of the prior: the noise is noise but for this."""

Sticks = Float[Tensor, "... J"]


class StickPath(Path):
    """From noise to sticks that single out the token. `dilation` lets the sampler take its time, as in the paper."""

    kind: Kind = "bound"
    offset = None
    coefficients: Tensor
    times: Tensor
    others: Tensor
    toward: Tensor
    away: Tensor

    def __init__(self, num_classes: int, last: int, *, dilation: float = 1.0):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.last, self.dilation = last, dilation
        others = torch.arange(num_classes - 1, 0, -1, dtype=torch.float64)  # b_j
        own = torch.stack([death_process.log_normalisers(2 * last, float(b) + 1) for b in others])
        m = torch.arange(2 * last + 1)
        before = torch.log1p(m / others[:, None])
        times = self._pace(others, own, before)
        lives = self._lives(times, others)
        self.faint = float(self._prior(lives[:1], own, before))
        self.register_buffer("others", others, persistent=False)
        self.register_buffer("toward", own[:, : last + 1].exp(), persistent=False)
        self.register_buffer("away", before[:, : last + 1].exp(), persistent=False)
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("coefficients", lives.float(), persistent=False)

    # ---- tables -------------------------------------------------------------------------------------------------

    def _lives(self, times: Float[Tensor, " T"], others: Float[Tensor, " J"]) -> Float[Tensor, "T J n"]:
        """d_m of every stick."""
        found = [
            death_process.lineage_probabilities(times, self.last, float(b) + 1, pace=2 / (1 + float(b))) for b in others
        ]
        return torch.stack(found, 1)

    def _prior(self, lives: Float[Tensor, "T J n"], own: Tensor, before: Tensor) -> Float[Tensor, " T"]:
        """Σ_j log(1 + χ²_j), which KL(q(z | x) || noise) does not exceed, for the token for which it is largest."""
        chi = [
            torch.stack([death_process.chi_square(lives[:, j], log_c[j]) for j in range(lives.shape[1])], 1).log1p()
            for log_c in (own, before)
        ]
        earlier = torch.cat([torch.zeros_like(chi[1][:, :1]), running_sum(chi[1], 1)], 1)
        return (earlier + torch.cat([chi[0], torch.zeros_like(chi[0][:, :1])], 1)).amax(1)

    def _pace(self, others: Tensor, own: Tensor, before: Tensor) -> Float[Tensor, " T"]:
        """τ at s = 0 … 1: the mean of m over all sticks grows evenly, from where the prior is faint to M."""
        end = math.log(self.last) + 2 * math.log(self.num_classes) + 10
        fine = torch.cat([torch.zeros(1), torch.logspace(-5, 0, FINE)]).double() * end
        lives = self._lives(fine, others)
        mean = (lives @ torch.arange(self.last + 1, dtype=torch.float64)).mean(1)
        lowest = float(mean[self._prior(lives, own, before) < FAINT].amax())
        return death_process.even_pace(fine, mean, lowest, NODES)

    # ---- the path -----------------------------------------------------------------------------------------------

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def at(self, u: State, s: Share, noise: Noise) -> State:
        """Beta(1, b) is 1 - U^(1/b); the token's own stick is a quotient of gamma variables."""
        ends = running_sum(death_process.between(self.coefficients, s).double())
        left = (noise.uniform(*s.shape, self.num_classes - 1)[..., None] * ends[..., -1:] > ends).sum(-1)
        before, own = self._after(u) > 0, u[..., :-1] > 0
        rest = noise.uniform(*left.shape) ** (1 / (self.others + left * before))
        grown = simplex.sample_gamma(1 + (left * own).sum(-1).double(), noise)
        against = simplex.sample_gamma((self.others * own).sum(-1).clamp_min(1), noise)
        taken = (grown / (grown + against))[..., None]
        return simplex.from_sticks(torch.where(own, taken, 1 - rest), torch.where(own, 1 - taken, rest)).to(u.dtype)

    def _after(self, weights: Float[Tensor, "... K"]) -> Sticks:
        """Σ_(k > j) weights_k."""
        return running_sum(weights.flip(-1)).flip(-1)[..., 1:]

    def _said(self, v: Sticks, rest: Sticks, s: Share) -> tuple[tuple[Sticks, Sticks], tuple[Sticks, Sticks]]:
        """P¹ and v P¹', P⁰ and (1 - v) P⁰'."""
        lives = death_process.between(self.coefficients, s).double()
        return death_process.polynomial(lives * self.toward, v), death_process.polynomial(lives * self.away, rest)

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        (own, _), (before, _) = self._said(*simplex.to_sticks(z), s)
        own, before = own.clamp_min(1e-300).log(), running_sum(before.clamp_min(1e-300).log())
        nothing = torch.zeros_like(own[..., :1])
        return (torch.cat([own, nothing], -1) + torch.cat([nothing, before], -1)).to(z.dtype)

    def _pulls(self, v: Sticks, rest: Sticks, s: Share) -> tuple[Sticks, Sticks]:
        """v ∂ log P¹ and -(1 - v) ∂ log P⁰, both by v."""
        (own, rise), (before, fall) = self._said(v, rest, s)
        return rise / own.clamp_min(1e-300), fall / before.clamp_min(1e-300)

    def pulled(self, weights: Float[Tensor, "... K"], v: Sticks, rest: Sticks, s: Share) -> Sticks:
        """√(v (1 - v)) Σ_k weights_k G(k)."""
        up, down = self._pulls(v, rest, s)
        odds = ((rest + simplex.TINY) / (v + simplex.TINY)).sqrt()
        return weights[..., :-1] * up * odds - self._after(weights) * down / odds

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        missed = self.pulled((u - out.softmax(-1)).double(), *simplex.to_sticks(z), s)
        squared = (2 / (1 + self.others) * missed.square()).sum(-1)
        return (0.5 * length * death_process.steepness(self.times, s) * squared).to(out.dtype)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """Pulls held fixed, dv = A (1 - v) - B v, for which a step is exact and never outside; then noise."""
        v, rest = simplex.to_sticks(z)
        up, down = self._pulls(v, rest, s)
        p = out.softmax(-1).double()
        step = self.dilation * (
            death_process.between(self.times, s) - death_process.between(self.times, then)
        ).clamp_min(0)
        variance = step.double()[..., None] * 2 / (1 + self.others)
        rise, fall = variance * p[..., :-1] * up, variance * self._after(p) * down
        return self.drawn(v, rest, rise, fall, variance, noise).to(z.dtype)

    def drawn(self, v: Sticks, rest: Sticks, rise: Sticks, fall: Sticks, variance: Sticks, noise: Noise) -> State:
        """One step with the pulls A = `rise` and B = `fall`, then the diffusion of noise."""
        total = (rise + fall).clamp_min(1e-30)
        share = -torch.expm1(-total)
        v, rest = torch.lerp(v, rise / total, share), torch.lerp(rest, fall / total, share)
        return simplex.from_sticks(*simplex.jacobi_step(v, rest, self.others, variance, noise))

    def prior_kl(self) -> float:
        return self.faint
