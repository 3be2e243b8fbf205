"""What a network is shown of states on the simplex, where papers transform them first."""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.types import Logits, Positions, State, Times

Presentation = Callable[[State, Times], Tensor]
"""(states, times) -> what the network reads."""


class Presented(Wrapper):
    """Shows the network a function of states and times in place of the states."""

    def __init__(self, inner: Denoiser, present: Presentation):
        super().__init__()
        self.inner, self.block, self.reads_time, self.present = inner, inner.block, inner.reads_time, present

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        return self.inner(self.present(z, t), t, context, where)

    def around(self, inner: Denoiser) -> Denoiser:
        return Presented(inner, self.present)


def scaled(choices: int) -> Presentation:
    """2 θ - 1: probabilities in [-1, 1] (Graves et al. 2023)."""
    return lambda z, t: 2 * z[..., :choices] - 1


def doubled(alpha: Callable[[Times], Tensor]) -> Presentation:
    """[(1 - w) z, w z] with w = 2 / (α + 1), by which a network sees how far z is from noise (Stark et al. 2024)."""

    def present(z: State, t: Times) -> Tensor:
        w = torch.where(t > 0, 2 / (alpha(t) + 1), 0.0)[..., None].to(z.dtype)
        return torch.cat([(1 - w) * z, w * z], -1)

    return present
