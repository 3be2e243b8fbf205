"""What the codec of a latent system owes its process: latents of whole sequences, and how they are read back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from logosphere.codecs.base import Codec
from logosphere.noise import Noise
from logosphere.shapes import Float
from logosphere.types import Batch, State, Tokens


class Lesson(NamedTuple):
    """What one batch of stage one came to."""

    u: Float[Tensor, "B N d"]
    """Its latents, with their gradient."""
    nats: Float[Tensor, "B L"]
    """-log p(x_i | latents) of each token."""
    extra: Float[Tensor, " B"]
    """What else is to be minimised, on the scale of nats per sequence."""


class Autoencoder(Codec, ABC):
    """Tokens [B, L] <-> N latents of d features, [B, N, d]. No latent belongs to any one token."""

    local = False
    length: int
    latents: int
    features: int

    @property
    def num_classes(self) -> int:
        """A network predicts all features of a latent."""
        return self.features

    @abstractmethod
    def lesson(self, batch: Batch, noise: Noise, disturb: Callable[[State], State]) -> Lesson:
        """Encode, disturb and decode a batch, with gradients; what it shows of the latents is noted until `settle`."""

    @abstractmethod
    def reconstruction_nll(self, z: State, tokens: Tokens) -> Float[Tensor, "B L"]:
        """-log p(x_i | z), or -log p(x_i | z, x_<i) where the decoder writes from left to right; they sum up to x's."""

    @abstractmethod
    def seen(self, z: State) -> State:
        """Latents as the decoder sees them, in training as in sampling."""

    @abstractmethod
    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        """Get ready to read the rows of a corpus many times."""

    @abstractmethod
    def accumulators(self) -> list[Tensor]:
        """Sums of the observations of a training step."""

    @abstractmethod
    def update_statistics(self) -> None:
        """Take what lessons have shown into account."""

    def expand_to_states(self, field: Tensor) -> Tensor:
        """All latents are as free, and as late, as the freest and latest token."""
        return field.amax(-1, keepdim=True).expand(*field.shape[:-1], self.latents)
