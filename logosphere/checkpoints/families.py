"""Families of published checkpoints: how each is recognised, described and read.

A family turns config.json and the names and shapes of the tensors into a `Description`, which is all that is needed to
build the model; and it maps the parameters of our network to tensors of the checkpoint. It never opens a weight.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from logosphere.networks.published.config import PublishedConfig


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a tensor in a file, known without reading it."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it: F32, F16, BF16, …; of GGUF files Q4_1, …"""


Tensors = Mapping[str, TensorInfo]
"""The tensors of a checkpoint by their published names."""


@dataclass(frozen=True)
class Description:
    """A checkpoint as a model of the package."""

    family: str
    system: str
    """The system whose process it was trained with, such as mdlm or bd3lm."""
    vocab_size: int
    """Tokens of the model: ids below it are tokens, but for that of the mask."""
    length: int
    network: PublishedConfig
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the system."""
    special: dict[str, int] = field(default_factory=dict)
    """Ids of bos, eos, pad, end of turn …, as the configuration names them."""
    remarks: tuple[str, ...] = ()
    """Sentences for the user: what was assumed and why."""
    starts_with_bos: bool = False
    """Whether every text of the training began with bos, so that a prompt has to."""


@dataclass(frozen=True)
class Piece:
    """Where a parameter of our network comes from."""

    names: tuple[str, ...]
    """Tensors of the checkpoint; several are concatenated along the first axis."""
    transform: Callable[[Tensor], Tensor] | None = None
    """What turns the (concatenated) tensor into the parameter: a transposition, a permutation of rows."""


class Family(ABC):
    """A family of checkpoints."""

    name: str
    models: tuple[str, ...]
    """Published models of the family, for messages."""

    @abstractmethod
    def recognises(self, config: Mapping[str, Any], tensors: Tensors) -> bool:
        """Whether a checkpoint belongs to the family, by its configuration or else by the names of its tensors."""

    @abstractmethod
    def describe(
        self, config: Mapping[str, Any], tensors: Tensors, *, source: str = "", tokenizer_size: int | None = None
    ) -> Description:
        """The model of a checkpoint; raises UserError where configuration and tensors disagree.

        `source` is the name it was asked for by, owner/name of the hub, which settles conventions of known models.
        """

    @abstractmethod
    def pieces(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Piece]:
        """For each parameter of our network the tensors it is read from."""

    def tables(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Tensor]:
        """Tensors of the checkpoint that hold no weights but tables that can be computed (rotary frequencies).

        They are compared with the file and then left out; all others must be read by `pieces`.
        """
        return {}

    def duplicates(self, config: PublishedConfig, tensors: Tensors) -> dict[str, str]:
        """Tensors that the checkpoint holds twice, such as a tied head, and which other each must equal.

        They are compared in the file and then left out.
        """
        return {}

    def ignored(self, config: PublishedConfig, tensors: Tensors) -> frozenset[str]:
        """Tensors of the checkpoint that are known and not needed, such as times at which it was trained."""
        return frozenset()
