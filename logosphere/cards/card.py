"""The card of a system: what it is, and which function builds it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from logosphere.types import Kind


@dataclass(frozen=True)
class Card:
    """What a system is and what kind of number it reports."""

    name: str
    title: str
    paper: str
    family: Literal["autoregressive", "discrete", "continuous", "latent"]
    kind: "Kind"
    difference: str
    """What sets it apart from its neighbours, in one line."""
    builder: str
    """module:function; called with vocab_size, length and the system's own options."""
    sampler: str = "ancestral"
    """The sampler it is written with unless another is asked for."""
