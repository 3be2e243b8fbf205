"""Bridges on the sphere: diffusions that end at a vertex.

Both have the form dX = g_s(<X, e>) · (e - <X, e> X) ds + √V dB for s from 0 (start) to 1 (vertex e), where V is the
total noise and g the drift strength; any schedule σ_t is this bridge after a change of time.

    log bridge    g = (θ / sin θ) / (1 - s),  so that the drift is log_X(e) / (1 - s)   (Jo and Hwang 2025, RDLM)
    heat bridge   g = V · d log p_{V(1-s)} / d cos θ,  the true Brownian bridge, p the heat kernel
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.geometry.sphere import HeatKernel, angle_over_sine, tabulate_heat_kernel
from logosphere.types import Float

MAX_TIME = 0.98
"""Bridges are not simulated beyond this time: the vertex is certain, and the drift strength grows like 1/(1 - s)."""


class Bridge(ABC):
    """A diffusion that ends at a vertex, defined by its drift strength g and its total noise V."""

    name: str
    total_noise: float

    @abstractmethod
    def drift_strength(self, cosine: Float[Tensor, "... K"], s: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """g_s for vertices at these cosines from X."""


@dataclass(frozen=True)
class LogBridge(Bridge):
    """The drift follows the geodesic at the speed (distance) / (remaining time)."""

    total_noise: float
    name: str = "log"

    def __post_init__(self) -> None:
        _check_noise(self.total_noise)

    def drift_strength(self, cosine: Tensor, s: Tensor) -> Tensor:
        return angle_over_sine(cosine) / (1 - s)[..., None].to(cosine.dtype)


@dataclass(frozen=True)
class HeatBridge(Bridge):
    """Brownian motion conditioned to end at the vertex."""

    total_noise: float
    kernel: HeatKernel
    name: str = "heat"

    @staticmethod
    def on(d: int, total_noise: float) -> "HeatBridge":
        """The bridge on the unit sphere of R^d."""
        _check_noise(total_noise)
        return HeatBridge(total_noise, tabulate_heat_kernel(d - 1, total_noise * (1 - MAX_TIME), total_noise))

    def drift_strength(self, cosine: Tensor, s: Tensor) -> Tensor:
        return self.total_noise * self.kernel.cosine_gradient(cosine, self.total_noise * (1 - s))

    def log_p(self, cosine: Float[Tensor, "... K"], s: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """log p_{V(1-s)}: the exact log-likelihood of each vertex given X_s, up to a constant."""
        return self.kernel.log_p(cosine, self.total_noise * (1 - s))


def _check_noise(total_noise: float) -> None:
    if not total_noise > 0:
        raise UserError(f"total_noise must be positive, not {total_noise}.")


@dataclass(frozen=True)
class BridgeTable:
    """The distribution of X at times s_0 … s_N, for a start at the angle φ from the vertex.

    By symmetry X = a e + b u + c ν, with u the direction of the start orthogonal to e, and ν uniform on the unit sphere
    orthogonal to both. So the distribution of (a, b) determines that of X; it is stored as P equally likely pairs for
    each time.
    """

    times: Float[Tensor, " N"]
    a: Float[Tensor, "N P"]
    b: Float[Tensor, "N P"]


def simulate_bridge(
    bridge: Bridge,
    d: int,
    start_cosine: float,
    times: Tensor,
    particles: int,
    seed: int = 0,
    *,
    geodesic_walk: bool = False,
    substeps: int | Sequence[int] = 1,
) -> BridgeTable:
    """Simulate the pairs (a, b) with the steps that d-dimensional states would take over `times`.

    A step moves along v = drift + h z with z normal in the tangent space. Of z only its components along e, u and ν
    matter individually; the other d - 3 enter through their norm, whose square is χ². The geodesic random walk has
    h² = V ds. A bridge in a flat space has V ds (1 - s')/(1 - s) = y from s to s'; on the sphere geodesics diverge
    less, the density of a step's length has a factor (sin r / r)^(n/2 - 1/2), and h² = y / (1 + (n - 1) y / 6) to
    second order. The remaining error is the change of the drift strength within a step, of which there are `substeps`
    from each time to the next (one number for all intervals, or one for each).

    The noise of the particles is stratified: they are sorted by state and use a scrambled Sobol sequence (array-RQMC,
    L'Ecuyer et al. 2008), so that a few thousand particles give three digits.
    """
    rng = torch.Generator().manual_seed(seed)
    points = torch.quasirandom.SobolEngine(6, scramble=True, seed=seed).draw(particles, dtype=torch.float64)
    points = points[_sort_order(points[:, 0], points[:, 1])][:, 2:]
    chi_square = chi_square_quantiles(d - 3)
    a = torch.full((particles,), start_cosine, dtype=torch.float64)
    b = (1 - a.square()).sqrt()
    rows = [(a, b)]
    counts = [substeps] * (len(times) - 1) if isinstance(substeps, int) else substeps
    for s, interval, parts in zip(times[:-1].tolist(), times.diff().tolist(), counts, strict=True):
        ds = interval / parts
        for now in (s + i * ds for i in range(parts)):
            order = _sort_order(a, b)
            a, b = a[order], b[order]
            u = (points + torch.rand(4, generator=rng, dtype=torch.float64)) % 1.0
            z = torch.special.ndtri(u[:, :3].clamp(1e-12, 1 - 1e-12)).unbind(1)
            y = bridge.total_noise * ds * (1.0 if geodesic_walk else (1 - now - ds) / (1 - now))
            h = (y if geodesic_walk else y / (1 + (d - 2) * y / 6)) ** 0.5
            a, b = walk_step(bridge, a, b, now, ds, h, z, chi_square(u[:, 3]))
        rows.append((a, b))
    return BridgeTable(times, torch.stack([a for a, _ in rows]).float(), torch.stack([b for _, b in rows]).float())


def walk_step(
    bridge: Bridge, a: Tensor, b: Tensor, s: float, ds: float, h: float, z: tuple[Tensor, ...], rest: Tensor
) -> tuple[Tensor, Tensor]:
    """One step in the frame (e, u, ν) with noise h; `rest` is the squared norm (χ²) of the other noise components."""
    c = (1 - a.square() - b.square()).clamp_min(0).sqrt()
    time = torch.full_like(a, s)
    strength = bridge.drift_strength(a[:, None], time)[:, 0] * ds
    along = h * (a * z[0] + b * z[1] + c * z[2])  # the component of the noise along X, which is not tangent
    v_a = strength * (1 - a.square()) + h * z[0] - along * a
    v_b = -strength * a * b + h * z[1] - along * b
    v_c = -strength * a * c + h * z[2] - along * c
    length = (v_a.square() + v_b.square() + v_c.square() + h * h * rest).sqrt().clamp_min(1e-30)
    cos, sinc = length.cos(), length.sin() / length
    return cos * a + sinc * v_a, cos * b + sinc * v_b


def _sort_order(first: Tensor, second: Tensor) -> Tensor:
    """Return the order that sorts by the first coordinate into √P groups, and each group by the second."""
    groups = max(1, round(len(first) ** 0.5))
    order = first.argsort()
    size = -(-len(first) // groups)
    group = torch.empty_like(order)
    group[order] = torch.arange(len(first)) // size
    span = second.max() - second.min() + 1
    return (group * span + (second - second.min())).argsort()


@lru_cache(maxsize=8)
def _chi_square(degrees: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Values x, and the distribution function of χ² at x."""
    spread = (2.0 * degrees) ** 0.5
    x = torch.linspace(max(0.0, degrees - 9 * spread), degrees + 12 * spread + 20, 20_001, dtype=torch.float64)
    cumulative = torch.special.gammainc(torch.tensor(degrees / 2.0).double(), x / 2)
    return x.to(device), cumulative.to(device)


def chi_square_quantiles(degrees: int) -> Callable[[Tensor], Tensor]:
    """Return the inverse distribution function of χ², by a table; χ² with no degrees of freedom is 0."""
    if degrees < 1:
        return torch.zeros_like

    def quantile(u: Tensor) -> Tensor:
        x, cumulative = _chi_square(degrees, u.device)
        right = torch.searchsorted(cumulative, u.contiguous()).clamp(1, len(x) - 1)
        low, high = cumulative[right - 1], cumulative[right]
        fraction = ((u - low) / (high - low).clamp_min(1e-300)).clamp(0, 1)
        return torch.lerp(x[right - 1], x[right], fraction)

    return quantile


# ---- the state of a log bridge, approximated as normal -----------------------------------------------------------
# The normal distribution is in the tangent space at the mean direction μ of the state. It has one variance along the
# geodesic to the vertex and another across it, both computed from the table of (a, b). log(θ / sin θ) is the change of
# volume.


def _tangent(a: Tensor, b: Tensor, mean_a: Tensor, mean_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log_μ(X) for μ = (mean_a, mean_b): its component towards e, its squared length θ², and θ / sin θ."""
    cosine = (a * mean_a + b * mean_b).clamp(-1, 1)
    ratio = angle_over_sine(cosine)
    return ratio * (a * mean_b - b * mean_a), ratio.square() * (1 - cosine.square()), ratio


def tangent_moments(a: Float[Tensor, "N P"], b: Float[Tensor, "N P"], d: int) -> Float[Tensor, "N 5"]:
    """For each time: the mean direction, the mean component of log_μ(X) towards e, and both inverse variances.

    Where the distribution is a point the variances are 0, and a state there has no information.
    """
    a, b = a.double(), b.double()
    mean = torch.stack([a.mean(1), b.mean(1)])
    mean_a, mean_b = mean / mean.norm(dim=0)
    forward, squared, _ = _tangent(a, b, mean_a[:, None], mean_b[:, None])
    along, across = forward.var(1), (squared - forward.square()).clamp_min(0).mean(1) / (d - 2)
    weights = [torch.where(variance > 1e-12, 1 / variance.clamp_min(1e-12), 0.0) for variance in (along, across)]
    return torch.stack([mean_a, mean_b, forward.mean(1), *weights], dim=1).float()


def tangent_normal_log_p(a: Tensor, b: Tensor, moments: Float[Tensor, "... 5"], d: int) -> Float[Tensor, "... K"]:
    """log p(X | e_k) up to a constant, for the coordinates (a, b) of X towards each vertex."""
    mean_a, mean_b, middle, along, across = moments[..., None].unbind(-2)
    forward, squared, ratio = _tangent(a, b, mean_a, mean_b)
    volume = (d - 2) * ratio.log()
    return volume - 0.5 * (along * (forward - middle).square() + across * (squared - forward.square()))
