"""x"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from logosphere.atomic import write_whole
from logosphere.cache import cache_folder
from logosphere.geometry.bridges import LATEST, Bridge, Law, chi_square_quantiles, simulate
from logosphere.shapes import Float

VERSION = 5
"""Raise it when the same settings would give another table."""
STEPS, PARTICLES = 320, 4096
NOISE_PER_STEP = 0.016
"""Steps whose noise d V ds is larger are taken in parts."""
NOISE_PER_PART, MOST_PARTS = 0.05, 3
"""The same at given times, where so many parts at most keep means to 0.003 in any number of dimensions."""
CERTAINTY = 3.0
"""The path ends when a token stands out from all others by this many nats on average; the rest is read off."""


def bridge_laws(
    bridge: Bridge,
    d: int,
    start_cosines: Sequence[float],
    steps: int = STEPS,
    particles: int = PARTICLES,
    *,
    geodesic_walk: bool = False,
) -> list[Law]:
    """The laws of bridges on the unit sphere of R^d from several starts, at common times, from disk or made now.

    A start is given by its cosine with the vertices. With `geodesic_walk` they are the laws of the geodesic random walk
    that takes just these steps.
    """
    settings = json.dumps(
        [VERSION, bridge.name, bridge.total_noise, d, list(start_cosines), steps, particles, geodesic_walk, CERTAINTY]
    )

    def make() -> list[Law]:
        end = max(horizon(bridge, d, cosine) for cosine in start_cosines)
        times = _grid(end, steps)
        noise = d * bridge.total_noise * float(times[1] - times[0])
        parts = 1 if geodesic_walk else math.ceil(noise / NOISE_PER_STEP)
        return [
            simulate(bridge, d, cosine, times, particles, geodesic_walk=geodesic_walk, substeps=parts)
            for cosine in start_cosines
        ]

    return _kept(bridge, d, settings, make)


def laws_at(
    bridge: Bridge, d: int, start_cosines: Sequence[float], times: Float[Tensor, " N"], particles: int = PARTICLES
) -> list[Law]:
    """The laws of bridges at these times, from disk or made now."""
    digest = hashlib.sha256(times.double().numpy().tobytes()).hexdigest()
    settings = json.dumps([VERSION, bridge.name, bridge.total_noise, d, list(start_cosines), digest, particles])
    noise = d * bridge.total_noise * times.diff() / NOISE_PER_PART
    parts = [int(count) for count in noise.ceil().clamp(1, MOST_PARTS)]
    return _kept(
        bridge,
        d,
        settings,
        lambda: [simulate(bridge, d, cosine, times, particles, substeps=parts) for cosine in start_cosines],
    )


def _kept(bridge: Bridge, d: int, settings: str, make: Callable[[], list[Law]]) -> list[Law]:
    """Laws of these settings from disk; where there are none they are made and kept."""
    key = hashlib.sha256(settings.encode()).hexdigest()[:24]
    path = cache_folder() / "laws" / f"{bridge.name}-{d}-{key}.safetensors"
    found = _read(path, settings)
    if found is not None:
        return found
    laws = make()
    tables = {
        "times": laws[0].times,
        "a": torch.stack([law.a for law in laws]),
        "b": torch.stack([law.b for law in laws]),
    }
    try:
        write_whole(path, save(tables, {"settings": settings}))
    except OSError:
        pass  # a cache that cannot be written costs a second next time, and nothing else
    return laws


def _read(path: Path, settings: str) -> list[Law] | None:
    """The tables of these settings; none if there is no such file, or it is damaged, or holds another table."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("settings") == settings:
                times, a, b = (file.get_tensor(name) for name in ("times", "a", "b"))
                return [Law(times, *pair) for pair in zip(a, b, strict=True)]
        fault = "holds the table of other settings"
    except (OSError, SafetensorError) as problem:
        fault = f"cannot be read ({problem})"
    warnings.warn(f"The table {path} {fault}; it is made again.", stacklevel=4)
    return None


