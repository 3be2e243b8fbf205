"""Shape annotations, and the types that pass between modules: Batch, Condition, Bound and the denoiser protocol.

Sizes: B sequences, L positions, V tokens of the vocabulary, K states of a discrete process (V, or V + 1 with a mask).
Times run from 0 (data) to 1 (noise) and are a field over positions, [B, L].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.errors import UserError, shorten

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64
else:
    try:
        from jaxtyping import Bool, Float, Int64
    except ImportError:  # shapes are checked only where jaxtyping is installed, as for the tests

        class Shaped:
            """Shaped[Tensor, "B L"] is Tensor."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int64 = Shaped

__all__ = [
    "NO_TOKEN",
    "SIGN",
    "Batch",
    "Bool",
    "Bound",
    "ChunkedPredict",
    "Condition",
    "Float",
    "Indices",
    "Int64",
    "Kind",
    "LogitChunks",
    "Logits",
    "Positions",
    "Predict",
    "Rows",
    "State",
    "TextTokenizer",
    "Times",
    "Tokens",
    "Where",
    "check_condition",
    "pack",
]

Tokens = Int64[Tensor, "B L"]
Times = Float[Tensor, "B L"]
Positions = Bool[Tensor, "B L"]
Indices = tuple[Int64[Tensor, " N"], Int64[Tensor, " N"]]
"""Rows and columns of N positions."""
Where = Positions | Indices | None
"""Selected positions: a Boolean field, the pair of their indices (`nonzero(as_tuple=True)`), or None for all.

Each indexes a field, `field[where]`. The indices do so without a synchronisation of the device, which has to count the
selected positions of a Boolean field.
"""
Rows = Bool[Tensor, " B"] | Int64[Tensor, " n"]
"""Some sequences of a batch: a Boolean for each, or their indices."""
Logits = Float[Tensor, "... V"]
State = Tensor
"""Clean or noisy states: [B, L] integers for discrete processes, [B, L, d] for continuous ones."""

Kind = Literal["exact", "bound", "surrogate"]
"""What a likelihood figure is: the exact value, a proven upper bound on -log p, or neither."""


def pack(field: Tensor, where: Where) -> Tensor:
    """Return the values at the selected positions, [N, ...] in row-major order."""
    return field.flatten(0, 1) if where is None else field[where]


SIGN: dict[Kind, str] = {"exact": "=", "bound": "≤", "surrogate": "~"}


@runtime_checkable
class Predict(Protocol):
    """The denoiser: (noisy states, times, clean states of earlier blocks) -> logits of p(x | z).

    With `where` only those positions are predicted, packed as [N, V] in row-major order. Functions get it as a
    Boolean field, denoisers that are a ChunkedPredict also as indices.
    """

    def __call__(self, z: State, t: Times, context: State, where: Where = None) -> Logits: ...


@runtime_checkable
class TextTokenizer(Protocol):
    """What models use of a tokenizer (data/tokenizers.py)."""

    @property
    def size(self) -> int: ...

    @property
    def eos(self) -> int | None: ...

    def encode(self, text: str) -> Any: ...

    def decode(self, ids: Any) -> str: ...

    def describe(self) -> dict[str, Any]: ...


class LogitChunks(NamedTuple):
    """A packed prediction [N, V] that is computed a few rows at a time from features."""

    features: Float[Tensor, "N D"]
    project: Callable[[Float[Tensor, "n D"], slice], Logits]
    """(features of some rows, these rows) -> logits."""
    parameters: tuple[Tensor, ...] = ()
    """What `project` depends on in addition to the features."""

    def __call__(self, rows: slice) -> Logits:
        return self.project(self.features[rows], rows)

    def map(self, transform: Callable[[Logits, slice], Logits]) -> "LogitChunks":
        """Return the same prediction after a function of (logits, rows)."""
        return LogitChunks(self.features, lambda h, rows: transform(self.project(h, rows), rows), self.parameters)


@runtime_checkable
class ChunkedPredict(Predict, Protocol):
    """A denoiser that can also predict a few positions at a time, so that [N, V] never is in memory as a whole."""

    def logit_chunks(self, z: State, t: Times, context: State, where: Where) -> LogitChunks: ...


@dataclass(frozen=True)
class Condition:
    """The condition of each sequence: a label, a source text, a signal along the sequence, or several of them.

    Sequences that are not `given` their condition have it dropped: networks are trained without it too, because
    classifier-free guidance needs both predictions.
    """

    given: Bool[Tensor, " B"]
    labels: Int64[Tensor, " B"] | None = None
    source: Int64[Tensor, "B S"] | None = None
    """Tokens of the source text, padded with NO_TOKEN."""
    signal: Float[Tensor, "B L C"] | None = None

    @staticmethod
    def of(labels: Tensor | None = None, source: Tensor | None = None, signal: Tensor | None = None) -> "Condition":
        """A condition that is given to every sequence."""
        first = next(field for field in (labels, source, signal) if field is not None)
        return Condition(torch.ones(len(first), dtype=torch.bool, device=first.device), labels, source, signal)

    def __len__(self) -> int:
        return len(self.given)

    def drop(self, rows: Bool[Tensor, " B"]) -> "Condition":
        """The same condition, dropped for these sequences."""
        return Condition(self.given & ~rows, self.labels, self.source, self.signal)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Condition":
        """The same condition with `change` applied to every tensor, for example a selection of rows or a device."""
        fields = (self.labels, self.source, self.signal)
        return Condition(change(self.given), *(None if field is None else change(field) for field in fields))


