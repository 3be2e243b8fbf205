"""The identity codec: a token is its own state, and one more state may mean 'unknown yet'."""

import torch
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.types import State, Tokens


class TokenCodec(Codec):
    """States are token numbers; with `mask`, state V is the mask."""

    local = True
    is_discrete = True

    def __init__(self, vocab_size: int, *, mask: bool):
        super().__init__()
        self.vocab_size = vocab_size
        self.mask = vocab_size if mask else None
        self.states = vocab_size + (1 if mask else 0)

    def encode(self, tokens: Tokens) -> State:
        return tokens

    def decode(self, z: State) -> Tokens:
        return z if self.mask is None else z.clamp_max(self.vocab_size - 1)

    def read(self, z: State) -> Tokens:
        return z if self.mask is None else torch.where(z == self.mask, HIDDEN, z)

    def spread(self, field: Tensor) -> Tensor:
        return field

    def stem(self, width: int) -> nn.Module:
        return embedding(self.states, width)


def embedding(states: int, width: int) -> nn.Embedding:
    """A table of small vectors: small, so that the first blocks are heard beside them from the start."""
    table = nn.Embedding(states, width)
    nn.init.normal_(table.weight, std=0.2)
    return table
