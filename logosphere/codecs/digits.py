"""Dimension splitting (Jo and Hwang 2025): a token is written as m digits in base b, each a vertex of a small sphere.

States are [B, m·L, b + 1], the digits of a token side by side, the largest place first; or, as published, the
smallest place first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.codecs.vertices import CLEAR, Coordinates
from logosphere.errors import UserError
from logosphere.shapes import Int64
from logosphere.types import State, Tokens


def digits_needed(vocab_size: int, base: int) -> int:
    """The least m with b^m >= V, counted in whole numbers: logarithms err at exact powers such as 5³."""
    m, codes = 1, base
    while codes < vocab_size:
        m, codes = m + 1, codes * base
    return m


class DigitCodec(Codec):
    """Tokens 0 … V - 1 as numbers in base b."""

    local = True
    powers: Tensor

    def __init__(self, vocab_size: int, base: int, *, smallest_first: bool = False):
        super().__init__()
        if base < 2:
            raise UserError(f"Digits need a base of at least 2, not {base}.")
        if base >= vocab_size:
            raise UserError(
                f"Splitting {vocab_size} tokens needs a base below {vocab_size}, not {base}; leave it out for none."
            )
        self.vocab_size, self.base, self.digits = vocab_size, base, digits_needed(vocab_size, base)
        self.smallest_first = smallest_first
        powers = torch.tensor([base**i for i in range(self.digits)])
        self.register_buffer("powers", powers if smallest_first else powers.flip(0), persistent=False)

    @property
    def choices(self) -> int:
        return self.base

    def written(self, tokens: Int64[Tensor, "..."]) -> Int64[Tensor, "... m"]:
        """The digits of tokens."""
        return tokens[..., None] // self.powers % self.base

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(self.written(tokens).flatten(1), self.base + 1).float()

    def decode(self, z: State) -> Tokens:
        digit = z[..., : self.base].argmax(-1).unflatten(1, (-1, self.digits))
        return (digit * self.powers).sum(-1).clamp_max(self.vocab_size - 1)

    def read(self, z: State) -> Tokens:
        clear = (z[..., : self.base].amax(-1).square() > CLEAR).unflatten(1, (-1, self.digits)).all(-1)
        return torch.where(clear, self.decode(z), HIDDEN)

    def spread(self, field: Tensor) -> Tensor:
        return field.repeat_interleave(self.digits, -1)

    def stem(self, width: int) -> nn.Module:
        return Coordinates(self.base, width)
