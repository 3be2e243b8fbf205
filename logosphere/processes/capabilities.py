"""Optional capabilities of a process, each an abstract class of its own.

The trainer, the sampler and the bound test for a capability and never for a concrete process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor, nn

from logosphere.rng import Noise
from logosphere.types import Batch, Float, Logits, Positions, State, Times, Tokens

Mixture = TypeVar("Mixture", bound="MixtureOfPaths")
Paths = TypeVar("Paths", bound="SeveralPaths")
Cut = TypeVar("Cut", bound="PublishedTimes")


class OnlineStatistics(ABC):
    """Statistics that are estimated during training outside of gradient descent, such as a learned time sampler."""

    @abstractmethod
    def accumulators(self) -> Sequence[Tensor]:
        """Sums of the observations of this step. Those of several processes are added before they are used."""

    @abstractmethod
    def update_statistics(self, progress: float = 0.0) -> None:
        """Use the accumulated observations. Called after every training step; `progress` is the completed fraction."""


class TrainingPhases(ABC):
    """A loss or a head that changes during training."""

    @abstractmethod
    def on_step_start(self, progress: float) -> None:
        """Called before every training step with the completed fraction of the training."""


class LearnedCodec(ABC):
    """A codec or noise schedule with parameters that are trained with the network."""

    @abstractmethod
    def auxiliary_loss(
        self, batch: Batch, u: State, t: Times, nats: Float[Tensor, " B"], noise: Noise
    ) -> Float[Tensor, " B"]:
        """Terms of the loss in addition to `Process.loss`, for sequences with this diffusion term."""

    @abstractmethod
    def schedule_parameters(self) -> list[nn.Parameter]:
        """Parameters of a learned noise schedule, which may have a learning rate of their own."""

    @abstractmethod
    def held_parameters(self) -> list[nn.Parameter]:
        """Parameters that self-conditioned sequences do not train."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Values to log during training."""


class LearnedForward(ABC):
    """A forward process with parameters. Training draws each sequence twice for the score-function gradient."""

    @abstractmethod
    def log_q(self, u: State, z: State, t: Times, free: Positions) -> Float[Tensor, " B"]:
        """log q(z_t | u) of each sequence."""


class AutoencoderStage(ABC):
    """A codec that is trained before the path."""

    stage_one: float
    """The fraction of the training that is its own."""
    joint: bool
    """Whether the codec is trained together with the path, during all of the training."""
    progress: Tensor
    """The completed fraction of the training."""
    recon_ema: Tensor
    """The running mean of the reconstruction loss, and the number of its updates."""

    @property
    @abstractmethod
    def denoiser_active(self) -> bool:
        """Whether the network is evaluated. It is the same in all processes of a group, which may share its weights."""

    @abstractmethod
    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        """Called before training on a fixed set of rows: may cache their encoder states."""


class MixtureOfPaths(ABC):
    """A mixture of processes of which one is drawn for each sequence with equal probability."""

    num_components: int

    @abstractmethod
    def select_component(self: Mixture, component: int) -> Mixture:
        """The process of one component, which shares all parameters and buffers with the mixture."""


class SeveralPaths(ABC):
    """A process with several paths between the same data and noise, each with a bound and samples of its own."""

    path_names: tuple[str, ...]
    """The names that `with_path` accepts; `Process.path_name` is the current one."""
    trained_paths: tuple[str, ...]
    """The paths whose states training shows to the network."""

    @abstractmethod
    def with_path(self: Paths, name: str) -> Paths:
        """The process with bounds and samples along this path, which shares all parameters and buffers."""


class PublishedTimes(ABC):
    """A process whose papers report the mean of its rate over part of the time, which is no bound."""

    @abstractmethod
    def with_published_times(self: Cut, first: float) -> Cut:
        """The process whose likelihoods leave out t < `first`, which shares all parameters and buffers."""


class DiscreteTransitions(ABC):
    """A process whose reverse step is a distribution over finitely many states."""

    @abstractmethod
    def log_transition(self, out: Logits, z: State, t: Tensor, s: Tensor) -> Float[Tensor, "... K"]:
        """log p(z_s = k | z_t) at the positions of `out`, for every state k."""


class Unmasking(ABC):
    """A process with states in which each position is masked or clean, so that a sampler may choose the order."""

    times_follow_masks: bool = False
    """Whether `unmasking_times` are 1 at masked positions and 0 at the others."""

    @property
    def begins_masked(self) -> bool:
        """Whether samples begin with masks at all positions."""
        return True

    @property
    @abstractmethod
    def unmasks_tokens(self) -> bool:
        """Whether whole tokens are unmasked and never change afterwards; it may depend on the options."""

    @abstractmethod
    def masked_fraction(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The expected fraction of masked positions at time t."""

    def unmasking_times(self, t: Times, masked: Positions) -> Times:
        """The times at which the network is evaluated when these positions are masked and all others clean."""
        return t


class PositionTimes(ABC):
    """Positions whose times differ at one time of the sampler's grid."""

    @abstractmethod
    def position_times(self, rows: Float[Tensor, "S M"], free: Positions, noise: Noise) -> Float[Tensor, " S #B M"]:
        """The time of each position for each row of the sampler's time grid."""
