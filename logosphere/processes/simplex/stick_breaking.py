"""Dirichlet diffusion by stick breaking (Avdeyev et al. 2023, DDSM): each token takes a fraction of the remainder.

Stick j = 1 … K - 1 is v_j = z_j / Σ_(i ≥ j) z_i. Sticks diffuse independently, each by a Jacobi diffusion (equation 5)

    dv = ½ h_j ((1 - v) - b_j v) dτ + √(h_j v (1 - v)) dW,      b_j = K - j,    h_j = 2 / (1 + b_j),

which preserves Beta(1, b_j), so that z becomes uniform on the simplex; with the speeds h_j all sticks mix equally fast.
The paper starts at v = 0 before the token and v = 1 at it, and truncates an infinite series of polynomials. Here sticks
before the token begin as Beta(1, b_j + M), its own as Beta(1 + M, b_j) and those after it as noise, and all sums are
finite (the death process of wright_fisher.py):

    log q(z | k) = Σ_(j < k) log P⁰_j(v_j) + log P¹_k(v_k) + const,

    P¹_j(v) = Σ_m d_m c¹_m v^m,    P⁰_j(v) = Σ_m d_m c⁰_m (1 - v)^m,    c¹_m = B(1, b)/B(1 + m, b),   c⁰_m = (b + m)/b.

With G the derivatives of these logarithms, and Girsanov's theorem for each stick,

    -log p(x) ≤ ½ ∫ E Σ_j h_j v_j (1 - v_j) (G_j(x) - Σ_k p_k G_j(k))² dτ + E[-log p(x | z_0)] + prior.

Tokens of high index need many sticks, so unlike in wright_fisher.py their order matters to networks and samplers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex.process import ConditionalPath, EulerPath, Fraction
from logosphere.processes.simplex.wright_fisher import (
    chi_square,
    evaluate_polynomial,
    interpolate,
    lineage_probabilities,
    linear_lineage_times,
    log_normalisers,
    time_slope,
)
from logosphere.rng import GeneratorNoise, Noise, running_sum
from logosphere.types import Float, Int64, Kind, Logits, State

NODES, FINE_NODES = 256, 800
"""Steps of the table of d_m; and of the times from which its own are interpolated."""
MAX_PRIOR_KL = 1e-4
"""The divergence of the marginal at the start of the path from the noise."""
SCALE_DRAWS, SCALE_NODES = 1 << 13, 64
"""Sticks drawn to estimate the scale of scores at each of so many steps of the path."""
CLIP = 1e-5
"""Sticks stay this far from 0 and 1 in Euler-Maruyama steps, as in the paper."""

Sticks = Float[Tensor, "... J"]


class StickPath(ConditionalPath):
    """From noise to sticks that determine the token. `dilation` multiplies the sampler's time, as in the paper."""

    kind: Kind = "bound"
    offset = None
    lineage_probs: Tensor
    times: Tensor
    b: Tensor
    own_normalisers: Tensor
    before_normalisers: Tensor

    def __init__(self, num_classes: int, max_lineages: int, *, dilation: float = 1.0):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.max_lineages, self.dilation = max_lineages, dilation
        b = torch.arange(num_classes - 1, 0, -1, dtype=torch.float64)
        own = torch.stack([log_normalisers(2 * max_lineages, float(b_j) + 1) for b_j in b])
        m = torch.arange(2 * max_lineages + 1)
        before = torch.log1p(m / b[:, None])
        times = self._path_times(b, own, before)
        probs = self._lineage_probs(times, b)
        self.max_prior_kl = float(self._prior_kl(probs[:1], own, before))
        self.register_buffer("b", b, persistent=False)
        self.register_buffer("own_normalisers", own[:, : max_lineages + 1].exp(), persistent=False)
        self.register_buffer("before_normalisers", before[:, : max_lineages + 1].exp(), persistent=False)
        self.register_buffer("times", times.float(), persistent=False)
        self.register_buffer("lineage_probs", probs.float(), persistent=False)

    # ---- tables -------------------------------------------------------------------------------------------------

    def _lineage_probs(self, times: Float[Tensor, " T"], b: Float[Tensor, " J"]) -> Float[Tensor, "T J n"]:
        """d_m of every stick."""
        speeds = [(float(b_j), 2 / (1 + float(b_j))) for b_j in b]
        return torch.stack([lineage_probabilities(times, self.max_lineages, b_j + 1, h_j) for b_j, h_j in speeds], 1)

    def _prior_kl(self, probs: Float[Tensor, "T J n"], own: Tensor, before: Tensor) -> Float[Tensor, " T"]:
        """Σ_j log(1 + χ²_j), an upper bound of KL(q(z | x) || noise), for the token for which it is largest."""
        own_kl, before_kl = (
            torch.stack([chi_square(probs[:, j], log_c[j]) for j in range(probs.shape[1])], 1).log1p()
            for log_c in (own, before)
        )
        earlier = torch.cat([torch.zeros_like(before_kl[:, :1]), running_sum(before_kl, 1)], 1)
        return (earlier + torch.cat([own_kl, torch.zeros_like(own_kl[:, :1])], 1)).amax(1)

    def _path_times(self, b: Tensor, own: Tensor, before: Tensor) -> Float[Tensor, " T"]:
        """τ at s = 0 … 1: the mean of m over all sticks grows linearly, from where the prior KL is negligible to M."""
        end = math.log(self.max_lineages) + 2 * math.log(self.num_classes) + 10
        fine = torch.cat([torch.zeros(1), torch.logspace(-5, 0, FINE_NODES)]).double() * end
        probs = self._lineage_probs(fine, b)
        mean = (probs @ torch.arange(self.max_lineages + 1, dtype=torch.float64)).mean(1)
        lowest = float(mean[self._prior_kl(probs, own, before) < MAX_PRIOR_KL].amax())
        return linear_lineage_times(fine, mean, lowest, NODES)

    # ---- the path -----------------------------------------------------------------------------------------------

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        """Beta(1, b) is 1 - U^(1/b); the token's own stick is a quotient of gamma variables."""
        ends = running_sum(interpolate(self.lineage_probs, s).double())
        left = (noise.uniform(*s.shape, self.num_classes - 1)[..., None] * ends[..., -1:] > ends).sum(-1)
        before, own = _sum_after(u) > 0, u[..., :-1] > 0
        rest = noise.uniform(*left.shape) ** (1 / (self.b + left * before))
        first = simplex.sample_gamma(1 + (left * own).sum(-1).double(), noise)
        second = simplex.sample_gamma((self.b * own).sum(-1).clamp_min(1), noise)
        own_stick = (first / (first + second))[..., None]
        v, rest = torch.where(own, own_stick, 1 - rest), torch.where(own, 1 - own_stick, rest)
        return simplex.from_sticks(v, rest).to(u.dtype)

    def _polynomials(self, v: Sticks, rest: Sticks, s: Fraction) -> tuple[tuple[Sticks, Sticks], tuple[Sticks, Sticks]]:
        """P¹ and v P¹', P⁰ and (1 - v) P⁰'."""
        probs = interpolate(self.lineage_probs, s).double()
        own, before = probs * self.own_normalisers, probs * self.before_normalisers
        return evaluate_polynomial(own, v), evaluate_polynomial(before, rest)

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        (own, _), (before, _) = self._polynomials(*simplex.to_sticks(z), s)
        own, before = own.clamp_min(1e-300).log(), running_sum(before.clamp_min(1e-300).log())
        zero = torch.zeros_like(own[..., :1])
        return (torch.cat([own, zero], -1) + torch.cat([zero, before], -1)).to(z.dtype)

    def _drift_strengths(self, v: Sticks, rest: Sticks, s: Fraction) -> tuple[Sticks, Sticks]:
        """v ∂ log P¹ and -(1 - v) ∂ log P⁰, both by v."""
        (own, own_slope), (before, before_slope) = self._polynomials(v, rest, s)
        return own_slope / own.clamp_min(1e-300), before_slope / before.clamp_min(1e-300)

    def weighted_scores(self, weights: Float[Tensor, "... K"], v: Sticks, rest: Sticks, s: Fraction) -> Sticks:
        """√(v (1 - v)) Σ_k weights_k G(k)."""
        up, down = self._drift_strengths(v, rest, s)
        odds = ((rest + simplex.TINY) / (v + simplex.TINY)).sqrt()
        return weights[..., :-1] * up * odds - _sum_after(weights) * down / odds

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        error = self.weighted_scores((u - out.softmax(-1)).double(), *simplex.to_sticks(z), s)
        squared = (2 / (1 + self.b) * error.square()).sum(-1)
        return (0.5 * length * time_slope(self.times, s) * squared).to(out.dtype)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        v, rest = simplex.to_sticks(z)
        up, down = self._drift_strengths(v, rest, s)
        p = out.softmax(-1).double()
        step = self.dilation * (interpolate(self.times, s) - interpolate(self.times, then)).clamp_min(0)
        variance = step.double()[..., None] * 2 / (1 + self.b)
        rise, fall = variance * p[..., :-1] * up, variance * _sum_after(p) * down
        return self.drift_and_diffuse(v, rest, rise, fall, variance, noise).to(z.dtype)

    def drift_and_diffuse(
        self, v: Sticks, rest: Sticks, rise: Sticks, fall: Sticks, variance: Sticks, noise: Noise
    ) -> State:
        """dv = A (1 - v) - B v with A = `rise` and B = `fall` constant, which is exact and stays inside; then noise."""
        total = (rise + fall).clamp_min(1e-30)
        fraction = -torch.expm1(-total)
        v, rest = torch.lerp(v, rise / total, fraction), torch.lerp(rest, fall / total, fraction)
        return simplex.from_sticks(*simplex.jacobi_step(v, rest, self.b, variance, noise))

    def prior_kl(self) -> float:
        return self.max_prior_kl


