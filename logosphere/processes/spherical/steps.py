"""Steps on the sphere from time s to s' of the bridge, given the distribution p of the token.

    geodesic   X' = exp_X(Σ_k p_k η_k ds + √(V ds) z)                 one Euler step, as in the paper
    bridge     X' = exp_X(η_k ds + √(V ds (1-s')/(1-s)) z),  k ~ p    towards one token drawn from p
    moment_matched   the mean and the covariance of `bridge` in one normal step: second order, and no token is drawn

with η_k = g(<X, e_k>) (e_k - <X, e_k> X) the drift to token k. A step towards a given token is exact in a flat space,
so that the errors of `bridge` are those of curvature within a step and of drawing tokens independently.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge
from logosphere.rng import WIDE, Noise
from logosphere.types import Float, Int64

SphericalStep = Callable[[Bridge, Tensor, Tensor, Tensor, Tensor, Tensor, Noise], Tensor]
"""(bridge, p [N, K], tokens drawn from it [N], X [N, d], s [N], s' [N], noise) -> X' [N, d]"""


def geodesic(
    bridge: Bridge, p: Float[Tensor, "N K"], k: Int64[Tensor, " N"], x: Tensor, s: Tensor, then: Tensor, noise: Noise
) -> Tensor:
    ds = (then - s)[:, None]
    drift = _to_vertices(p * bridge.drift_strength(x[:, : p.shape[1]], s), x) * ds
    return _exponential_step(x, drift, bridge.total_noise * ds, noise)


def bridge(
    bridge: Bridge, p: Float[Tensor, "N K"], k: Int64[Tensor, " N"], x: Tensor, s: Tensor, then: Tensor, noise: Noise
) -> Tensor:
    ds = (then - s)[:, None]
    pull = bridge.drift_strength(x.gather(1, k[:, None]), s)
    if x.shape[1] > WIDE:
        towards = (k[:, None], (pull * ds).to(x.dtype))
        return _exponential_step_by_rows(x, towards, _bridge_variance(bridge, s, then), noise)
    drift = torch.zeros_like(x).scatter(1, k[:, None], (pull * ds).to(x.dtype))
    return _exponential_step(x, drift, _bridge_variance(bridge, s, then), noise)


def moment_matched(
    bridge: Bridge, p: Float[Tensor, "N K"], k: Int64[Tensor, " N"], x: Tensor, s: Tensor, then: Tensor, noise: Noise
) -> Tensor:
    ds = (then - s)[:, None]
    pull = bridge.drift_strength(x[:, : p.shape[1]], s)
    # Σ_k √p_k ζ_k (e_k - m) has the covariance diag(p) - p pᵀ of a token drawn from p.
    zeta = p.sqrt() * noise.normal(*p.shape).to(p.dtype)
    spread = zeta - p * zeta.sum(1, keepdim=True)
    drift = _to_vertices((p + spread) * pull, x) * ds
    return _exponential_step(x, drift, _bridge_variance(bridge, s, then), noise)


SPHERICAL_STEPS: dict[str, SphericalStep] = {"bridge": bridge, "geodesic": geodesic, "matched": moment_matched}
"""By the name of the sampler."""


def _to_vertices(weights: Float[Tensor, "N K"], x: Tensor) -> Tensor:
    return F.pad(weights, (0, x.shape[1] - weights.shape[1])).to(x.dtype)


def _bridge_variance(bridge: Bridge, s: Tensor, then: Tensor) -> Float[Tensor, "N 1"]:
    """V ds (1 - s')/(1 - s): that of a Brownian bridge in a flat space."""
    return (bridge.total_noise * (then - s) * (1 - then) / (1 - s))[:, None]


def _exponential_step(x: Tensor, drift: Tensor, variance: Tensor, noise: Noise) -> Tensor:
    if x.shape[1] > WIDE:
        return _exponential_step_by_rows(x, drift, variance, noise)
    ambient = drift + variance.clamp_min(0).sqrt() * noise.normal(*x.shape).to(x.dtype)
    return sphere.normalise(sphere.exp(x, sphere.project(x, ambient)))


def _exponential_step_by_rows(
    x: Float[Tensor, "N d"],
    drift: Float[Tensor, "N d"] | tuple[Int64[Tensor, "N 1"], Float[Tensor, "N 1"]],
    variance: Float[Tensor, "N 1"],
    noise: Noise,
) -> Float[Tensor, "N d"]:
    """`_exponential_step` for many coordinates, in the memory of the noise; a drift may have one coordinate per row."""
    moved, blocks = noise.normal_blocks(*x.shape)
    deviation = variance.clamp_min(0).sqrt().to(x.dtype)
    for rows in blocks:
        v, here = moved[rows].mul_(deviation[rows]), x[rows]
        if isinstance(drift, tuple):
            v.scatter_add_(1, drift[0][rows], drift[1][rows])
        else:
            v.add_(drift[rows])
        v.addcmul_(here, -sphere.dot(here, v).expand_as(v))
        length = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        v.mul_(torch.sinc(length / torch.pi)).addcmul_(here, length.cos().expand_as(v))
        v.div_(torch.linalg.vector_norm(v, dim=1, keepdim=True))
    return moved.to(x.dtype)
