"""The law of a state of the log bridge, taken for normal in the tangent space at its mean direction μ.

It has one variance along the geodesic to the vertex and another across it, both read off the table of (a, b);
log(θ / sin θ) is the change of volume.
"""

import torch
from torch import Tensor

from logosphere.geometry import sphere
from logosphere.geometry.bridges import BridgeTable
from logosphere.types import Float


def tangent(a: Tensor, b: Tensor, mean_a: Tensor, mean_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log_μ(X) for μ = (mean_a, mean_b): its part towards e, its squared length θ², and θ / sin θ."""
    cosine = (a * mean_a + b * mean_b).clamp(-1, 1)
    ratio = sphere.angle_over_sine(cosine)
    return ratio * (a * mean_b - b * mean_a), ratio.square() * (1 - cosine.square()), ratio


def tangent_moments(law: BridgeTable, d: int) -> Float[Tensor, "N 5"]:
    """At each time: the mean direction, how far X is beyond it on average, and one over the variances along and across.

    Where the law is a point the variances are 0, and what a state says there is nothing.
    """
    a, b = law.a.double(), law.b.double()
    mean = torch.stack([a.mean(1), b.mean(1)])
    mean_a, mean_b = mean / mean.norm(dim=0)
    forward, squared, _ = tangent(a, b, mean_a[:, None], mean_b[:, None])
    along, across = forward.var(1), (squared - forward.square()).clamp_min(0).mean(1) / (d - 2)
    weights = [torch.where(variance > 1e-12, 1 / variance.clamp_min(1e-12), 0.0) for variance in (along, across)]
    return torch.stack([mean_a, mean_b, forward.mean(1), *weights], dim=1).float()


def normal_log_p(a: Tensor, b: Tensor, moments: Float[Tensor, "... 5"], d: int) -> Float[Tensor, "... K"]:
    """log p(X | e_k) up to a constant, for the coordinates (a, b) of X towards each vertex."""
    mean_a, mean_b, middle, along, across = moments[..., None].unbind(-2)
    forward, squared, ratio = tangent(a, b, mean_a, mean_b)
    said = (d - 2) * ratio.log()
    return said - 0.5 * (along * (forward - middle).square() + across * (squared - forward.square()))
