"""Weights of hybrid diffusion in training, in place of the bound's, which explode at both ends of time.

The bound's own weight of the divergence of marginals is law.weight(x, z, t) (von Rütte et al. 2025, GIDD, section 4.2).
"""

import torch
from torch import Tensor

from logosphere.processes.discrete.mixing import Hybrid, MixingDistribution
from logosphere.types import State


def clipped(law: MixingDistribution, x: State, z: State, t: Tensor) -> Tensor:
    """min(w, 1)."""
    return law.weight(x, z, t).clamp_max(1.0)


def dynamic(law: MixingDistribution, x: State, z: State, t: Tensor) -> Tensor:
    """2 at masks, 1 at random tokens, u_t/a_t at clean ones, at most 2.

    The last is how likely a random token is beside a clean one, B/V e^{-λ/2} with λ the log signal-to-noise ratio.
    """
    clean = torch.where(z == x, (1 / law.odds(t)).clamp_max(2.0), 1.0)
    return torch.where(law.is_mask(z), 2.0, clean)


def clipped_at_two(law: MixingDistribution, x: State, z: State, t: Tensor) -> Tensor:
    """min(w, 2), the limit in the configuration of GIDD's code."""
    return law.weight(x, z, t).clamp_max(2.0)


def dynamic_of_code(law: MixingDistribution, x: State, z: State, t: Tensor) -> Tensor:
    """2 at masks, 1 at random tokens, B/K exp(sigmoid(-t)/2) at clean ones, at most 2, for K = V + 1 states.

    So in GIDD's code, which puts sigmoid(-t) for the log signal-to-noise ratio of `dynamic`: nearly constant in t.
    """
    assert isinstance(law, Hybrid)
    clean = (law.strength / (law.vocab_size + 1) * (torch.sigmoid(-t) / 2).exp()).clamp_max(2.0)
    return torch.where(law.is_mask(z), 2.0, torch.where(z == x, clean, 1.0))
