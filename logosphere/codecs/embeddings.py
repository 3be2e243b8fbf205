"""Tokens as points of R^d: an embedding table with one row for each token, learned or fixed.

Fixed tables are the analog bits of Bit Diffusion, one-hot vectors and the ±1 logits of SSD-LM. Learned tables have rows
of a given norm; without one, the loss must keep rows separate and small.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import HIDDEN, Codec
from logosphere.errors import UserError
from logosphere.types import Float, Int64, State, Tokens

MARGIN = 0.25
"""A state determines a token if it lies at least three quarters of the way to it from any other; 0 is the middle."""

METRIC_ROWS = 512
"""Rows of large tables on which metrics are measured."""
PROJECTIONS = 4
"""Random projections on which rows are compared first."""
MAX_ONE_HOT = 8192
"""Largest vocabulary of codecs with one coordinate per token, whose table has V² entries."""
ROUNDING = 1e-5
"""Rows closer than this, relative to their squared norm, may be confused in float32."""


class Embeddings(Codec):
    """States are rows of a table [V, d]; with `norm` every row is scaled to that norm whenever it is used."""

    local = True
    weight: Tensor

    def __init__(
        self,
        table: Float[Tensor, "V d"],
        *,
        learned: bool = False,
        norm: float | None = None,
        distinct: bool = False,
    ):
        """`distinct`: rows are known to differ, so that it need not be checked."""
        super().__init__()
        self.vocab_size, self.width = table.shape
        self.learned, self.norm, self.distinct = learned, norm, distinct
        if learned:
            self.weight = nn.Parameter(table.float())
        else:
            self.register_buffer("weight", table.float(), persistent=False)

    def table(self) -> Float[Tensor, "V d"]:
        """The rows, scaled to `norm`."""
        return self.weight if self.norm is None else self.norm * F.normalize(self.weight, dim=-1)

    def rows(self, tokens: Int64[Tensor, "..."]) -> State:
        """The points of tokens of any shape."""
        return F.embedding(tokens, self.table())

    def nearest(self, z: State) -> Int64[Tensor, "..."]:
        """The token whose point is nearest."""
        return self._closeness(z).argmax(-1)

    def encode(self, tokens: Tokens) -> State:
        return self.rows(tokens)

    def decode(self, z: State) -> Tokens:
        return self.nearest(z)

    def products(self, z: State) -> Float[Tensor, "... V"]:
        """z·e_k, always in float32, because tokens may differ by small amounts."""
        return self.compare_rows(z)[0]

    def compare_rows(self, z: State) -> tuple[Float[Tensor, "... V"], Float[Tensor, " V"]]:
        """z·e_k, and |e_k|². The table is computed twice if gradients are needed, to keep the order of their sums."""
        table = self.table()
        with torch.autocast(z.device.type, enabled=False):
            products = z.float() @ table.T
        return products, (self.table() if torch.is_grad_enabled() else table).square().sum(-1)

    def mean(self, logits: Float[Tensor, "... V"]) -> State:
        """Σ_k p_k e_k, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            return logits.float().softmax(-1) @ self.table()

    @torch.no_grad()
    def _closeness(self, z: State) -> Float[Tensor, "... V"]:
        """(|z|² - |z - e_k|²) / 2: largest for the nearest row."""
        products, squares = self.compare_rows(z)
        return products - squares / 2

    @torch.no_grad()
    def is_separable(self) -> bool:
        """Return whether every row is the nearest to itself by more than rounding; else tokens cannot be decoded.

        Rows e and f are too close if |e - f|²/2 ≤ `ROUNDING`·|e|². Then all their projections are close too, so rows
        are sorted by one projection and compared only with the following rows within reach.
        """
        if self.distinct:
            return True
        table = self.table().double()
        squares = table.square().sum(-1)
        reach = (2 * ROUNDING * squares.amax()).sqrt()
        directions = torch.randn(self.width, PROJECTIONS, generator=torch.Generator().manual_seed(0)).double()
        places = table @ F.normalize(directions, dim=0).to(table.device)
        order = places[:, 0].argsort()
        table, squares, places = table[order], squares[order], places[order].T.contiguous()
        for shift in range(1, self.vocab_size):
            close = places[0, shift:] - places[0, :-shift] <= reach
            if not bool(close.any()):
                return True
            for place in places[1:]:
                close &= (place[shift:] - place[:-shift]).abs() <= reach
            (first,) = close.nonzero(as_tuple=True)
            apart = (table[first] - table[first + shift]).square().sum(-1) / 2
            if bool((apart <= ROUNDING * squares[first].maximum(squares[first + shift])).any()):
                return False
        return True

    def decode_partial(self, z: State) -> Tokens:
        best = self._closeness(z).topk(2, dim=-1)
        first, second = self.rows(best.indices).detach().unbind(-2)
        margin = best.values[..., 0] - best.values[..., 1]
        return torch.where(margin > MARGIN * (first - second).square().sum(-1), best.indices[..., 0], HIDDEN)

    def expand_to_states(self, field: Tensor) -> Tensor:
        return field

    def build_stem(self, width: int) -> nn.Module:
        layer = nn.Linear(self.width, width)
        nn.init.normal_(layer.weight, std=self.width**-0.5)
        nn.init.zeros_(layer.bias)
        return layer

    @torch.no_grad()
    def metrics(self, alpha: float, sigma: float) -> dict[str, float]:
        """Return norm, spread (distance to the nearest row over the norm) and how often α e + σ ε is nearest to α e."""
        order = torch.randperm(self.vocab_size, generator=torch.Generator().manual_seed(0))
        rows = order[:METRIC_ROWS].to(self.weight.device)
        table = self.table()
        some, norm = table[rows], table.norm(dim=-1).mean()
        apart = torch.cdist(some, table).scatter(1, rows[:, None], torch.inf).amin(1).mean()
        noise = torch.randn(16, *some.shape, generator=torch.Generator().manual_seed(1)).to(some.device)
        back = self.nearest(some + sigma / alpha * noise)
        return {
            "embedding/norm": float(norm),
            "embedding/spread": float(apart / norm.clamp_min(1e-12)),
            "embedding/rounding": float((back == rows).float().mean()),
        }


