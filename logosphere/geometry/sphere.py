"""The unit sphere S^n in R^(n+1): exponential and logarithm, distances and geodesics.

Points and tangent vectors lie along the last axis. Angles are computed with atan2, which is accurate at 0 and at π,
where arccos loses half of the digits.
"""

import torch
from torch import Tensor

from logosphere.types import Float

Point = Float[Tensor, "... d"]
Vector = Float[Tensor, "... d"]
Scalar = Float[Tensor, "..."]


def dot(x: Vector, y: Vector) -> Float[Tensor, "... 1"]:
    return (x * y).sum(-1, keepdim=True)


def norm(v: Vector) -> Float[Tensor, "... 1"]:
    """|v|, with gradient 0 instead of NaN at v = 0."""
    squared = dot(v, v)
    zero = squared == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squared).sqrt())


def normalise(x: Vector) -> Point:
    """x / |x|."""
    return x / norm(x)


def project(x: Point, v: Vector) -> Vector:
    """The component of v that is tangent at x: v - <x, v> x."""
    return v - dot(x, v) * x


def exp(x: Point, v: Vector) -> Point:
    """Follow the geodesic from x in the tangent direction v for the length |v|: cos|v| x + (sin|v|/|v|) v."""
    length = norm(v)
    return normalise(length.cos() * x + torch.sinc(length / torch.pi) * v)


def distance(x: Point, y: Point) -> Scalar:
    """The angle between x and y: 2 atan2(|x - y|, |x + y|)."""
    return 2 * torch.atan2(norm(x - y), norm(x + y)).squeeze(-1)


def log(x: Point, y: Point) -> Vector:
    """The tangent vector at x that leads to y: length d(x, y), exp(x, log(x, y)) = y.

    To the antipode every direction is shortest; one of them is returned.
    """
    across = project(x, y)
    angle = distance(x, y)[..., None]
    length = norm(across)
    antipodal = (length < 64 * torch.finfo(x.dtype).eps) & (angle > 1)
    across = torch.where(antipodal, project(x, _orthogonal_axis(x)), across)
    length = torch.where(antipodal, norm(across), length)
    near = length == 0
    return torch.where(near, across, angle / torch.where(near, 1.0, length) * across)


def _orthogonal_axis(x: Point) -> Vector:
    """The axis on which x has its smallest coordinate, to find a direction orthogonal to x."""
    return torch.zeros_like(x).scatter(-1, x.abs().argmin(-1, keepdim=True), 1.0)


def geodesic(x: Point, y: Point, fraction: Scalar) -> Point:
    """The point at this fraction of the geodesic from x to y: exp_x(fraction · log_x y)."""
    return exp(x, fraction[..., None] * log(x, y))


def angle_over_sine(cosine: Scalar) -> Scalar:
    """θ / sin θ with cos θ = cosine: the length of log_x(e) over that of its projection e - <x, e> x.

    Near θ = 0 by its series 1 + θ²/6; near the antipode it diverges and is clamped at θ = π - 10⁻³.
    """
    cosine = cosine.clamp(-1 + 5e-7, 1.0)
    near = cosine > 1 - 1e-4
    inner = torch.where(near, 0.0, cosine)
    gap = 1 - cosine  # θ²/2 to leading order
    return torch.where(near, 1 + gap / 3 + 2 * gap**2 / 15, inner.acos() / (1 - inner**2).sqrt())
