"""Codecs of one-hot states: vertices of the sphere, and corners of the simplex of distributions.

On the sphere token k is the axis e_k of R^d, d = V + 1, and the last axis is the mask. The vertices are the corners of
the positive orthant, which under p = x² is the simplex of distributions with the Fisher-Rao metric.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.types import State, Tokens

THRESHOLD = 0.5
"""A state determines a token that has more than this probability (x² > 1/2 on the sphere)."""


class VertexCodec(Codec):
    """States are unit vectors [B, L, V + 1]."""

    local = True

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size, self.width = vocab_size, vocab_size + 1

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(tokens, self.width).float()

    def decode(self, z: State) -> Tokens:
        return z[..., : self.vocab_size].argmax(-1)

    def decode_partial(self, z: State) -> Tokens:
        value, token = z[..., : self.vocab_size].max(-1)
        return torch.where(value.square() > THRESHOLD, token, HIDDEN)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.vocab_size, width)


class CoordinateStem(nn.Linear):
    """A linear layer over the coordinates of the tokens; that of the mask follows from them."""

    def __init__(self, num_classes: int, width: int):
        super().__init__(num_classes, width)
        nn.init.normal_(self.weight, std=1.5 * num_classes**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, z: State) -> State:
        return super().forward(z[..., : self.in_features])


class SimplexCodec(Codec):
    """States [B, L, d] begin with the probabilities of the V tokens, or with their square roots if `rooted`.

    Further coordinates are 0 in clean states and do not depend on the token.
    """

    local = True

    def __init__(self, vocab_size: int, *, width: int | None = None, rooted: bool = False):
        super().__init__()
        self.vocab_size, self.width, self.rooted = vocab_size, width or vocab_size, rooted

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(tokens, self.width).float()

    def decode(self, z: State) -> Tokens:
        return z[..., : self.vocab_size].argmax(-1)

    def decode_partial(self, z: State) -> Tokens:
        value, token = z[..., : self.vocab_size].max(-1)
        return torch.where((value.square() if self.rooted else value) > THRESHOLD, token, HIDDEN)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.vocab_size, width)
