"""Dirichlet diffusion by stick breaking with a free score, as published (Avdeyev et al. 2023, DDSM).

The network answers with K numbers; less their mean and times the scale √w(τ) they are g = ∇_z log p(z) / p_noise(z),
and since noise is uniform on the simplex, with the stick coordinates v of sticks.py and ℓ_j = Σ_(i ≥ j) z_i,

    G_j = ∂ log(p / p_noise) / ∂v_j = ℓ_j (g_j - Σ_(k > j) z_k g_k / ℓ_(j+1)).

Score matching is weighted by the diffusion coefficient h_j v_j (1 - v_j), which is Girsanov's theorem:

    -log p(x) ≤ ½ ∫ E Σ_j h_j v_j (1 - v_j) (G_j(x) - G_j)² dτ + E[-log p(x | z_0)] + prior.

w(τ) is the mean of Σ_j h_j v_j (1 - v_j) G_j(x)²; the paper draws times in proportion to √w. The token is read off the
state alone: p(x = k | z_0) ∝ q(z_0 | k), so that the figure is a bound for every network. So states must be clear at
τ = 0: with M = 16 lives fewer than 1% of 256 tokens are misread, with M = 8 it is 6% of 27.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex import death_process
from logosphere.processes.simplex.process import Path, Share
from logosphere.processes.simplex.stick_breaking import StickPath, Sticks
from logosphere.rng import GeneratorNoise, Noise, running_sum
from logosphere.types import Float, Int64, Kind, Logits, State

DRAWS, NODES = 1 << 13, 64
"""Sticks drawn to estimate w at each of so many steps of the path."""
CLIP = 1e-5
"""Sticks stay this far from 0 and 1 in Euler-Maruyama steps, as in the paper."""


class StickScores(Path):
    """The path of `sticks`, run backwards by a free score."""

    kind: Kind = "bound"
    offset = None
    tokens = False
    root: Tensor

    def __init__(self, sticks: StickPath):
        super().__init__()
        self.sticks, self.num_classes, self.width = sticks, sticks.num_classes, sticks.width
        self.register_buffer("root", self._root().float(), persistent=False)

    def _root(self) -> Float[Tensor, " n"]:
        """√(w / mean of w over τ) at even steps of s."""
        draws = max(32, DRAWS // self.num_classes)
        noise = GeneratorNoise(torch.Generator().manual_seed(0), draws)
        u = F.one_hot(torch.arange(draws) % self.num_classes, self.num_classes)[:, None].float()
        found = []
        for s in torch.linspace(0, 1, NODES + 1):
            share = s.expand(draws, 1)
            squared = self._targets(u, self.sticks.at(u, share, noise), share).square()
            found.append((self._speeds() * squared).sum(-1).mean())
        w, tau = torch.stack(found), death_process.between(self.sticks.times, torch.linspace(0, 1, NODES + 1)).double()
        mean = ((w[1:] + w[:-1]) / 2 * (tau[:-1] - tau[1:])).sum() / (tau[0] - tau[-1])
        return (w / mean).sqrt()

    def importance(self, cells: int) -> Float[Tensor, " n"]:
        """How likely each of so many even steps of s is drawn: in proportion to √w dτ, as in the paper."""
        middle = (torch.arange(cells) + 0.5) / cells
        law = (
            death_process.between(self.root, middle).double()
            * death_process.steepness(self.sticks.times, middle).double()
        )
        return law / law.sum()

    def _speeds(self) -> Float[Tensor, " J"]:
        """h_j."""
        return 2 / (1 + self.sticks.others)

    def _targets(self, u: State, z: State, s: Share) -> Sticks:
        """√(v (1 - v)) G(x)."""
        return self.sticks.pulled(u.double(), *simplex.to_sticks(z), s)

    # ---- the path -----------------------------------------------------------------------------------------------

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return self.sticks.start(batch, length, noise)

    def at(self, u: State, s: Share, noise: Noise) -> State:
        return self.sticks.at(u, s, noise)

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return self.sticks.log_likelihood(z, s)

    def prior_kl(self) -> float:
        return self.sticks.prior_kl()

    def reading(self, out: Logits, z: State, s: Share) -> Logits:
        return self.sticks.log_likelihood(z, s)

    # ---- the score ----------------------------------------------------------------------------------------------

    def slopes(self, out: Tensor, z: State, s: Share) -> Sticks:
        """G_j, float64."""
        g = death_process.between(self.root, s)[..., None].double() * (out - out.mean(-1, keepdim=True)).double()
        z = z.double()
        left = running_sum(z.flip(-1)).flip(-1).clamp_min(1e-30)
        after = running_sum((z * g).flip(-1)).flip(-1)[..., 1:] / left[..., 1:]
        return left[..., :-1] * (g[..., :-1] - after)

    def from_posterior(self, posterior: Logits, z: State, s: Share) -> Tensor:
        """The answer whose slopes are the mean Σ_k p_k G(k): g_K = 0, the others from the last to the first."""
        v, rest = simplex.to_sticks(z)
        wanted = self.sticks.pulled(posterior.softmax(-1).double(), v, rest, s) / (v * rest).clamp_min(1e-30).sqrt()
        z = z.double()
        g, mean, left = [torch.zeros_like(z[..., 0])], torch.zeros_like(z[..., 0]), z[..., -1].clamp_min(1e-30)
        for j in reversed(range(self.num_classes - 1)):
            whole = left + z[..., j]
            g.append(wanted[..., j] / whole + mean)
            mean, left = (left * mean + z[..., j] * g[-1]) / whole, whole
        return torch.stack(g[::-1], -1) / death_process.between(self.root, s)[..., None].double()

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        v, rest = simplex.to_sticks(z)
        missed = self.sticks.pulled(u.double(), v, rest, s) - (v * rest).sqrt() * self.slopes(out, z, s)
        squared = (self._speeds() * missed.square()).sum(-1)
        return (0.5 * length * death_process.steepness(self.sticks.times, s) * squared).to(out.dtype)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """As for posteriors: the pull held fixed, for which a step is exact and never outside; then noise."""
        v, rest = simplex.to_sticks(z)
        variance, slopes = self._variance(s, then), self.slopes(out, z, s)
        rise, fall = variance * v * slopes.clamp_min(0), variance * rest * (-slopes).clamp_min(0)
        return self.sticks.drawn(v, rest, rise, fall, variance, noise).to(z.dtype)

    def _variance(self, s: Share, then: Share) -> Sticks:
        times = self.sticks.times
        step = self.sticks.dilation * (death_process.between(times, s) - death_process.between(times, then)).clamp_min(
            0
        )
        return step.double()[..., None] * self._speeds()

    # ---- the published sampler ----------------------------------------------------------------------------------

    def paced(self, share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """s after this share of the time τ, which Euler-Maruyama takes in equal steps."""
        times = self.sticks.times.cpu().double()
        wanted = times[0] + (times[-1] - times[0]) * share.double()
        right = torch.searchsorted(-times, -wanted).clamp(1, len(times) - 1)
        within = (times[right - 1] - wanted) / (times[right - 1] - times[right]).clamp_min(1e-30)
        return ((right - 1 + within.clamp(0, 1)) / (len(times) - 1)).float()

    def euler(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """v + h (½ ((1 - v) - b v) + v (1 - v) G) Δτ + √(h v (1 - v) Δτ) ξ."""
        mean, scale = self._euler(out, z, s, then)
        v = (mean + scale * noise.normal(*mean.shape).double()).clamp(CLIP, 1 - CLIP)
        return simplex.from_sticks(v, 1 - v).to(z.dtype)

    def decided(self, out: Logits, z: State, s: Share) -> Int64[Tensor, "..."]:
        """The last step has no noise, and the token is the largest share."""
        v = self._euler(out, z, s, torch.ones_like(s))[0].clamp(CLIP, 1 - CLIP)
        return simplex.from_sticks(v, 1 - v).argmax(-1)

    def _euler(self, out: Logits, z: State, s: Share, then: Share) -> tuple[Sticks, Sticks]:
        v, rest = simplex.to_sticks(z)
        variance = self._variance(s, then)
        drift = 0.5 * (rest - self.sticks.others * v) + v * rest * self.slopes(out, z, s)
        return v + variance * drift, (variance * v * rest).sqrt()
