"""Tables of the distribution of a bridge, computed once and cached on disk, and their moment-matched normals.

RDLM approximates the distribution of a bridge by the Riemannian normal X = exp_μ(ρ z), z normal in the tangent space at
μ. Its mean is E[cos ρ|z|] μ with |z|² ~ χ²_n on S^n, and

    E cos(ρ|z|) = ₁F₁(n/2; 1/2; -ρ²/2)

The paper (its equation 115) has a further factor exp(-ρ²/2), which makes ρ too small by about √(n/(n+1)).
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from logosphere.geometry.bridges import MAX_TIME, Bridge, BridgeTable, chi_square_quantiles, simulate_bridge
from logosphere.io import cache_folder, write_atomic
from logosphere.types import Float

VERSION = 5
"""Increment it when the same settings would give another table."""
STEPS, PARTICLES = 320, 4096
COARSE_PARTICLES = 16
"""Particles of the tables within `coarse_tables`."""
NOISE_PER_STEP = 0.016
"""Steps whose noise d V ds is larger are split into substeps."""
NOISE_PER_SUBSTEP, MAX_SUBSTEPS = 0.05, 3
"""The same for given times; this many substeps keep the error of means below 0.003 in any dimension."""
DECODE_MARGIN = 3.0
"""The path ends when a token is ahead of all others by this many nats on average; there the token is decoded."""


_coarse = ContextVar("coarse", default=False)


@contextmanager
def coarse_tables() -> Iterator[None]:
    """Within it tables take no time, have rough numbers and are not cached: for models of which only the size matters.

    A table of Brownian bridges takes seconds for 30,000 tokens, and longer for more.
    """
    token = _coarse.set(True)
    try:
        yield
    finally:
        _coarse.reset(token)


def tabulate_bridges(
    bridge: Bridge,
    d: int,
    start_cosines: Sequence[float],
    steps: int = STEPS,
    particles: int = PARTICLES,
    *,
    geodesic_walk: bool = False,
) -> list[BridgeTable]:
    """Return the tables of bridges on the unit sphere of R^d from several starts, at common times; cached on disk.

    A start is given by its cosine with the vertices. With `geodesic_walk` the tables are those of the geodesic random
    walk with these steps.
    """
    grid = [list(start_cosines), steps, particles, geodesic_walk, DECODE_MARGIN]
    settings = json.dumps([VERSION, bridge.name, bridge.total_noise, d, *grid])

    if _coarse.get():
        return _tabulate_coarsely(bridge, d, start_cosines, _make_grid(MAX_TIME, steps))

    def compute() -> list[BridgeTable]:
        end = max(decode_time(bridge, d, cosine) for cosine in start_cosines)
        times = _make_grid(end, steps)
        noise = d * bridge.total_noise * float(times[1] - times[0])
        substeps = 1 if geodesic_walk else math.ceil(noise / NOISE_PER_STEP)
        return [
            simulate_bridge(bridge, d, cosine, times, particles, geodesic_walk=geodesic_walk, substeps=substeps)
            for cosine in start_cosines
        ]

    return _load_or_compute(bridge, d, settings, compute)


def tabulate_bridges_at(
    bridge: Bridge, d: int, start_cosines: Sequence[float], times: Float[Tensor, " N"], particles: int = PARTICLES
) -> list[BridgeTable]:
    """Return the tables of bridges at these times; cached on disk."""
    if _coarse.get():
        return _tabulate_coarsely(bridge, d, start_cosines, times)
    digest = hashlib.sha256(times.double().numpy().tobytes()).hexdigest()
    settings = json.dumps([VERSION, bridge.name, bridge.total_noise, d, list(start_cosines), digest, particles])
    noise = d * bridge.total_noise * times.diff() / NOISE_PER_SUBSTEP
    substeps = [int(count) for count in noise.ceil().clamp(1, MAX_SUBSTEPS)]
    return _load_or_compute(
        bridge,
        d,
        settings,
        lambda: [simulate_bridge(bridge, d, cosine, times, particles, substeps=substeps) for cosine in start_cosines],
    )


def _tabulate_coarsely(
    bridge: Bridge, d: int, start_cosines: Sequence[float], times: Float[Tensor, " N"]
) -> list[BridgeTable]:
    return [simulate_bridge(bridge, d, cosine, times, COARSE_PARTICLES) for cosine in start_cosines]


def _load_or_compute(
    bridge: Bridge, d: int, settings: str, compute: Callable[[], list[BridgeTable]]
) -> list[BridgeTable]:
    """Load the tables of these settings from the cache; if there are none, compute and cache them."""
    key = hashlib.sha256(settings.encode()).hexdigest()[:24]
    path = cache_folder() / "bridge_tables" / f"{bridge.name}-{d}-{key}.safetensors"
    found = _load(path, settings)
    if found is not None:
        return found
    tables = compute()
    tensors = {
        "times": tables[0].times,
        "a": torch.stack([table.a for table in tables]),
        "b": torch.stack([table.b for table in tables]),
    }
    try:
        write_atomic(path, save(tensors, {"settings": settings}))
    except OSError:
        pass  # without a cache the table is computed again next time
    return tables


def _load(path: Path, settings: str) -> list[BridgeTable] | None:
    """Load tables from a file; None if there is no such file, it is damaged, or it has other settings."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("settings") == settings:
                times, a, b = (file.get_tensor(name) for name in ("times", "a", "b"))
                return [BridgeTable(times, *pair) for pair in zip(a, b, strict=True)]
        fault = "holds a table of other settings"
    except (OSError, SafetensorError) as problem:
        fault = f"cannot be read ({problem})"
    warnings.warn(f"The table {path} {fault}; it is computed again.", stacklevel=4)
    return None