def check_condition(condition: object, count: int) -> None:
    """Raise UserError unless this is the condition of `count` sequences."""
    if not isinstance(condition, Condition):
        raise UserError(
            f"A condition must be an ls.Condition such as ls.Condition.of(labels=…), not {shorten(condition)}."
        )
    if len(condition) != count:
        raise UserError(
            f"The condition is that of {len(condition)} sequences, and there are {count}; make one for each."
        )


NO_TOKEN = -1
"""Padding of source texts."""


@dataclass(frozen=True)
class Batch:
    """Sequences, which of their positions are known, and their ids.

    `known` positions are given: they have t = 0, cost nothing and never change. Positions that are not `valid` are
    padding. `ids` identify the samples for the noise source. `global_index` and `total` are the index of a sample in
    the whole batch over all processes and its size, so that times are stratified over the whole batch.
    """

    tokens: Tokens
    known: Positions
    valid: Positions
    ids: Int64[Tensor, " B"]
    global_index: Int64[Tensor, " B"]
    total: int
    condition: Condition | None = None
    token_count: Int64[Tensor, " B"] | None = None
    """The number of tokens that bits are divided by, where it is not the number of free positions: padded sequences
    have fewer."""
    documents: Int64[Tensor, "B L"] | None = None
    """The number of the document of each position, where rows hold several; attention does not cross them."""
    all_free: bool = False
    """Whether every position is free, as far as the host knows without a synchronisation of the device."""

    @staticmethod
    def of(
        tokens: Tokens, known: Positions | None = None, first: int = 0, condition: Condition | None = None
    ) -> "Batch":
        """A batch of whole sequences, numbered from `first`."""
        index, all_free = torch.arange(len(tokens), device=tokens.device), known is None
        if known is None:
            known = torch.zeros_like(tokens, dtype=torch.bool)
        valid = torch.ones_like(known)
        return Batch(tokens, known, valid, first + index, index, len(tokens), condition, all_free=all_free)

    @property
    def free(self) -> Positions:
        """Positions to be modelled: neither known nor padding."""
        return self.valid & ~self.known

    @property
    def scored_tokens(self) -> Int64[Tensor, " B"]:
        """The number of tokens of each sequence that bits are divided by."""
        return self.free.sum(1) if self.token_count is None else self.token_count

    def hold_first(self, token: int | None = None) -> "Batch":
        """The batch with position 0 known, and not counted; with a `token`, it is that one where it was free.

        Of packed documents the first position of each.
        """
        first = self.free & (torch.arange(self.tokens.shape[1], device=self.tokens.device) == 0)
        if self.documents is not None:
            first[:, 1:] |= self.free[:, 1:] & (self.documents[:, 1:] != self.documents[:, :-1])
        count = None if self.token_count is None else (self.token_count - first.sum(1)).clamp_min(0)
        tokens = self.tokens if token is None else torch.where(first, token, self.tokens)
        return replace(self, tokens=tokens, known=self.known | first, token_count=count, all_free=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device. Whether all of its positions are free is looked up before it leaves the host."""
        batch = self._check_free() if self.tokens.device.type == "cpu" else self
        asynchronous = torch.device(device).type == "cuda" and self.tokens.device.type == "cpu"
        return batch._map(lambda tensor: tensor.to(device, non_blocking=asynchronous))

    def _check_free(self) -> "Batch":
        return self if self.all_free else replace(self, all_free=bool(self.free.all()))

    def select(self, rows: slice | Rows) -> "Batch":
        """Some of the rows, with their ids and their indices in the whole batch."""
        return self._map(lambda tensor: tensor[rows])

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        known, valid, index = change(self.known), change(self.valid), change(self.global_index)
        condition = None if self.condition is None else self.condition.map(change)
        count = None if self.token_count is None else change(self.token_count)
        tokens, ids = change(self.tokens), change(self.ids)
        documents = None if self.documents is None else change(self.documents)
        return Batch(tokens, known, valid, ids, index, self.total, condition, count, documents, self.all_free)


@dataclass(frozen=True)
class Bound:
    """-log p(x) <= recon + diffusion + prior, in nats per sequence, [B] each, and the loss to differentiate."""

    recon: Float[Tensor, " B"]
    diffusion: Float[Tensor, " B"]
    prior: Float[Tensor, " B"]
    loss: Float[Tensor, " B"]
    count: Int64[Tensor, " B"]
    """The number of tokens that bits are divided by."""
    kind: Kind
    log_q: Float[Tensor, " B"] | None = None
    """log q(z | x), where the forward process is learned."""

    @property
    def total(self) -> Float[Tensor, " B"]:
        return self.recon + self.diffusion + self.prior
