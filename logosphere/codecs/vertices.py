"""Tokens as vertices of the sphere: token k is the axis e_k of R^d, d = V + 1, and the last axis is the mask.

The vertices are the corners of the positive orthant, which under p = x² is the simplex of distributions with the
Fisher-Rao metric.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.types import State, Tokens

CLEAR = 0.5
"""A state spells a token once that token holds more than this share of it (x² > 1/2)."""


class VertexCodec(Codec):
    """States are unit vectors [B, L, V + 1]."""

    local = True
    on_sphere = True

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, vocab_size + 1

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(tokens, self.width).float()

    def decode(self, z: State) -> Tokens:
        return z[..., : self.vocab_size].argmax(-1)

    def read(self, z: State) -> Tokens:
        share, token = z[..., : self.vocab_size].max(-1)
        return torch.where(share.square() > CLEAR, token, HIDDEN)

    def spread(self, field: Tensor) -> Tensor:
        return field

    def stem(self, width: int) -> nn.Module:
        return Coordinates(self.vocab_size, width)


class Coordinates(nn.Linear):
    """Reads the coordinates of the tokens; that of the mask follows from them."""

    def __init__(self, choices: int, width: int):
        super().__init__(choices, width)
        nn.init.normal_(self.weight, std=1.5 * choices**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, z: State) -> State:
        return super().forward(z[..., : self.in_features])
