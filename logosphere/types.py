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
    ids: Int64[Tensor, "B"]
    place: Int64[Tensor, "B"]
    total: int

    @staticmethod
    def of(tokens: Tokens, known: Positions | None = None, first: int = 0) -> "Batch":
        """A batch of whole sequences, numbered from `first`."""
        place = torch.arange(len(tokens), device=tokens.device)
        if known is None:
            known = torch.zeros_like(tokens, dtype=torch.bool)
        return Batch(tokens, known, torch.ones_like(known), first + place, place, len(tokens))

    @property
    def free(self) -> Positions:
        """Positions to be modelled: neither known nor padding."""
        return self.valid & ~self.known

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> "Batch":
        return self._each(lambda tensor: tensor.to(device))

    def part(self, rows: slice) -> "Batch":
        """Some of the rows; they keep their names and their place in the whole."""
        return self._each(lambda tensor: tensor[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        known, valid, place = change(self.known), change(self.valid), change(self.place)
        return Batch(change(self.tokens), known, valid, change(self.ids), place, self.total)


@dataclass(frozen=True)
class Bound:
    """-log p(x) <= recon + diffusion + prior, in nats per sequence, [B] each, and the loss to differentiate."""

    recon: Float[Tensor, "B"]
    diffusion: Float[Tensor, "B"]
    prior: Float[Tensor, "B"]
    loss: Float[Tensor, "B"]
    count: Int64[Tensor, "B"]
    """Positions that were counted."""
    kind: Kind

    @property
    def total(self) -> Float[Tensor, "B"]:
        return self.recon + self.diffusion + self.prior
