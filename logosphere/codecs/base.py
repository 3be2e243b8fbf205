"""The interface of codecs: tokens to clean states and back, and whether states are local to tokens."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from logosphere.types import State, Tokens

HIDDEN = -1
"""The value of `decode_partial` at a position whose token is not determined yet."""


class Codec(nn.Module, ABC):
    """A map between tokens and states, which may have parameters."""

    local: bool
    """Whether state i depends on token i alone. Only then can positions be fixed while others are sampled."""

    vocab_size: int

    @property
    def num_classes(self) -> int:
        """The number of classes that a network predicts at a state: all tokens, or the values of a digit."""
        return self.vocab_size

    @abstractmethod
    def encode(self, tokens: Tokens) -> State:
        """The clean states u of tokens x."""

    @abstractmethod
    def decode(self, z: State) -> Tokens:
        """The tokens of clean states."""

    @abstractmethod
    def decode_partial(self, z: State) -> Tokens:
        """The tokens that noisy states determine so far, HIDDEN elsewhere; for display."""

    @abstractmethod
    def expand_to_states(self, field: Tensor) -> Tensor:
        """Expand a field over tokens [..., L] to a field over states [..., M]."""

    @abstractmethod
    def build_stem(self, width: int) -> nn.Module:
        """Build the input layer of a network for these states: [B, M, …] -> [B, M, width]."""
