"""Dimension splitting (Jo and Hwang 2025): a token is encoded as m digits in base b, each a vertex of a small sphere.

States are [B, m·L, b + 1]; the digits of a token are adjacent, the most significant first or, as published, last.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.codecs.vertices import THRESHOLD, CoordinateStem
from logosphere.errors import UserError
from logosphere.types import Float, Int64, State, Tokens


def count_digits(vocab_size: int, base: int) -> int:
    """Return the least m with b^m >= V, by integer arithmetic: logarithms fail at exact powers such as 5³."""
    m, codes = 1, base
    while codes < vocab_size:
        m, codes = m + 1, codes * base
    return m


class DigitCodec(Codec):
    """Tokens 0 … V - 1 as numbers in base b; codes that are no token are never decoded."""

    local = True
    powers: Tensor

    def __init__(self, vocab_size: int, base: int, *, smallest_first: bool = False):
        super().__init__()
        if base < 2:
            raise UserError(f"base must be at least 2, not {base}.")
        if base >= vocab_size:
            raise UserError(
                f"base must be below {vocab_size}, the vocabulary size, not {base}; omit it for no splitting."
            )
        self.vocab_size, self.base, self.digits = vocab_size, base, count_digits(vocab_size, base)
        self.smallest_first = smallest_first
        powers = torch.tensor([base**i for i in range(self.digits)])
        self.register_buffer("powers", powers if smallest_first else powers.flip(0), persistent=False)

    @property
    def num_classes(self) -> int:
        return self.base

    def to_digits(self, tokens: Int64[Tensor, "..."]) -> Int64[Tensor, "... m"]:
        """The digits of tokens."""
        return tokens[..., None] // self.powers % self.base

    def encode(self, tokens: Tokens) -> State:
        return F.one_hot(self.to_digits(tokens).flatten(1), self.base + 1).float()

    def decode(self, z: State) -> Tokens:
        """The largest coordinate of each digit; where these are no token, the valid code with the largest sum."""
        x = z[..., : self.base].unflatten(1, (-1, self.digits))
        token = (x.argmax(-1) * self.powers).sum(-1)
        invalid = token >= self.vocab_size
        return token.masked_scatter(invalid, self._best_valid(x[invalid])) if bool(invalid.any()) else token

    def _best_valid(self, x: Float[Tensor, "N m b"]) -> Int64[Tensor, " N"]:
        """Return the token whose digits have the largest sum of coordinates.

        It is V - 1; or it agrees with V - 1 before some digit, is smaller there, and has the largest coordinates after.
        """
        x = x.flip(1) if self.smallest_first else x
        last = [(self.vocab_size - 1) // self.base**i % self.base for i in reversed(range(self.digits))]
        free, choice = x.max(-1)
        equal = torch.stack([x[:, i, own] for i, own in enumerate(last)], 1)
        score, token = [equal.sum(1)], [torch.full_like(choice[:, 0], self.vocab_size - 1)]
        for i, own in enumerate(last):
            if own:
                below, digit = x[:, i, :own].max(-1)
                score.append(equal[:, :i].sum(1) + below + free[:, i + 1 :].sum(1))
                number = sum(value * self.base ** (self.digits - 1 - j) for j, value in enumerate(last[:i]))
                for j, value in enumerate([digit, *choice[:, i + 1 :].unbind(1)], start=i):
                    number = number + value * self.base ** (self.digits - 1 - j)
                token.append(torch.as_tensor(number))
        best = torch.stack(score, 1).argmax(1, keepdim=True)
        return torch.stack(token, 1).gather(1, best).squeeze(1)

    def decode_partial(self, z: State) -> Tokens:
        determined = (z[..., : self.base].amax(-1).square() > THRESHOLD).unflatten(1, (-1, self.digits)).all(-1)
        return torch.where(determined, self.decode(z), HIDDEN)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field.repeat_interleave(self.digits, -1)

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.base, width)
