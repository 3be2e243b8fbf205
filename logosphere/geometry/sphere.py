"""The unit sphere S^n in R^(n+1): exponential and logarithm, distances, geodesics, and the heat kernel.

Points and tangent vectors lie along the last axis. Angles are computed with atan2, which is accurate at 0 and at π,
where arccos loses half of the digits.

The heat kernel is the transition density of Brownian motion on the sphere:

    log p_τ(θ) = -θ²/2τ + (n-1)/2 · log(θ / sin θ) + τ A(θ) + log r_τ(θ) - n/2 · log 2πτ

The first three terms contain the curvature along a geodesic to first order, where A is the mean along it of
q(θ) = (n-1)²/8 - (n-1)(n-3)/8 · (1/sin²θ - 1/θ²). The remainder w = log r is small and smooth; it solves an equation
in x = θ² without singular points, which is integrated from τ → 0 by collocation at Chebyshev nodes:

    ∂w/∂log τ = 2xτ (w'' + w'²) + (nτ + 4xτ²A' - 2x) w' + τ² (2x(A'' + τA'²) + nA')

The equation of r itself is linear, but in many dimensions r is below the rounding of its largest values.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.rng import WIDE
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

    Near θ = 0 by its series 1 + θ²/6; near the antipode it diverges and is clamped at θ = π - 10⁻³. Over many vertices
    without a case distinction: acos(c) / √((1 - c)(1 + c)) is accurate for every c < 1 if both factors are exact.
    """
    if cosine.shape[-1:] > (WIDE,) and not cosine.requires_grad:
        inner = cosine.clamp(-1 + 5e-7, 1 - torch.finfo(cosine.dtype).eps / 2)
        return inner.acos().mul_((1 - inner).mul_(inner.add_(1)).rsqrt_())
    cosine = cosine.clamp(-1 + 5e-7, 1.0)
    near = cosine > 1 - 1e-4
    inner = torch.where(near, 0.0, cosine)
    gap = 1 - cosine  # θ²/2 to leading order
    return torch.where(near, 1 + gap / 3 + 2 * gap**2 / 15, inner.acos() / (1 - inner**2).sqrt())


NODES = 16
"""Collocation nodes: 16 give five digits of log p; from 24 on rounding errors grow."""
STEPS = 1200
MAX_ANGLE = 2.8
"""Larger angles have negligible probability, and 1/sin² diverges at π; the remainder is constant beyond this angle."""
FEW_DIMENSIONS, LATE, TERMS = 8, 0.4, 40
"""Up to this n the expansion about τ = 0 fails for τ ≥ LATE; there the sum of this many harmonics is exact."""
MIN_DENSITY = 1e-12
"""Densities below this, relative to the uniform one, are rounding errors of the sum of harmonics."""
START_FRACTION = 1e-4
"""The integration starts at this fraction of the largest time, where r = 1."""


