"""The interface of the autoencoder of a latent system: latents of whole sequences, decoded to tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.rng import Noise
from logosphere.types import Batch, Float, State, Tokens


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
