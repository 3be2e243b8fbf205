"""The identity codec: states are token ids, with an optional mask state."""

import torch
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.types import State, Tokens


class TokenCodec(Codec):
    """States are token ids; with `mask`, state V is the mask."""

    local = True

    def __init__(self, vocab_size: int, *, mask: bool):
        super().__init__()
        self.vocab_size = vocab_size
        self.mask = vocab_size if mask else None
        self.states = vocab_size + (1 if mask else 0)

    def encode(self, tokens: Tokens) -> State:
        return tokens

    def decode(self, z: State) -> Tokens:
        return z if self.mask is None else z.clamp_max(self.vocab_size - 1)

    def decode_partial(self, z: State) -> Tokens:
        return z if self.mask is None else torch.where(z == self.mask, HIDDEN, z)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        return build_embedding(self.states, width)


def build_embedding(states: int, width: int) -> nn.Embedding:
    """Build an embedding with small initial weights, so that the first blocks contribute from the start."""
    table = nn.Embedding(states, width)
    nn.init.normal_(table.weight, std=0.2)
    return table
