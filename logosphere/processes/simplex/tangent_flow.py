"""Flow matching on the sphere with a free field (Davis et al. 2024, Fisher-Flow; Cheng et al. 2024, SFM).

The network answers with a vector w, of which the part tangent at z is the velocity v_θ = w - <z, w> z. With
z = exp_{z₀}(r log_{z₀} e_x), r uniform on [0, 1], training minimises

    E |v_θ(z, r) - log_z(e_x) / (1 - r)|²,

and sampling takes Euler steps z ← |exp_z(v_θ Δr)| from r = 0 to 1; the token is the largest coordinate at the end.

There is no bound. The figure is the surrogate of geodesic.py, with the distribution of tokens that the velocity stands
for: v = Σ_k p_k log_z(e_k) / (1 - r) has exactly one solution p with Σ p_k = 1. With θ_k = φ_k / sin φ_k and
cos φ_k = z_k it is

    p_k = (1 - r) v_k / θ_k + λ z_k / θ_k,      λ = (1 - (1 - r) Σ v_k / θ_k) / Σ (z_k / θ_k).

A free field may make some p_k negative; they are cut off at a small positive number. Tokens to which no geodesic can
lead, z_k < sin(π r / 2), are left out: the state excludes them, and every cell would count them again. Cells cover r
from 0 to 1/2, where the token is certain for the exact field, and the reconstruction term is taken there.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.geometry import sphere
from logosphere.processes.base import MAX_LOGIT, ForwardSample, Process
from logosphere.processes.simplex.geodesic import END, GeodesicPath
from logosphere.rng import Noise
from logosphere.types import Float, Logits, Positions, State, Times

FLOOR = 1e-4
"""The smallest probability a velocity can stand for, over all tokens together."""
SLACK = 1e-4
"""Coordinates are rounded, so that a token is excluded only when it falls this far short."""
LATEST = 1e-4
"""Times closer to the data are taken for this one where the velocity of the geodesic divides by them."""


class TangentFlow(Process):
    """Geodesics from a random start to the corner of the token; t = 1 - r."""

    kind = "surrogate"
    predicts_tokens = False
    recon_time = 1 - END

    def __init__(self, codec: Codec, path: GeodesicPath, cells: int):
        super().__init__()
        self.codec, self.path, self.cells = codec, path, cells

    def _share(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The share of the way of `path`, which ends at r = END: above 1 beyond it."""
        return (1 - t.clamp_min(LATEST)) / END

    # ---- forward ----------------------------------------------------------------------------------------------

    def prior(self, batch: int, length: int, noise: Noise) -> State:
        return self.path.start(batch, length, noise)

    def corrupt(self, u: State, t: Times, noise: Noise) -> State:
        return torch.where(t[..., None] > 0, self.path.at(u, (1 - t) / END, noise), u)

    def sample_zt(self, u: State, w: Float[Tensor, "B J"], free: Positions, noise: Noise) -> ForwardSample:
        """Training draws r uniformly from [0, 1]; a figure is measured at the cells of [0, 1/2] and at its end."""
        block = u.shape[1] // w.shape[1]
        if self.training:
            t, weight = (1 - w).clamp_min(LATEST), torch.ones_like(w)
        else:
            cell = (w * (self.cells + 1)).long().clamp_max(self.cells)
            t, weight = 1 - END * cell / self.cells, torch.full_like(w, self.cells + 1)
        t = torch.where(free, t.float().repeat_interleave(block, 1), 0.0)
        return ForwardSample(self.corrupt(u, t, noise), t, weight.repeat_interleave(block, 1).float())

    # ---- the loss and the figure --------------------------------------------------------------------------------

    def velocity(self, out: Tensor, z: State) -> State:
        """v_θ, per unit of r."""
        return sphere.project(z, out.to(z.dtype))

    def squared_error(self, out: Tensor, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """|v_θ - log_z(e_x) / (1 - r)|²."""
        return (self.velocity(out, z) - self.path.velocity(u, z, self._share(t))).square().sum(-1)

    def logits(self, out: Tensor, z: State, t: Float[Tensor, "..."]) -> Logits:
        """log p of the distribution of tokens that the velocity stands for."""
        theta, left = sphere.angle_over_sine(z), t.clamp_min(LATEST)[..., None].to(z.dtype)
        told = left * self.velocity(out, z) / theta
        base = z / theta
        p = told + base * (1 - told.sum(-1, keepdim=True)) / base.sum(-1, keepdim=True)
        return p.clamp_min(FLOOR / z.shape[-1]).log().log_softmax(-1)

    def log_likelihood(self, z: State, t: Float[Tensor, "..."]) -> Logits:
        said = self.path.log_likelihood(z, self._share(t))
        said = said - said.amax(-1, keepdim=True)
        clean = MAX_LOGIT * (F.one_hot(z.argmax(-1), z.shape[-1]) - 1)
        return torch.where(t[..., None] > 0, said, clean.to(said.dtype))

    def from_posterior(self, posterior: Logits, z: State, t: Float[Tensor, "..."]) -> Tensor:
        return self.path.velocity(posterior.softmax(-1), z, self._share(t))

    def elbo_rate(self, out: Logits, u: State, z: State, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if self.training:
            return self.squared_error(out, u, z, t)
        excluded = (z < torch.sin(torch.pi / 2 * (1 - t[..., None])) - SLACK) & (u == 0)
        logits = self.logits(out, z, t).masked_fill(excluded, -MAX_LOGIT).log_softmax(-1)
        along = self.path.elbo_term(logits, u, z, self._share(t), 1 / self.cells)
        return torch.where(t <= self.recon_time, -(logits * u).sum(-1), along)

    def loss(self, nats: Tensor, out: Logits, u: State, z: State, t: Tensor, weight: Tensor) -> Float[Tensor, "..."]:
        return nats

    # ---- backward ---------------------------------------------------------------------------------------------

    def step(self, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """Euler's step along a geodesic, brought back into the orthant; at the end the corner nearest to it."""
        moved = sphere.exp(z, (t - s).clamp_min(0)[..., None] * self.velocity(out, z)).abs()
        moved = torch.where((t > s)[..., None], moved, z)
        corner = F.one_hot(moved.argmax(-1), z.shape[-1]).to(z.dtype)
        return torch.where((s == 0)[..., None], torch.where((t > 0)[..., None], corner, z), moved)
