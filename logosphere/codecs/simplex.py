"""Tokens as corners of the simplex of distributions: token k is the distribution that is sure of k."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.codecs.vertices import CLEAR, Coordinates
from logosphere.types import State, Tokens


class SimplexCodec(Codec):
    """States [B, L, d] begin with the shares of the V tokens, or with their square roots if `rooted`.

    Whatever follows the first V coordinates is 0 in clean states and says nothing of the token.
    """

    local = True

    def __init__(self, vocab_size: int, *, width: int | None = None, rooted: bool = False):
        super().__init__()
        self.vocab_size, self.width, self.rooted = vocab_size, width or vocab_size, rooted

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(tokens, self.width).float()

    def decode(self, z: State) -> Tokens:
        return z[..., : self.vocab_size].argmax(-1)

    def read(self, z: State) -> Tokens:
        share, token = z[..., : self.vocab_size].max(-1)
        return torch.where((share.square() if self.rooted else share) > CLEAR, token, HIDDEN)

    def spread(self, field: Tensor) -> Tensor:
        return field

    def stem(self, width: int) -> nn.Module:
        return Coordinates(self.vocab_size, width)
