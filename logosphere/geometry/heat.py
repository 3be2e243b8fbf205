"""The heat kernel of S^n: how Brownian motion spreads on the sphere.

    log p_τ(θ) = -θ²/2τ + (n-1)/2 · log(θ / sin θ) + τ A(θ) + log r_τ(θ) - n/2 · log 2πτ

The first three terms are what a geodesic feels of the curvature to first order, A being the mean along it of
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
from logosphere.types import Float

NODES = 16
"""Collocation nodes: the remainder is so smooth that 16 give five digits of log p, and from 24 on rounding grows."""
STEPS = 1200
FARTHEST = 2.8
"""Angles beyond this one are as good as never met, and 1/sin² explodes at π; the kernel is continued flat there."""
FEW, LATE, TERMS = 8, 0.4, 40
"""On S^n of so few dimensions the expansion about τ = 0 fails at late times, where so many harmonics are exact."""
FAINT = 1e-12
"""Densities below this, relative to an even one, are rounding of the sum of harmonics."""
SMALLEST = 1e-4
"""The integration starts at this share of the largest time, where r = 1."""


@dataclass(frozen=True)
class HeatKernel:
    """log p_τ and its derivative by the cosine, tabulated over times and cosines; linear in between."""

    times: Float[Tensor, " T"]
    """Logarithms of τ, evenly spaced."""
    log_density: Float[Tensor, "T G"]
    """Over cosines evenly spaced from -1 to 1, without the constant n/2 log 2πτ."""
    slope: Float[Tensor, "T G"]
    """d log p / d cos θ: the gradient at X towards e is slope · (e - <X, e> X)."""
    _ready: dict[tuple[str, torch.device, torch.dtype], Tensor] = field(default_factory=dict, compare=False, repr=False)
    """The tables where they were asked for, as they were asked for."""

    def log_p(self, cosine: Float[Tensor, "... K"], tau: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        return self._read("log_density", cosine, tau)

    def pull(self, cosine: Float[Tensor, "... K"], tau: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        return self._read("slope", cosine, tau)

    def _flat(self, name: str, like: Tensor) -> Tensor:
        key = (name, like.device, like.dtype)
        if key not in self._ready:
            self._ready[key] = getattr(self, name).to(like).flatten()
        return self._ready[key]

    def _read(self, name: str, cosine: Tensor, tau: Tensor) -> Tensor:
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


def heat_kernel(n: int, smallest: float, largest: float, times: int = 96, cosines: int = 1025) -> HeatKernel:
    """The kernel of S^n for times between `smallest` and `largest`."""
    x, first, second = _chebyshev(FARTHEST**2)
    A = _mean_curvature(x.sqrt(), n)
    log_r = _remainders(n, largest, x, first, second, A)
    wanted = torch.linspace(math.log(smallest), math.log(largest), times, dtype=torch.float64)
    fine = torch.linspace(math.log(SMALLEST * largest), math.log(largest), STEPS + 1, dtype=torch.float64)
    cosine = torch.linspace(-1, 1, cosines, dtype=torch.float64)
    theta = cosine.acos()
    basis = _barycentric(x, theta.clamp_max(FARTHEST).square())
    rest = _rows(log_r, fine, wanted) @ basis.T + wanted.exp()[:, None] * _mean_curvature(theta.clamp_max(FARTHEST), n)
    bent = theta.clamp(1e-6, FARTHEST)
    table = -theta.square() / (2 * wanted.exp()[:, None]) + (n - 1) / 2 * (bent / bent.sin()).log() + rest
    late = wanted.exp() >= LATE
    if n <= FEW and bool(late.any()):
        table[late] = _harmonics(n, cosine, wanted[late].exp())
    if not bool(table.isfinite().all()):
        raise UserError(
            f"The heat kernel in {n + 1:,} dimensions is out of reach at a time of {largest:g}; "
            "choose a smaller total_noise, or the log bridge of rdlm."
        )
    return HeatKernel(wanted, table, torch.gradient(table, spacing=(cosine,), dim=1, edge_order=2)[0])


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
    return total.clamp_min(FAINT).log() - surface + n / 2 * (2 * math.pi * tau).log()[:, None]


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
    step = -math.log(SMALLEST) / STEPS
    w = torch.zeros_like(x)
    rows = [w]
    for i in range(STEPS):
        tau = largest * SMALLEST * math.exp((i + 0.5) * step)
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
    """The matrix that takes values at Chebyshev nodes to values of their polynomial elsewhere."""
    weight = (-1) ** torch.arange(len(nodes), dtype=nodes.dtype)
    weight[0], weight[-1] = weight[0] / 2, weight[-1] / 2
    difference = at[:, None] - nodes
    met = difference == 0
    terms = weight / torch.where(met, 1.0, difference)
    matrix = terms / terms.sum(1, keepdim=True)
    return torch.where(met.any(1, keepdim=True), met.double(), matrix)


def _rows(values: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    """Rows of a table between its rows, linearly."""
    place = (wanted - given[0]) / (given[1] - given[0])
    low = place.clamp(0, len(given) - 1.001).floor().long()
    share = (place - low).clamp(0, 1)[:, None]
    return values[low] * (1 - share) + values[low + 1] * share