def _sum_after(weights: Float[Tensor, "... K"]) -> Sticks:
    """Σ_(k > j) weights_k."""
    return running_sum(weights.flip(-1)).flip(-1)[..., 1:]


class StickScores(ConditionalPath, EulerPath):
    """The path of `sticks`, reversed by an unconstrained score, as published.

    The network predicts K numbers; minus their mean and times the scale √w(τ) they are g = ∇_z log p(z) / p_noise(z),
    and since noise is uniform on the simplex, with ℓ_j = Σ_(i ≥ j) z_i,

        G_j = ∂ log(p / p_noise) / ∂v_j = ℓ_j (g_j - Σ_(k > j) z_k g_k / ℓ_(j+1)).

    Score matching is weighted by the diffusion coefficient h_j v_j (1 - v_j), which is Girsanov's theorem:

        -log p(x) ≤ ½ ∫ E Σ_j h_j v_j (1 - v_j) (G_j(x) - G_j)² dτ + E[-log p(x | z_0)] + prior.

    w(τ) is the mean of Σ_j h_j v_j (1 - v_j) G_j(x)²; the paper draws times in proportion to √w. The token is decoded
    from the state alone, p(x = k | z_0) ∝ q(z_0 | k), so that the number is a bound for every network. So states must
    determine tokens at τ = 0: with M = 16 lineages fewer than 1% of 256 tokens are decoded wrongly, with M = 8 it is 6%
    of 27.
    """

    kind: Kind = "bound"
    offset = None
    predicts_tokens = False
    scale: Tensor

    def __init__(self, sticks: StickPath):
        super().__init__()
        self.sticks, self.num_classes, self.width = sticks, sticks.num_classes, sticks.width
        self.register_buffer("scale", self._estimate_scale().float(), persistent=False)

    def _estimate_scale(self) -> Float[Tensor, " n"]:
        """√(w / mean of w over τ) at equal steps of s."""
        draws, nodes = max(32, SCALE_DRAWS // self.num_classes), torch.linspace(0, 1, SCALE_NODES + 1)
        noise = GeneratorNoise(torch.Generator().manual_seed(0), draws)
        u = F.one_hot(torch.arange(draws) % self.num_classes, self.num_classes)[:, None].float()
        means = []
        for s in nodes:
            s = s.expand(draws, 1)
            z = self.sticks.q_sample(u, s, noise)
            squared = self.sticks.weighted_scores(u.double(), *simplex.to_sticks(z), s).square()
            means.append((self._speeds() * squared).sum(-1).mean())
        w, tau = torch.stack(means), interpolate(self.sticks.times, nodes).double()
        mean = ((w[1:] + w[:-1]) / 2 * (tau[:-1] - tau[1:])).sum() / (tau[0] - tau[-1])
        return (w / mean).sqrt()

    def importance(self, cells: int) -> Float[Tensor, " n"]:
        """The probability of each of `cells` equal steps of s: in proportion to √w dτ, as in the paper."""
        middle = (torch.arange(cells) + 0.5) / cells
        weights = interpolate(self.scale, middle).double() * time_slope(self.sticks.times, middle).double()
        return weights / weights.sum()

    def _speeds(self) -> Float[Tensor, " J"]:
        """h_j."""
        return 2 / (1 + self.sticks.b)

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.sticks.sample_prior(batch, length, noise)

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        return self.sticks.q_sample(u, s, noise)

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        return self.sticks.log_likelihood(z, s)

    def prior_kl(self) -> float:
        return self.sticks.prior_kl()

    def decode_logits(self, out: Logits, z: State, s: Fraction) -> Logits:
        return self.sticks.log_likelihood(z, s)

    def stick_scores(self, out: Tensor, z: State, s: Fraction) -> Sticks:
        """G_j, float64."""
        g = interpolate(self.scale, s)[..., None].double() * (out - out.mean(-1, keepdim=True)).double()
        z = z.double()
        left = running_sum(z.flip(-1)).flip(-1).clamp_min(1e-30)
        after = _sum_after(z * g) / left[..., 1:]
        return left[..., :-1] * (g[..., :-1] - after)

    def from_posterior(self, posterior: Logits, z: State, s: Fraction) -> Tensor:
        """The prediction whose scores are the mean Σ_k p_k G(k): g_K = 0, the others from the last to the first."""
        v, rest = simplex.to_sticks(z)
        wanted = self.sticks.weighted_scores(posterior.softmax(-1).double(), v, rest, s)
        wanted = wanted / (v * rest).clamp_min(1e-30).sqrt()
        z = z.double()
        g, mean, left = [torch.zeros_like(z[..., 0])], torch.zeros_like(z[..., 0]), z[..., -1].clamp_min(1e-30)
        for j in reversed(range(self.num_classes - 1)):
            whole = left + z[..., j]
            g.append(wanted[..., j] / whole + mean)
            mean, left = (left * mean + z[..., j] * g[-1]) / whole, whole
        return torch.stack(g[::-1], -1) / interpolate(self.scale, s)[..., None].double()

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        v, rest = simplex.to_sticks(z)
        error = self.sticks.weighted_scores(u.double(), v, rest, s) - (v * rest).sqrt() * self.stick_scores(out, z, s)
        squared = (self._speeds() * error.square()).sum(-1)
        return (0.5 * length * time_slope(self.sticks.times, s) * squared).to(out.dtype)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        v, rest = simplex.to_sticks(z)
        variance, scores = self._variance(s, then), self.stick_scores(out, z, s)
        rise, fall = variance * v * scores.clamp_min(0), variance * rest * (-scores).clamp_min(0)
        return self.sticks.drift_and_diffuse(v, rest, rise, fall, variance, noise).to(z.dtype)

    def _variance(self, s: Fraction, then: Fraction) -> Sticks:
        times = self.sticks.times
        step = self.sticks.dilation * (interpolate(times, s) - interpolate(times, then)).clamp_min(0)
        return step.double()[..., None] * self._speeds()

    # ---- the published sampler ----------------------------------------------------------------------------------

    def euler_times(self, fraction: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """s after this fraction of the time τ, which Euler-Maruyama takes in equal steps."""
        times = self.sticks.times.cpu().double()
        wanted = times[0] + (times[-1] - times[0]) * fraction.double()
        right = torch.searchsorted(-times, -wanted).clamp(1, len(times) - 1)
        within = (times[right - 1] - wanted) / (times[right - 1] - times[right]).clamp_min(1e-30)
        return ((right - 1 + within.clamp(0, 1)) / (len(times) - 1)).float()

    def euler(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """v + h (½ ((1 - v) - b v) + v (1 - v) G) Δτ + √(h v (1 - v) Δτ) ξ."""
        mean, deviation = self._euler(out, z, s, then)
        v = (mean + deviation * noise.normal(*mean.shape).double()).clamp(CLIP, 1 - CLIP)
        return simplex.from_sticks(v, 1 - v).to(z.dtype)

    def final_token(self, out: Logits, z: State, s: Fraction) -> Int64[Tensor, "..."]:
        """The last step has no noise, and the token is the largest coordinate."""
        v = self._euler(out, z, s, torch.ones_like(s))[0].clamp(CLIP, 1 - CLIP)
        return simplex.from_sticks(v, 1 - v).argmax(-1)

    def _euler(self, out: Logits, z: State, s: Fraction, then: Fraction) -> tuple[Sticks, Sticks]:
        v, rest = simplex.to_sticks(z)
        variance = self._variance(s, then)
        drift = 0.5 * (rest - self.sticks.b * v) + v * rest * self.stick_scores(out, z, s)
        return v + variance * drift, (variance * v * rest).sqrt()
