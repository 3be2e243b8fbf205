"""What a codec owes the rest: encode, decode, and an honest word on whether its states are local."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from logosphere.types import State, Tokens

HIDDEN = -1
"""What `read` shows for a position that does not spell a token yet."""


class Codec(nn.Module, ABC):
    """Tokens <-> states. May have parameters."""

    local: bool
    """Is state i a function of token i alone? Only then can positions be held fixed while others are generated."""

    vocab_size: int

    is_discrete: bool = False
    """Whether states are token ids, one of them perhaps the mask, and not vectors."""

    on_sphere: bool = False
    """Whether states are points of the sphere, with one coordinate for each token and the mask last."""

    @property
    def choices(self) -> int:
        """What a network predicts at a state: one of the tokens, or one of so many digits."""
        return self.vocab_size

    @abstractmethod
    def encode(self, tokens: Tokens) -> State:
        """The clean states u of tokens x."""

    @abstractmethod
    def decode(self, z: State) -> Tokens:
        """The tokens that clean states spell."""

    @abstractmethod
    def read(self, z: State) -> Tokens:
        """The tokens that noisy states spell so far, HIDDEN where they spell none; for showing."""

    @abstractmethod
    def spread(self, field: Tensor) -> Tensor:
        """A field over tokens [..., L] as a field over states [..., M]."""

    @abstractmethod
    def stem(self, width: int) -> nn.Module:
        """The first layer of a network that reads these states: [B, M, …] -> [B, M, width]."""
