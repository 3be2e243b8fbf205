"""The few types that flow through everything: Batch in, Bound out.

Sizes: B sequences, L positions, V tokens of the vocabulary, K states of a discrete process (V, or V + 1 with a mask).
Times run from 0 (data) to 1 (noise) and are a field over positions, [B, L].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.shapes import Bool, Float, Int64

Tokens = Int64[Tensor, "B L"]
Times = Float[Tensor, "B L"]
Positions = Bool[Tensor, "B L"]
Logits = Float[Tensor, "... V"]
State = Tensor
"""Clean or noisy states: [B, L] integers for discrete processes, [B, L, d] for continuous ones."""

Kind = Literal["exact", "bound", "surrogate"]
"""What a likelihood figure is: the value itself, a proven upper bound on -log p, or neither."""

SIGN: dict[Kind, str] = {"exact": "=", "bound": "≤", "surrogate": "~"}


@runtime_checkable
class Predict(Protocol):
    """The denoiser contract: (noisy states, times, clean states of earlier blocks) -> logits of p(x | z).

    With `where` only those positions are wanted, and they come packed as [N, V], row by row.
    """

    def __call__(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits: ...


Parts = Callable[[slice], Logits]
"""Some rows of a packed prediction [N, V], made when they are asked for."""


@runtime_checkable
class PredictInParts(Predict, Protocol):
    """A denoiser that can also answer a few positions at a time, so that [N, V] need never be in memory as a whole."""

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts: ...


@dataclass(frozen=True)
class Condition:
    """What sequences are written from: a label, a source text, a signal along the sequence; whatever there is of them.

    Where not `given`, a condition is withheld: networks learn to do without it, which guidance needs.
    """

    given: Bool[Tensor, " B"]
    labels: Int64[Tensor, " B"] | None = None
    source: Int64[Tensor, "B S"] | None = None
    """Tokens of the source text, NO_TOKEN where it is shorter."""
    signal: Float[Tensor, "B L C"] | None = None

    @staticmethod
    def of(labels: Tensor | None = None, source: Tensor | None = None, signal: Tensor | None = None) -> "Condition":
        """A condition that is given to every sequence."""
        first = next(field for field in (labels, source, signal) if field is not None)
        return Condition(torch.ones(len(first), dtype=torch.bool, device=first.device), labels, source, signal)

    def __len__(self) -> int:
        return len(self.given)

    def withheld(self, rows: Bool[Tensor, " B"]) -> "Condition":
        """The same, but not given to these sequences."""
        return Condition(self.given & ~rows, self.labels, self.source, self.signal)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Condition":
        """The same with every field changed, for example cut or moved."""
        fields = (self.labels, self.source, self.signal)
        return Condition(change(self.given), *(None if field is None else change(field) for field in fields))


NO_TOKEN = -1
"""Stands where a source text has ended."""


@dataclass(frozen=True)
class Batch:
    """Sequences, what is known of them, and who they are.

    `known` positions are given (they have t = 0, cost nothing and stay as they are); positions that are not `valid`
    are padding. `ids` name the samples for the noise source; `place` and `total` say where a sample stands in the
    whole batch over all processes, so that strata of time are shared out once and not once per process.
    """

    tokens: Tokens
    known: Positions
    valid: Positions
    ids: Int64[Tensor, " B"]
    place: Int64[Tensor, " B"]
    total: int
    condition: Condition | None = None
    units: Int64[Tensor, " B"] | None = None
    """Tokens that bits are counted per, where that is not every free position: filled-up sequences have fewer."""

    @staticmethod
    def of(
        tokens: Tokens, known: Positions | None = None, first: int = 0, condition: Condition | None = None
    ) -> "Batch":
        """A batch of whole sequences, numbered from `first`."""
        place = torch.arange(len(tokens), device=tokens.device)
        if known is None:
            known = torch.zeros_like(tokens, dtype=torch.bool)
        return Batch(tokens, known, torch.ones_like(known), first + place, place, len(tokens), condition)

    @property
    def free(self) -> Positions:
        """Positions to be modelled: neither known nor padding."""
        return self.valid & ~self.known

    @property
    def counted(self) -> Int64[Tensor, " B"]:
        """Tokens of each sequence that bits are counted per."""
        return self.free.sum(1) if self.units is None else self.units

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> "Batch":
        return self._each(lambda tensor: tensor.to(device))

    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Batch":
        """Some of the rows; they keep their names and their place in the whole."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        known, valid, place = change(self.known), change(self.valid), change(self.place)
        condition = None if self.condition is None else self.condition.each(change)
        units = None if self.units is None else change(self.units)
        return Batch(change(self.tokens), known, valid, change(self.ids), place, self.total, condition, units)


@dataclass(frozen=True)
class Bound:
    """-log p(x) <= recon + diffusion + prior, in nats per sequence, [B] each, and the loss to differentiate."""

    recon: Float[Tensor, " B"]
    diffusion: Float[Tensor, " B"]
    prior: Float[Tensor, " B"]
    loss: Float[Tensor, " B"]
    count: Int64[Tensor, " B"]
    """Positions that were counted."""
    kind: Kind
    log_q: Float[Tensor, " B"] | None = None
    """log q(z | x) where the forward process is learned."""

    @property
    def total(self) -> Float[Tensor, " B"]:
        return self.recon + self.diffusion + self.prior
