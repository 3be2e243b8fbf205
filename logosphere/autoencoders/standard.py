"""Standardisation by statistics of what training has shown, and of nothing else."""

import torch
from torch import Tensor, nn

from logosphere.types import Float

MEMORY = 0.98
"""Decay of what was seen, per training step."""


class Standard(nn.Module):
    """(x - mean) / deviation for each of `places` and features; one place stands for all where there is only one.

    What is observed counts from the next `settle` on, however a batch was cut; without any, nothing is changed.
    """

    mean: Tensor
    square: Tensor
    seen: Tensor
    pending: Tensor

    def __init__(self, places: int, features: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(places, features, dtype=torch.float64))
        self.register_buffer("square", torch.ones(places, features, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("pending", torch.zeros(3, places, features, dtype=torch.float64), persistent=False)

    def forward(self, x: Float[Tensor, "B N d"]) -> Float[Tensor, "B N d"]:
        deviation = (self.square - self.mean.square()).clamp_min(1e-6).sqrt()
        return (x - self.mean.to(x.dtype)) / deviation.to(x.dtype)

    def know(self, mean: Float[Tensor, " d"], deviation: Float[Tensor, " d"]) -> None:
        """Take statistics that are known already, the same at every place."""
        self.mean.copy_(mean.double().expand_as(self.mean))
        self.square.copy_(deviation.double().square() + self.mean.square())

    def observe(self, x: Float[Tensor, "B N d"]) -> None:
        rows = x.detach().double().reshape(-1, *self.mean.shape)
        count = torch.full_like(self.mean, len(rows))
        self.pending += torch.stack([rows.sum(0), rows.square().sum(0), count])

    def settle(self) -> None:
        """A running average; the first observations replace the even start at once."""
        count = self.pending[2]
        if not bool(count.any()):
            return
        weight = (1 - MEMORY) / (1 - MEMORY ** (self.seen + 1))
        self.mean += weight * (self.pending[0] / count - self.mean)
        self.square += weight * (self.pending[1] / count - self.square)
        self.seen += 1
        self.pending.zero_()
