"""Weights of hybrid diffusion in training, in place of the bound's, which explode at both ends of time.

The bound's own weight of the divergence of marginals is law.weight(x, z, t) (von Rütte et al. 2025, GIDD, section 4.2).
"""

import torch
from torch import Tensor

from logosphere.processes.mixing import Mixing
from logosphere.types import State


def clipped(law: Mixing, x: State, z: State, t: Tensor) -> Tensor:
    """min(w, 1)."""
    return law.weight(x, z, t).clamp_max(1.0)


def dynamic(law: Mixing, x: State, z: State, t: Tensor) -> Tensor:
    """2 at masks, 1 at random tokens, u_t/a_t at clean ones, at most 2.

    The last is how likely a random token is beside a clean one, B/V e^{-λ/2} with λ the log signal-to-noise ratio.
    """
    clean = torch.where(z == x, (1 / law.odds(t)).clamp_max(2.0), 1.0)
    return torch.where(law.is_mask(z), 2.0, clean)
