"""Flow matching along geodesics of the sphere and straight lines of the simplex, from a random start to a corner.

Geodesics (Davis et al. 2024, Fisher-Flow; Cheng et al. 2024, statistical flow matching). Square roots of distributions
are the positive orthant of the sphere. On a geodesic to the corner of the token the angle to e_x shrinks as
φ = (1 - r) φ₀, and nothing else changes. The model moves with the posterior mean of the velocities,

    v = Σ_k p_k log_z(e_k) / (1 - r).

Starts are √Dirichlet(c): c = 1/2 is uniform on the orthant (Fisher-Flow), c = 1 uniform on the simplex (statistical
flow matching). Their density is Π_i x_i^(2c-1) and the volume at angle φ is sin^(K-2) φ. With φ_k = arccos z_k and
φ₀ = φ_k / (1 - r), therefore,

    log q(z | k) = (2c - 1) log(cos φ₀ / cos φ_k) + ((2c - 1)(K - 1) + K - 2) log(sin φ₀ / sin φ_k) + const

where φ₀ ≤ π/2; elsewhere no geodesic leads to k. Corners are π/2 apart, so from r = 1/2 on the token is certain, and
there the path ends.

Straight lines (the baseline of Stark et al. 2024). With z₀ ~ Dirichlet(1, …, 1) and z = (1 - r) z₀ + r e_x, all tokens
whose coordinate is at least r are possible, and equally likely without context:

    q(z | k) = (K - 1)! (1 - r)^-(K-1)   where z_k ≥ r, else 0.

Two coordinates cannot both exceed 1/2, so the token is certain from r = 1/2 on, and there the path ends. With more
tokens it is certain earlier: with K = 160 the largest of the other coordinates is about log(K)/K = 0.03, and soon after
r = 0.03 one token is left. This is the discontinuity discussed in the paper.

Velocities are deterministic given the token, so Girsanov's theorem gives no bound, and the sum of nats is a surrogate:
the information that a position gains about x when it alone moves on for one cell and the others stay,

    log p(x | z⁺) - log p(x | z),      p(k | z⁺) ∝ p(k | z) q(z⁺ | k) / q(z | k).

For the exact posterior the sum over cells is the entropy, up to the effect of the other positions staying; for other
networks it may be on either side.

With `ot_coupling` training permutes starts within a batch so that the total length of all paths is smallest (mini-batch
optimal transport; Tong et al. 2023). Starts then depend on tokens, and log q(z | k) above is no longer the evidence.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.geometry import simplex, sphere
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.simplex.process import (
    ConditionalPath,
    DensityPath,
    DeterministicPath,
    EulerPath,
    Fraction,
    couple_optimally,
    information_gain,
    with_clean_states,
)
from logosphere.rng import Noise
from logosphere.types import Float, Kind, Logits, Positions, State, Times

END = 0.5
"""r at the end of a path, from which on the token is certain."""
EXCLUSION_PENALTY = 1e6
"""Nats for each radian outside of the region of a token; finite, so that numerical errors stay small."""


class GeodesicPath(ConditionalPath, DensityPath, EulerPath):
    """From √Dirichlet(concentration) along geodesics."""

    kind: Kind = "surrogate"
    offset = 0.0

    def __init__(self, num_classes: int, concentration: float = 0.5, *, ot_coupling: bool = False):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.ot_coupling = ot_coupling
        self.power = 2 * concentration - 1
        self.smooth = self.power > 0  # a density that is not 0 at the edge of a region makes velocities jump there
        self.sine_power = self.power * (num_classes - 1) + num_classes - 2

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        shape = (batch, length, self.num_classes)
        if self.power == 0:
            return sphere.normalise(noise.normal(*shape).abs())
        return sphere.normalise((-noise.uniform(*shape).log()).sqrt().float())

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        start = self.sample_prior(s.shape[0], s.shape[1], noise).to(u)
        start = couple_optimally(start, u, _squared_angles) if self.ot_coupling and self.training else start
        return sphere.geodesic(start, u, END * s)

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        left = (1 - END * s)[..., None]
        cosine = z.clamp(1e-6, 1)
        angle = sphere.angle_over_sine(cosine) * (1 - cosine.square()).sqrt()
        first = angle / left  # φ₀
        inside = first.clamp_max(math.pi / 2)
        # sin φ₀ / sin φ tends to 1 / (1 - r) at the corner itself.
        sines = torch.where(angle > 1e-4, inside.sin() / angle.clamp_min(1e-4).sin(), 1 / left)
        evidence = self.sine_power * sines.log() - EXCLUSION_PENALTY * (first - math.pi / 2).clamp_min(0)
        if self.power:
            evidence = evidence + self.power * (inside.cos().clamp_min(1e-6) / cosine).log()
        return evidence

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        z, u, s = z.double(), u.double(), s.double()  # small differences of large logarithms
        ahead = sphere.geodesic(z, u, END * length / (1 - END * s))
        return information_gain(self, out, u, z, ahead, s, length)

    def mean_velocity(self, p: Float[Tensor, "... K"], z: State, s: Fraction) -> State:
        """v = Σ_k p_k log_z(e_k) / (1 - r), per unit of r."""
        strength = sphere.angle_over_sine(z) / (1 - END * s)[..., None]
        return sphere.project(z, p.to(z.dtype) * strength)

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        """Euler's step along a geodesic."""
        step = END * (then - s).clamp_min(0)[..., None]
        return sphere.exp(z, step * self.mean_velocity(out.softmax(-1), z, s)).abs()

    def euler(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        return self.step(out, z, s, then, noise)

    def velocity(self, out: Logits, z: State, s: Fraction) -> State:
        return END * self.mean_velocity(out.softmax(-1), z, s)

    def project(self, z: State) -> State:
        return sphere.normalise(z.clamp_min(0))

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        return self.power * z.clamp_min(1e-12).log().sum(-1)

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """The density of the start on the same geodesic over the factor by which geodesics contract."""
        angle = sphere.distance(z, u)
        start = sphere.geodesic(u, z, 1 / (1 - END) * torch.ones_like(angle))
        contraction = (self.num_classes - 2) * ((angle / (1 - END)).sin() / angle.sin().clamp_min(1e-12)).log()
        return self.log_start(start) + contraction - math.log(1 - END)

    def squared_error(self, out: Logits, u: State, z: State, s: Fraction) -> Float[Tensor, "..."]:
        """|v_θ - v_x|², the loss of the papers."""
        return self.mean_velocity(out.softmax(-1) - u, z, s).square().sum(-1)


def _squared_angles(start: State, u: State) -> Float[Tensor, "B C"]:
    """The squared angles between starts and corners, summed over positions."""
    return torch.einsum("blk,clk->bc", start.clamp(0, 1).acos().square(), u)


class LinearPath(ConditionalPath, DeterministicPath, EulerPath):
    """From the uniform distribution on the simplex along straight lines."""

    kind: Kind = "surrogate"
    offset = 0.0

    def __init__(self, num_classes: int, *, ot_coupling: bool = False):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.ot_coupling = ot_coupling

    def sample_prior(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def q_sample(self, u: State, s: Fraction, noise: Noise) -> State:
        start = self.sample_prior(s.shape[0], s.shape[1], noise).to(u)
        start = couple_optimally(start, u, _squared_distances) if self.ot_coupling and self.training else start
        return torch.lerp(start, u, (END * s)[..., None].to(u))

    def log_likelihood(self, z: State, s: Fraction) -> Float[Tensor, "... K"]:
        return -EXCLUSION_PENALTY * ((END * s)[..., None] - z).clamp_min(0)

    def elbo_term(self, out: Logits, u: State, z: State, s: Fraction, length: float) -> Float[Tensor, "..."]:
        z, u, s = z.double(), u.double(), s.double()
        ahead = torch.lerp(z, u, (END * length / (1 - END * s))[..., None])
        return information_gain(self, out, u, z, ahead, s, length)

    def mean_velocity(self, p: Float[Tensor, "... K"], z: State, s: Fraction) -> State:
        """Σ_k p_k (e_k - z) / (1 - r), per unit of r."""
        return (p.to(z.dtype) - p.sum(-1, keepdim=True).to(z.dtype) * z) / (1 - END * s)[..., None]

    def step(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        return z + END * (then - s).clamp_min(0)[..., None] * self.mean_velocity(out.softmax(-1), z, s)

    def euler(self, out: Logits, z: State, s: Fraction, then: Fraction, noise: Noise) -> State:
        return self.step(out, z, s, then, noise)

    def velocity(self, out: Logits, z: State, s: Fraction) -> State:
        return END * self.mean_velocity(out.softmax(-1), z, s)

    def project(self, z: State) -> State:
        return simplex.project(z)

    def squared_error(self, out: Logits, u: State, z: State, s: Fraction) -> Float[Tensor, "..."]:
        """|v_θ - v_x|²."""
        return self.mean_velocity(out.softmax(-1) - u, z, s).square().sum(-1)


def _squared_distances(start: State, u: State) -> Float[Tensor, "B C"]:
    """|z₀ - e_x|² summed over positions, without |z₀|² + 1, which does not affect the assignment."""
    return -2 * torch.einsum("blk,clk->bc", start, u)


MIN_PROBABILITY = 1e-4
"""Lower limit of the probabilities implied by a velocity, over all tokens together."""
ROUNDING = 1e-4
"""A token is excluded only if its coordinate is this much too small, because coordinates are rounded."""
MIN_TIME = 1e-4
"""Lower limit of times in the velocity of the geodesic, which is divided by them."""


class TangentFlow(Process):
    """Flow matching along geodesics with an unconstrained field, as published; t = 1 - r.

    The network predicts a vector w, of which the part tangent at z is the velocity v_θ = w - <z, w> z. With
    z = exp_{z₀}(r log_{z₀} e_x), r uniform on [0, 1], training minimises

        E |v_θ(z, r) - log_z(e_x) / (1 - r)|²,

    and sampling takes Euler steps z ← |exp_z(v_θ Δr)| from r = 0 to 1; the token is the largest coordinate at the end.

    There is no bound. The number is the surrogate of `GeodesicPath`, with the distribution of tokens that the velocity
    implies: v = Σ_k p_k log_z(e_k) / (1 - r) has exactly one solution p with Σ p_k = 1. With θ_k = φ_k / sin φ_k and
    cos φ_k = z_k it is

        p_k = (1 - r) v_k / θ_k + λ z_k / θ_k,      λ = (1 - (1 - r) Σ v_k / θ_k) / Σ (z_k / θ_k).

    An unconstrained field may make some p_k negative; they are clamped to a small positive number. Tokens to which no
    geodesic can lead, z_k < sin(π r / 2), are left out: the state excludes them, and every cell would count them again.
    Cells cover r from 0 to 1/2, where the token is certain for the exact field and is decoded.
    """

    shares_times = True
    kind = "surrogate"
    predicts_tokens = False
    recon_time = 1 - END

    def __init__(self, codec: Codec, path: GeodesicPath, cells: int):
        super().__init__()
        self.codec, self.path, self.cells = codec, path, cells

    def _fraction(self, t: Float[Tensor, "..."]) -> Fraction:
        """The fraction s of `path`, which ends at r = END: above 1 beyond it."""
        return (1 - t.clamp_min(MIN_TIME)) / END

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.path.sample_prior(batch, length, noise)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return torch.where(t[..., None] > 0, self.path.q_sample(u, (1 - t) / END, noise), u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """Training draws r uniformly from [0, 1]; evaluation the cells of [0, 1/2] and its end."""
        block = u.shape[1] // w.shape[1]
        if self.training:
            t, weight = (1 - w).clamp_min(MIN_TIME), torch.ones_like(w)
        else:
            cell = (w * (self.cells + 1)).long().clamp_max(self.cells)
            t, weight = 1 - END * cell / self.cells, torch.full_like(w, self.cells + 1)
        t = torch.where(free, t.float().repeat_interleave(block, 1), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight.repeat_interleave(block, 1).float())

    def velocity(self, out: Tensor, z: State) -> State:
        """v_θ, per unit of r."""
        return sphere.project(z, out.to(z.dtype))

    def squared_error(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|v_θ - log_z(e_x) / (1 - r)|²."""
        return (self.velocity(out, z) - self.path.mean_velocity(u, z, self._fraction(t))).square().sum(-1)

    def logits(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        """log p of the distribution of tokens that the velocity implies."""
        theta, left = sphere.angle_over_sine(z), t.clamp_min(MIN_TIME)[..., None].to(z.dtype)
        scaled = left * self.velocity(out, z) / theta
        base = z / theta
        p = scaled + base * (1 - scaled.sum(-1, keepdim=True)) / base.sum(-1, keepdim=True)
        return p.clamp_min(MIN_PROBABILITY / z.shape[-1]).log().log_softmax(-1)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        return with_clean_states(self.path.log_likelihood(z, self._fraction(t)), z, t)

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        return self.path.mean_velocity(posterior.softmax(-1), z, self._fraction(t))

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if self.training:
            return self.squared_error(out, u, z, t)
        excluded = (z < torch.sin(torch.pi / 2 * (1 - t[..., None])) - ROUNDING) & (u == 0)
        logits = self.logits(out, z, t).masked_fill(excluded, -MAX_LOGIT).log_softmax(-1)
        term = self.path.elbo_term(logits, u, z, self._fraction(t), 1 / self.cells)
        return torch.where(t <= self.recon_time, -(logits * u).sum(-1), term)

    def loss(self, rate: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        return rate

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """Euler's step along a geodesic, reflected into the orthant; at s = 0 the nearest corner."""
        moved = sphere.exp(z, (t - s).clamp_min(0)[..., None] * self.velocity(out, z)).abs()
        moved = torch.where((t > s)[..., None], moved, z)
        corner = F.one_hot(moved.argmax(-1), z.shape[-1]).to(z.dtype)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], corner, z), moved)