def decode_time(bridge: Bridge, d: int, start_cosine: float, latest: float = MAX_TIME) -> float:
    """Return the time s* at which X determines one of the K = d - 1 tokens: gap² / 4σ² = log K + DECODE_MARGIN.

    The gap is that between the coordinates of the token and of any other, σ the noise of each.
    """
    times = torch.linspace(0, latest, 129, dtype=torch.float64)
    table = simulate_bridge(bridge, d, start_cosine, times, particles=512)
    a, b = table.a.double(), table.b.double()
    other = start_cosine / math.sqrt(1 - start_cosine**2)  # coordinate of u on each of the other tokens
    gap = (a - other * b).mean(1)
    spread = (1 - a.square() - b.square()).clamp_min(0).mean(1) / (d - 2)
    clear = gap.square() / (4 * spread.clamp_min(1e-12)) > math.log(d - 1) + DECODE_MARGIN
    first = _first_true(clear[1:]) + 1
    if first < 8 and latest > 1e-6:  # the grid of times is too coarse
        return decode_time(bridge, d, start_cosine, float(times[8]))
    return float(times[first])


def _make_grid(end: float, steps: int) -> Tensor:
    """Return times from 0 to `end` with steps proportional to 1 - s, as the drift strength grows like 1/(1 - s)."""
    return 1 - (1 - end) ** torch.linspace(0, 1, steps + 1, dtype=torch.float64)


def _first_true(flags: Tensor) -> int:
    """Return the index of the first True, or the last index."""
    return int(flags.float().argmax()) if bool(flags.any()) else len(flags) - 1


TERMS = 40
"""Terms of the series of ₁F₁, which fall fast for ρ√n ≤ π/2."""


def mean_cosine(rho: Float[Tensor, "..."], n: int, *, published: bool = False) -> Float[Tensor, "..."]:
    """₁F₁(n/2; 1/2; -x) = exp(-x) ₁F₁((1-n)/2; 1/2; x) with x = ρ²/2; times exp(-ρ²/2) as published."""
    x = rho.double().square() / 2
    term = total = torch.ones_like(x)
    for k in range(TERMS):
        term = term * ((1 - n) / 2 + k) / ((0.5 + k) * (k + 1)) * x
        total = total + term
    return total * torch.exp(-2 * x if published else -x)


def solve_rho(mean: Float[Tensor, " N"], n: int, *, published: bool = False) -> Float[Tensor, " N"]:
    """Return ρ for a mean cosine, by bisection up to ρ√n = π/2, near which the mean cosine vanishes."""
    low = torch.zeros_like(mean, dtype=torch.float64)
    high = torch.full_like(low, math.pi / 2 / math.sqrt(n))
    for _ in range(50):
        middle = (low + high) / 2
        above = mean_cosine(middle, n, published=published) > mean
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def match_moments(
    table: BridgeTable, d: int, *, published: bool = False, scale: float = 1.0, seed: int = 0
) -> BridgeTable:
    """Return the table of the Riemannian normals that have the mean of `table` at each time; `scale` multiplies ρ."""
    mean_a, mean_b, rho = _mean_and_rho(table, d, published=published, scale=scale)[..., None]
    u = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(table.a.shape[1], dtype=torch.float64)
    along = torch.special.ndtri(u[:, 0].clamp(1e-12, 1 - 1e-12))  # component of z within the plane of e and u
    angle = rho * (along.square() + chi_square_quantiles(d - 2)(u[:, 1])).sqrt()
    forward = rho * along * torch.sinc(angle / math.pi)
    a, b = angle.cos() * mean_a + forward * mean_b, angle.cos() * mean_b - forward * mean_a
    return BridgeTable(table.times, a.float(), b.float())


def fit_normal(
    table: BridgeTable, d: int, start_cosine: float, *, published: bool = False, scale: float = 1.0
) -> Float[Tensor, "2 N"]:
    """Return α and ρ of the Riemannian normal at each time, for a start x₀ with cos φ₀ = <x₀, e>:

        μ = α (e - cos φ₀ x₀) / sin φ₀ + √(1 - α²) x₀

    with μ along E X, whose length is E cos(ρ|z|).
    """
    mean_a, mean_b, rho = _mean_and_rho(table, d, published=published, scale=scale)
    alpha = mean_a * math.sqrt(1 - start_cosine**2) - mean_b * start_cosine
    return torch.stack([alpha.clamp(0, 1), rho])


def _mean_and_rho(table: BridgeTable, d: int, *, published: bool, scale: float) -> Float[Tensor, "3 N"]:
    """Return the direction of E X in the frame (e, u), and ρ."""
    mean = torch.stack([table.a.double().mean(1), table.b.double().mean(1)])
    length = mean.norm(dim=0)
    rho = scale * solve_rho(length, d - 1, published=published)
    return torch.cat([mean / length.clamp_min(1e-12), rho[None]])