@dataclass(frozen=True)
class HeatKernel:
    """log p_τ and its derivative with respect to the cosine, by linear interpolation in a table."""

    times: Float[Tensor, " T"]
    """Logarithms of τ, evenly spaced."""
    log_density: Float[Tensor, "T G"]
    """Over cosines evenly spaced from -1 to 1, without the constant n/2 log 2πτ."""
    slope: Float[Tensor, "T G"]
    """d log p / d cos θ: the gradient at X towards e is slope · (e - <X, e> X)."""
    _copies: dict[tuple[str, torch.device, torch.dtype], Tensor] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Flattened tables by device and precision."""

    def log_p(self, cosine: Float[Tensor, "... K"], tau: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        return self._interpolate("log_density", cosine, tau)

    def cosine_gradient(self, cosine: Float[Tensor, "... K"], tau: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        return self._interpolate("slope", cosine, tau)

    def _flat(self, name: str, like: Tensor) -> Tensor:
        key = (name, like.device, like.dtype)
        if key not in self._copies:
            self._copies[key] = getattr(self, name).to(like).flatten()
        return self._copies[key]

    def _interpolate(self, name: str, cosine: Tensor, tau: Tensor) -> Tensor:
        if cosine.shape[-1] > WIDE and not cosine.requires_grad:
            return self._interpolate_many(name, cosine, tau)
        rows, columns = self.slope.shape
        at = (tau.log() - float(self.times[0])) / float(self.times[1] - self.times[0])
        row = at.clamp(0, rows - 1.001).floor()
        high = (at.clamp(0, rows - 1) - row)[..., None].to(cosine.dtype)
        place = (cosine.clamp(-1, 1) + 1) * (0.5 * (columns - 1))
        column = place.clamp(0, columns - 1.001).floor()
        right = place - column
        flat, first = self._flat(name, cosine), (row[..., None].long() * columns) + column.long()
        low_row = torch.lerp(flat[first], flat[first + 1], right)
        high_row = torch.lerp(flat[first + columns], flat[first + columns + 1], right)
        return torch.lerp(low_row, high_row, high)

    def _interpolate_many(self, name: str, cosine: Float[Tensor, "... K"], tau: Float[Tensor, "..."]) -> Tensor:
        """For many cosines at each time: the table is interpolated first in time, and then in the cosine."""
        rows, columns = self.slope.shape
        at = (tau.log() - float(self.times[0])) / float(self.times[1] - self.times[0])
        row = at.clamp(0, rows - 1.001).floor()
        high = (at.clamp(0, rows - 1) - row)[..., None].to(cosine.dtype)
        table = self._flat(name, cosine).view(rows, columns)
        at_tau = torch.lerp(table[row.long()], table[row.long() + 1], high)
        place = cosine.clamp(-1, 1).add_(1).mul_(0.5 * (columns - 1)).clamp_max_(columns - 1.001)
        column = place.int()
        right, column = place.sub_(column), column.long()
        return at_tau.gather(-1, column).lerp_(at_tau.gather(-1, column.add_(1)), right)


def tabulate_heat_kernel(n: int, smallest: float, largest: float, times: int = 96, cosines: int = 1025) -> HeatKernel:
    """Tabulate the kernel of S^n for times between `smallest` and `largest`."""
    x, first, second = _chebyshev(MAX_ANGLE**2)
    A = _mean_curvature(x.sqrt(), n)
    log_r = _remainders(n, largest, x, first, second, A)
    log_times = torch.linspace(math.log(smallest), math.log(largest), times, dtype=torch.float64)
    fine = torch.linspace(math.log(START_FRACTION * largest), math.log(largest), STEPS + 1, dtype=torch.float64)
    cosine = torch.linspace(-1, 1, cosines, dtype=torch.float64)
    theta = cosine.acos()
    basis = _barycentric(x, theta.clamp_max(MAX_ANGLE).square())
    curvature = _mean_curvature(theta.clamp_max(MAX_ANGLE), n)
    rest = _interpolate_rows(log_r, fine, log_times) @ basis.T + log_times.exp()[:, None] * curvature
    bent = theta.clamp(1e-6, MAX_ANGLE)
    table = -theta.square() / (2 * log_times.exp()[:, None]) + (n - 1) / 2 * (bent / bent.sin()).log() + rest
    late = log_times.exp() >= LATE
    if n <= FEW_DIMENSIONS and bool(late.any()):
        table[late] = _harmonics(n, cosine, log_times[late].exp())
    if not bool(table.isfinite().all()):
        raise UserError(
            f"The heat kernel in {n + 1:,} dimensions cannot be computed at a time of {largest:g}; "
            "use a smaller total_noise, or the log bridge (system rdlm)."
        )
    return HeatKernel(log_times, table, torch.gradient(table, spacing=(cosine,), dim=1, edge_order=2)[0])


def _harmonics(n: int, cosine: Float[Tensor, " G"], tau: Float[Tensor, " T"]) -> Float[Tensor, "T G"]:
    """log p_τ(θ) + n/2 · log 2πτ by zonal harmonics, for large times in few dimensions:

    p_τ(θ) = 1/ω_n Σ_l (2l + n - 1)/(n - 1) · C_l(cos θ) exp(-l (l + n - 1) τ/2), C_l the Gegenbauer polynomials of
    order (n - 1)/2 and ω_n the surface of S^n.
    """
    order = (n - 1) / 2
    before, now = torch.ones_like(cosine), 2 * order * cosine
    total = before + (n + 1) / (n - 1) * now * (-n * tau / 2).exp()[:, None]
    for degree in range(2, TERMS):
        new = (2 * (degree + order - 1) * cosine * now - (degree + 2 * order - 2) * before) / degree
        before, now = now, new
        total = total + (2 * degree + n - 1) / (n - 1) * now * (-degree * (degree + n - 1) * tau / 2).exp()[:, None]
    surface = math.log(2) + (n + 1) / 2 * math.log(math.pi) - math.lgamma((n + 1) / 2)
    return total.clamp_min(MIN_DENSITY).log() - surface + n / 2 * (2 * math.pi * tau).log()[:, None]


def _mean_curvature(theta: Tensor, n: int) -> Tensor:
    """A(θ): the mean of q along the geodesic; that of 1/sin² - 1/θ² is (1/θ - cot θ)/θ."""
    near = theta < 1e-2
    safe = torch.where(near, 1.0, theta)
    mean = torch.where(near, 1 / 3 + theta.square() / 45, (1 / safe - 1 / safe.tan()) / safe)
    return (n - 1) ** 2 / 8 - (n - 1) * (n - 3) / 8 * mean


def _remainders(n: int, largest: float, x: Tensor, first: Tensor, second: Tensor, A: Tensor) -> Tensor:
    """log r at the nodes for STEPS + 1 times evenly spaced in log τ.

    By the implicit midpoint rule; w'² is linearised about the last slope, and once more about the new one.
    """
    slope, bend = first @ A, second @ A
    identity = torch.eye(len(x), dtype=x.dtype)
    step = -math.log(START_FRACTION) / STEPS
    w = torch.zeros_like(x)
    rows = [w]
    for i in range(STEPS):
        tau = largest * START_FRACTION * math.exp((i + 0.5) * step)
        drift = n * tau + 4 * x * tau**2 * slope - 2 * x
        rate = tau**2 * (2 * x * (bend + tau * slope**2) + n * slope)
        middle = w
        for _ in range(2):
            tilt = first @ middle
            operator = (2 * tau * x)[:, None] * second + (drift + 4 * tau * x * tilt)[:, None] * first
            middle = torch.linalg.solve(identity - step / 2 * operator, w + step / 2 * (rate - 2 * tau * x * tilt**2))
        w = 2 * middle - w
        rows.append(w)
    return torch.stack(rows)


def _chebyshev(largest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes on [0, largest], and the matrices of the first and second derivative there."""
    place = torch.arange(NODES + 1, dtype=torch.float64)
    x = torch.cos(torch.pi * place / NODES)
    weight = (-1) ** place
    weight[0], weight[-1] = 2 * weight[0], 2 * weight[-1]
    difference = x[:, None] - x + torch.eye(NODES + 1, dtype=x.dtype)
    matrix = weight[:, None] / weight / difference
    matrix = (matrix - torch.diag(matrix.sum(1))) * (2 / largest)
    return (x + 1) / 2 * largest, matrix, matrix @ matrix


def _barycentric(nodes: Tensor, at: Tensor) -> Tensor:
    """Return the matrix that interpolates values at Chebyshev nodes by their polynomial."""
    weight = (-1) ** torch.arange(len(nodes), dtype=nodes.dtype)
    weight[0], weight[-1] = weight[0] / 2, weight[-1] / 2
    difference = at[:, None] - nodes
    met = difference == 0
    terms = weight / torch.where(met, 1.0, difference)
    matrix = terms / terms.sum(1, keepdim=True)
    return torch.where(met.any(1, keepdim=True), met.double(), matrix)


def _interpolate_rows(values: Tensor, given: Tensor, log_times: Tensor) -> Tensor:
    """Interpolate linearly between the rows of a table."""
    place = (log_times - given[0]) / (given[1] - given[0])
    low = place.clamp(0, len(given) - 1.001).floor().long()
    fraction = (place - low).clamp(0, 1)[:, None]
    return values[low] * (1 - fraction) + values[low + 1] * fraction