def horizon(bridge: Bridge, d: int, start_cosine: float, latest: float = LATEST) -> float:
    """The time s* at which X tells the K = d - 1 tokens apart: gap² / 4σ² = log K + CERTAINTY.

    The gap is that between the coordinates of the token and of any other, σ the noise on each.
    """
    times = torch.linspace(0, latest, 129, dtype=torch.float64)
    law = simulate(bridge, d, start_cosine, times, particles=512)
    a, b = law.a.double(), law.b.double()
    share = start_cosine / math.sqrt(1 - start_cosine**2)  # of u on each of the other tokens
    gap = (a - share * b).mean(1)
    spread = (1 - a.square() - b.square()).clamp_min(0).mean(1) / (d - 2)
    clear = gap.square() / (4 * spread.clamp_min(1e-12)) > math.log(d - 1) + CERTAINTY
    first = _first(clear[1:]) + 1
    if first < 8 and latest > 1e-6:  # too coarse to tell
        return horizon(bridge, d, start_cosine, float(times[8]))
    return float(times[first])


def _grid(end: float, steps: int) -> Tensor:
    """Times from 0 to `end` whose steps shrink as the time left does, for the pull grows like 1/(1 - s)."""
    return 1 - (1 - end) ** torch.linspace(0, 1, steps + 1, dtype=torch.float64)


def _first(flags: Tensor) -> int:
    """The place of the first True, or the last place."""
    return int(flags.float().argmax()) if bool(flags.any()) else len(flags) - 1


TERMS = 40
"""Of the series of ₁F₁, whose terms fall fast for ρ√n ≤ π/2."""


def mean_cosine(rho: Float[Tensor, "..."], n: int, *, published: bool = False) -> Float[Tensor, "..."]:
    """₁F₁(n/2; 1/2; -x) = exp(-x) ₁F₁((1-n)/2; 1/2; x) with x = ρ²/2; times exp(-ρ²/2) as published."""
    x = rho.double().square() / 2
    term = total = torch.ones_like(x)
    for k in range(TERMS):
        term = term * ((1 - n) / 2 + k) / ((0.5 + k) * (k + 1)) * x
        total = total + term
    return total * torch.exp(-2 * x if published else -x)


def matching_rho(mean: Float[Tensor, " N"], n: int, *, published: bool = False) -> Float[Tensor, " N"]:
    """The ρ whose mean cosine is this, by bisection up to ρ√n = π/2, near which the mean cosine vanishes."""
    low = torch.zeros_like(mean, dtype=torch.float64)
    high = torch.full_like(low, math.pi / 2 / math.sqrt(n))
    for _ in range(50):
        middle = (low + high) / 2
        above = mean_cosine(middle, n, published=published) > mean
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (low + high) / 2


def moment_matched(law: Law, d: int, *, published: bool = False, scale: float = 1.0, seed: int = 0) -> Law:
    """At each time the Riemannian normal with the mean of the law, as pairs (a, b); ρ is multiplied by `scale`."""
    mean_a, mean_b, rho = _matched(law, d, published=published, scale=scale)[..., None]
    u = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(law.a.shape[1], dtype=torch.float64)
    along = torch.special.ndtri(u[:, 0].clamp(1e-12, 1 - 1e-12))  # of the geodesic, within the plane of e and u
    angle = rho * (along.square() + chi_square_quantiles(d - 2)(u[:, 1])).sqrt()
    forward = rho * along * torch.sinc(angle / math.pi)
    a, b = angle.cos() * mean_a + forward * mean_b, angle.cos() * mean_b - forward * mean_a
    return Law(law.times, a.float(), b.float())


def normal_parameters(
    law: Law, d: int, start_cosine: float, *, published: bool = False, scale: float = 1.0
) -> Float[Tensor, "2 N"]:
    """α and ρ of the Riemannian normal at each time, for a start x₀ with cos φ₀ = <x₀, e>:

        μ = α (e - cos φ₀ x₀) / sin φ₀ + √(1 - α²) x₀

    with μ along E X, whose length is E cos(ρ|z|).
    """
    mean_a, mean_b, rho = _matched(law, d, published=published, scale=scale)
    alpha = mean_a * math.sqrt(1 - start_cosine**2) - mean_b * start_cosine
    return torch.stack([alpha.clamp(0, 1), rho])


def _matched(law: Law, d: int, *, published: bool, scale: float) -> Float[Tensor, "3 N"]:
    """The direction of E X in the frame of the law, and ρ."""
    mean = torch.stack([law.a.double().mean(1), law.b.double().mean(1)])
    length = mean.norm(dim=0)
    rho = scale * matching_rho(length, d - 1, published=published)
    return torch.cat([mean / length.clamp_min(1e-12), rho[None]])
