"""Linear flow matching on the simplex, the comparison of Stark et al. 2024: straight lines from noise to the corner.

With z₀ ~ Dirichlet(1, …, 1) and z = (1 - r) z₀ + r e_x, all tokens whose share is at least r are possible, and equally
likely before any context is read:

    q(z | k) = (K - 1)! (1 - r)^-(K-1)   where z_k ≥ r, else 0.

Two shares cannot both exceed 1/2, so from r = 1/2 on the token is certain, and there the path ends. The more tokens
there are the earlier this is decided: with K = 160 the largest of the other shares is about log(K)/K = 0.03, and soon
after r = 0.03 one token is left. This is the discontinuity of which the paper speaks. The figure is a surrogate, as for
geodesics (geodesic.py).
"""

import torch
from torch import Tensor

from logosphere.geometry import simplex
from logosphere.processes.simplex.geodesic import END, FORBIDDEN
from logosphere.processes.simplex.process import Path, Share, couple_optimally, information_gain
from logosphere.rng import Noise
from logosphere.types import Float, Int64, Kind, Logits, State


class LinearPath(Path):
    """From the even law of shares along straight lines."""

    kind: Kind = "surrogate"
    offset = 0.0
    deterministic = True

    def __init__(self, num_classes: int, *, optimal: bool = False):
        super().__init__()
        self.width = self.num_classes = num_classes
        self.optimal = optimal

    def start(self, batch: int, length: int, noise: Noise) -> State:
        return simplex.sample_dirichlet(batch, length, self.num_classes, noise)

    def at(self, u: State, s: Share, noise: Noise) -> State:
        start = self.start(s.shape[0], s.shape[1], noise).to(u)
        start = couple_optimally(start, u, _squared_distances) if self.optimal and self.training else start
        return torch.lerp(start, u, (END * s)[..., None].to(u))

    def log_likelihood(self, z: State, s: Share) -> Float[Tensor, "... K"]:
        return -FORBIDDEN * ((END * s)[..., None] - z).clamp_min(0)

    def elbo_term(self, out: Logits, u: State, z: State, s: Share, length: float) -> Float[Tensor, "..."]:
        z, u, s = z.double(), u.double(), s.double()
        ahead = torch.lerp(z, u, (END * length / (1 - END * s))[..., None])
        return information_gain(self, out, u, z, ahead, s, length)

    def velocity(self, p: Float[Tensor, "... K"], z: State, s: Share) -> State:
        """Of the model, per share r of the line."""
        return (p.to(z.dtype) - p.sum(-1, keepdim=True).to(z.dtype) * z) / (1 - END * s)[..., None]

    def moved(self, out: Logits, z: State, s: Share, then: Share, noise: Noise) -> State:
        return z + END * (then - s).clamp_min(0)[..., None] * self.velocity(out.softmax(-1), z, s)

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
        return simplex.project(z)

    def squared_error(self, out: Logits, u: State, z: State, s: Share) -> Float[Tensor, "..."]:
        """|v_θ - v_x|²."""
        return self.velocity(out.softmax(-1) - u, z, s).square().sum(-1)


def _squared_distances(start: State, u: State) -> Float[Tensor, "B C"]:
    """|z₀ - e_x|², summed over positions, but for |z₀|² + 1, which no assignment changes."""
    return -2 * torch.einsum("blk,clk->bc", start, u)
