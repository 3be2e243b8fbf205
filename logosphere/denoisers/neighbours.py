"""A look at the places next door, beside attention and before it.

    h_i ← h_i + Σ_{0 < |δ| ≤ r} A_δ h_{i+δ}                 nothing beyond the ends; in an image, along each axis

A model from left to right has the token before each position in its residual stream from the first step, and learns
which tokens follow each other by its head alone. A hidden position brings nothing of its own: what its neighbours say
must come through heads of attention, each of which passes on a part of the width, and that takes hundreds of steps to
learn (docs/results.md). After the token shift of RWKV (Peng et al. 2023, arXiv:2305.13048), to both sides and with full
matrices.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.shapes import Float


class Neighbours(nn.Module):
    """What the `reach` places on both sides say, along each of the axes."""

    def __init__(self, width: int, reach: int, axes: tuple[int, ...] = ()):
        super().__init__()
        self.reach, self.axes = reach, axes
        self.mix = nn.Linear(2 * reach * max(1, len(axes)) * width, width, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """Loud enough to be heard beside a position's own embedding from the start."""
        nn.init.normal_(self.mix.weight, std=self.mix.out_features**-0.5 / 2)

    def forward(self, h: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
        places = h.unflatten(1, self.axes or (h.shape[1],))
        sides = [shifted(places, 1 + axis, by) for axis in range(places.dim() - 2) for by in self._steps()]
        mixed: Tensor = self.mix(torch.cat(sides, -1))
        return mixed.flatten(1, -2)

    def _steps(self) -> list[int]:
        return [by for by in range(-self.reach, self.reach + 1) if by]


def shifted(h: Tensor, axis: int, by: int) -> Tensor:
    """What stands `by` places further along an axis; zeros where nothing does."""
    size = h.shape[axis]
    kept = h.narrow(axis, min(max(by, 0), size), max(size - abs(by), 0))
    pad = [0, 0] * (h.dim() - 1 - axis) + [min(max(-by, 0), size), min(max(by, 0), size)]
    return F.pad(kept, pad)