def learned_table(vocab_size: int, width: int, norm: float | None) -> Embeddings:
    """Return a learned table: random directions of length `norm`, or without a norm, coordinates of about 1."""
    if width < 1:
        raise UserError(f"Embeddings need a width of at least 1, not {width}.")
    if norm is not None and not 0 < norm < math.inf:
        raise UserError(f"The norm of embeddings must be positive and finite, not {norm}.")
    return Embeddings(torch.randn(vocab_size, width), learned=True, norm=norm)


def bit_table(vocab_size: int) -> Embeddings:
    """Return a table of the ⌈log₂ V⌉ bits of each token id, -1 or 1 (Chen et al. 2022, Bit Diffusion)."""
    if vocab_size < 2:
        raise UserError(f"Bits need a vocabulary of at least 2 tokens, not {vocab_size}.")
    width = (vocab_size - 1).bit_length()
    place = torch.arange(width - 1, -1, -1)
    return Embeddings(2.0 * ((torch.arange(vocab_size)[:, None] >> place) & 1) - 1, distinct=True)


def one_hot_table(vocab_size: int) -> Embeddings:
    """Return the axes of R^V."""
    _check_square("one-hot", vocab_size)
    return Embeddings(torch.eye(vocab_size), distinct=True)


def logit_table(vocab_size: int) -> Embeddings:
    """Return 1 at the token and -1 elsewhere: SSD-LM's ±K in units of K (Han et al. 2023); its noise deviation is K."""
    _check_square("logits", vocab_size)
    return Embeddings(2 * torch.eye(vocab_size) - 1, distinct=True)


def _check_square(codec: str, vocab_size: int) -> None:
    if vocab_size > MAX_ONE_HOT:
        raise UserError(
            f"The codec {codec} has one coordinate for each token and allows at most {MAX_ONE_HOT:,} tokens, not "
            f"{vocab_size:,}; use learned embeddings or bits (plaid, cdcd, bit-diffusion)."
        )
