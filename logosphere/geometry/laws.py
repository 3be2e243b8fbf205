"""Laws of bridges, tabulated once and kept on disk: a second to make, a moment to read."""

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

from logosphere.geometry.bridges import LATEST, Bridge, Law, simulate
from logosphere.io import cache_folder, write_atomic
from logosphere.types import Float

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
        write_atomic(path, save(tables, {"settings": settings}))
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
