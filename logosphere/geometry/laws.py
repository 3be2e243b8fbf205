"""Laws of bridges, tabulated once and kept on disk: a second to make, a moment to read."""

import hashlib
import json
import math

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from logosphere.atomic import write_whole
from logosphere.cache import cache_folder
from logosphere.geometry.bridges import LATEST, Bridge, Law, simulate

VERSION = 1
"""Raise it when the same settings would give another table."""
STEPS, PARTICLES = 512, 4096
CERTAINTY = 3.0
"""The path ends when a token stands out from all others by this many nats on average; the rest is read off."""


def bridge_law(bridge: Bridge, d: int, start_cosine: float, steps: int = STEPS, particles: int = PARTICLES) -> Law:
    """The law of a bridge on the unit sphere of R^d, from disk or made now."""
    settings = [VERSION, bridge.name, bridge.total_noise, d, start_cosine, steps, particles, CERTAINTY]
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
    path = cache_folder() / "laws" / f"{bridge.name}-{d}-{key}.safetensors"
    try:
        found = load_file(path)
        return Law(found["times"], found["a"], found["b"])
    except (OSError, SafetensorError, KeyError):
        pass  # never made, or damaged: make it
    end = horizon(bridge, d, start_cosine)
    law = simulate(bridge, d, start_cosine, torch.linspace(0, end, steps + 1, dtype=torch.float64), particles)
    try:
        write_whole(path, save({"times": law.times, "a": law.a, "b": law.b}))
    except OSError:
        pass  # a cache that cannot be written costs a second next time, and nothing else
    return law


def horizon(bridge: Bridge, d: int, start_cosine: float) -> float:
    """The time s* at which X tells the K = d - 1 tokens apart: gap² / 4σ² = log K + CERTAINTY.

    The gap is that between the coordinates of the token and of any other, σ the noise on each.
    """
    times = torch.linspace(0, LATEST, 129, dtype=torch.float64)
    law = simulate(bridge, d, start_cosine, times, particles=512)
    a, b = law.a.double(), law.b.double()
    share = start_cosine / math.sqrt(1 - start_cosine**2)  # of u on each of the other tokens
    gap = (a - share * b).mean(1)
    spread = (1 - a.square() - b.square()).clamp_min(0).mean(1) / (d - 2)
    clear = gap.square() / (4 * spread.clamp_min(1e-12)) > math.log(d - 1) + CERTAINTY
    return float(times[_first(clear[1:]) + 1])


def _first(flags: Tensor) -> int:
    """The place of the first True, or the last place."""
    return int(flags.float().argmax()) if bool(flags.any()) else len(flags) - 1
