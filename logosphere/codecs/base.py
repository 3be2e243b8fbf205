"""The interface of a codec, which maps tokens to clean states and back, and that of an autoencoder."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.rng import Noise
from logosphere.types import Batch, Float, State, Tokens

HIDDEN = -1
"""The value of `decode_partial` at a position whose token is not determined yet."""


class Codec(nn.Module, ABC):
    """A map between tokens and states, which may have parameters."""

    local: bool
    """Whether state i depends on token i alone. Only then can positions be fixed while others are sampled."""

    vocab_size: int

    is_discrete: bool = False
    """Whether states are token ids, one of them perhaps the mask, and not vectors."""

    on_sphere: bool = False
    """Whether states are points of the sphere, with one coordinate for each token and the mask last."""

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


class TokenRows(ABC):
    """An input layer with one vector for each token, to which an output head can be tied."""

    @abstractmethod
    def token_rows(self, vocab_size: int) -> Float[Tensor, "V D"]:
        """The vectors of the tokens."""


class AutoencoderLoss(NamedTuple):
    """The loss of one batch of autoencoder training."""

    u: Float[Tensor, "B N d"]
    """Latents, with their gradient."""
    nats: Float[Tensor, "B L"]
    """-log p(x_i | latents) of each token."""
    extra: Float[Tensor, " B"]
    """Regularisation terms, in nats per sequence."""


class Autoencoder(Codec, ABC):
    """Tokens [B, L] <-> N latents of d features, [B, N, d]. A latent belongs to no single token."""

    local = False
    length: int
    latents: int
    features: int

    @property
    def num_classes(self) -> int:
        """A network predicts all features of a latent."""
        return self.features

    @abstractmethod
    def autoencoder_loss(self, batch: Batch, noise: Noise, corrupt: Callable[[State], State]) -> AutoencoderLoss:
        """Encode, corrupt and decode a batch, with gradients; statistics are accumulated until `update_statistics`."""

    @abstractmethod
    def reconstruction_nll(self, z: State, tokens: Tokens) -> Float[Tensor, "B L"]:
        """-log p(x_i | z), or -log p(x_i | z, x_<i) for a causal decoder; they sum to -log p(x | z)."""

    @property
    def decodes_in_parallel(self) -> bool:
        """Whether the decoder predicts all tokens at once, so that `token_logits` exist."""
        return False

    def token_logits(self, z: State) -> Float[Tensor, "B L V"]:
        """Logits of p(x_i | z) of every token, for a decoder that predicts all of them at once."""
        raise UserError("This decoder predicts each token from those before it, so it has no logits of all at once.")

    @abstractmethod
    def normalise(self, z: State) -> State:
        """Latents as the decoder receives them, in training as in sampling."""

    @abstractmethod
    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        """Compute in advance what these rows of a corpus need repeatedly."""

    @abstractmethod
    def accumulators(self) -> list[Tensor]:
        """Sums of the observations of a training step."""

    @abstractmethod
    def update_statistics(self) -> None:
        """Update running statistics by what `autoencoder_loss` has accumulated."""

    def expand_to_states(self, field: Tensor) -> Tensor:
        """The maximum over positions, for all latents: they are free if any token is, and as late as the latest."""
        return field.amax(-1, keepdim=True).expand(*field.shape[:-1], self.latents)
