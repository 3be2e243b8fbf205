"""Flow matching on the sphere (Davis et al. 2024, Fisher-Flow; Cheng et al. 2024, statistical flow matching).

Square roots of distributions fill the positive orthant of the sphere, and geodesics there lead from a random start to
the corner of the token: the angle to e_x shrinks as φ = (1 - r) φ₀, and nothing else changes. The flow of all tokens
together moves with the posterior mean of their velocities,

    v = Σ_k p_k log_z(e_k) / (1 - r).

Starts are √Dirichlet(c): c = 1/2 is uniform on the orthant (Fisher-Flow), c = 1 uniform on the simplex (statistical
flow matching). Their density is Π_i x_i^(2c-1) and the volume at angle φ is sin^(K-2) φ. With φ_k = arccos z_k and
φ₀ = φ_k / (1 - r), therefore,

    log q(z | k) = (2c - 1) log(cos φ₀ / cos φ_k) + ((2c - 1)(K - 1) + K - 2) log(sin φ₀ / sin φ_k) + const

where φ₀ ≤ π/2; elsewhere no geodesic to k can be. Corners are π/2 apart, so from r = 1/2 on the token is certain, and
there the path ends.

Velocities that are certain given the token leave no room for Girsanov's theorem, and the sum of nats is a surrogate:
how much information_gain of x a position becomes when it alone goes on for one cell, and the others wait,

    log p(x | z⁺) - log p(x | z),      p(k | z⁺) ∝ p(k | z) q(z⁺ | k) / q(z | k).

For the exact posterior the sum over cells is the entropy, but for what waiting costs; for other networks it may be on
either side.

With `optimal` training exchanges starts within a batch so that all ways together are shortest (mini-batch optimal
transport; Tong et al. 2023). Starts then tell of tokens, and log q(z | k) above is no longer the evidence.
"""

import math

import torch
from torch import Tensor

from logosphere.geometry import sphere
from logosphere.processes.simplex.process import Path, Share, couple_optimally, information_gain
from logosphere.rng import Noise
from logosphere.types import Float, Int64, Kind, Logits, State

END = 0.5
"""The share r of the geodesic after which no two tokens are possible."""
FORBIDDEN = 1e6
"""Nats for each radian outside of where a token can be: small errors of steps stay small offences."""


class GeodesicPath(Path):
    """From √Dirichlet(concentration) along geodesics."""

    kind: Kind = "surrogate"
    offset = 0.0
    deterministic = True

    def __init__(self, num_classes: int, concentration: float = 0.5, *, optimal: bool = False):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.optimal = optimal
        self.rooted = 2 * concentration - 1
        self.smooth = self.rooted > 0  # a density that is not 0 at the edge of a cap makes velocities jump there
        self.across = self.rooted * (num_classes - 1) + num_classes - 2

    def start(self, batch: int, length: int, noise: Noise) -> State:
        shape = (batch, length, self.num_classes)
        if self.rooted == 0:
            return sphere.normalise(noise.normal(*shape).abs())
        return sphere.normalise((-noise.uniform(*shape).log()).sqrt().float())

    def at(self, u: State, s: Share, noise: Noise) -> State:
        start = self.start(s.shape[0], s.shape[1], noise).to(u)
        start = couple_optimally(start, u, _squared_distances) if self.optimal and self.training else start
        return sphere.geodesic(start, u, END * s)

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        left = (1 - END * s)[..., None]
        cosine = z.clamp(1e-6, 1)
        angle = sphere.angle_over_sine(cosine) * (1 - cosine.square()).sqrt()
        first = angle / left
        inside = first.clamp_max(math.pi / 2)
        # sin φ₀ / sin φ tends to 1 / (1 - r) at the corner itself.
        sines = torch.where(angle > 1e-4, inside.sin() / angle.clamp_min(1e-4).sin(), 1 / left)
        said = self.across * sines.log() - FORBIDDEN * (first - math.pi / 2).clamp_min(0)
        if self.rooted:
            said = said + self.rooted * (inside.cos().clamp_min(1e-6) / cosine).log()
        return said

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        z, u, s = z.double(), u.double(), s.double()  # small differences of large logarithms
        ahead = sphere.geodesic(z, u, END * length / (1 - END * s))
        return information_gain(self, out, u, z, ahead, s, length)

    def velocity(self, p: Float[Tensor, "... K"], z: State, s: Share) -> State:
        """Of the model, per share of the geodesic."""
        strength = sphere.angle_over_sine(z) / (1 - END * s)[..., None]
        return sphere.project(z, p.to(z.dtype) * strength)

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        """Euler's step along a geodesic."""
        step = END * (then - s).clamp_min(0)[..., None]
        return sphere.exp(z, step * self.velocity(out.softmax(-1), z, s)).abs()

    def flow(self, out: Logits, z: State, s: Share) -> State:
        return END * self.velocity(out.softmax(-1), z, s)

    def paced(self, share: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return share

    def euler(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        return self.moved(out, z, s, then, noise)

    def decided(self, out: Logits, z: State, s: Share) -> Int64[Tensor, "..."]:
        """The likeliest token of the last prediction."""
        return out.argmax(-1)

    def onto(self, z: State) -> State:
        return sphere.normalise(z.clamp_min(0))

    def log_start(self, z: State) -> Float[Tensor, "..."]:
        return self.rooted * z.clamp_min(1e-12).log().sum(-1)

    def log_end(self, u: State, z: State) -> Float[Tensor, "..."]:
        """The start lies on the same geodesic, and its density is thinned by the way the geodesics run together."""
        angle = sphere.distance(z, u)
        start = sphere.geodesic(u, z, 1 / (1 - END) * torch.ones_like(angle))
        thinned = (self.num_classes - 2) * ((angle / (1 - END)).sin() / angle.sin().clamp_min(1e-12)).log()
        return self.log_start(start) + thinned - math.log(1 - END)

    def squared_error(self, out: Logits, u: State, z: State, s: Share) -> Float[Tensor, "..."]:
        """|v_θ - v_x|², which the papers minimise."""
        return self.velocity(out.softmax(-1) - u, z, s).square().sum(-1)


def _squared_distances(start: State, u: State) -> Float[Tensor, "B C"]:
    """The squares of the angles between starts and corners, summed over positions."""
    angles = start.clamp(0, 1).acos().square()
    return torch.einsum("blk,clk->bc", angles, u)
