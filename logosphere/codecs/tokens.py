"""Codecs with one state for each token or for each of its digits.

Tokens are states themselves (discrete diffusion), vertices of the sphere or corners of the simplex, or numbers in a
base whose digits are vertices (dimension splitting, RDLM).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec, TokenRows
from logosphere.errors import UserError
from logosphere.types import Float, Int64, State, Tokens


class TokenCodec(Codec):
    """States are token ids; with `mask`, state V is the mask."""

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

    def decode_partial(self, z: State) -> Tokens:
        return z if self.mask is None else torch.where(z == self.mask, HIDDEN, z)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        return TokenEmbedding(self.states, width)


class TokenEmbedding(nn.Embedding, TokenRows):
    """An embedding with small initial weights, so that the first blocks contribute from the start."""

    def __init__(self, states: int, width: int):
        super().__init__(states, width)
        nn.init.normal_(self.weight, std=0.2)

    def token_rows(self, vocab_size: int) -> Float[Tensor, "V D"]:
        return self.weight[:vocab_size]


THRESHOLD = 0.5
"""A state determines a token that has more than this probability (x² > 1/2 on the sphere)."""


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

    def decode_partial(self, z: State) -> Tokens:
        value, token = z[..., : self.vocab_size].max(-1)
        return torch.where(value.square() > THRESHOLD, token, HIDDEN)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        return CoordinateStem(self.vocab_size, width)


class CoordinateStem(nn.Linear, TokenRows):
    """A linear layer over the coordinates of the tokens; that of the mask follows from them."""

    def __init__(self, num_classes: int, width: int):
        super().__init__(num_classes, width)
        nn.init.normal_(self.weight, std=1.5 * num_classes**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, z: State) -> State:
        if not z.is_floating_point():  # clean states as token ids
            return F.embedding(z, self.weight.T) + self.bias
        return super().forward(z[..., : self.in_features])

    def token_rows(self, vocab_size: int) -> Float[Tensor, "V D"]:
        return self.weight[:, :vocab_size].T


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
