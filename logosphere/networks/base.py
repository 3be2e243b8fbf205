"""The interface of denoisers: `Denoiser`, and `Wrapper` for denoisers around another denoiser."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.types import Bool, Condition, LogitChunks, Logits, Positions, State, Times


def check_block(length: int, block: int) -> None:
    """Raise UserError unless blocks of this size fill the length."""
    if block < 1 or length % block:
        raise UserError(f"A length of {length} does not split into blocks of {block}; choose a block that divides it.")


class Denoiser(nn.Module, ABC):
    """Predicts p(x_i | z) from noisy states z, times t and the clean states of earlier blocks."""

    block: int
    """Number of positions that share one time: the whole length, or less when blocks are generated in sequence."""

    reads_time: bool
    """Whether the prediction depends on t. If not, it can be cached while z does not change."""

    @abstractmethod
    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        """Return logits [B, M, V]; with `where`, only those of the selected positions, packed as [N, V].

        `context` holds clean states; block b may read those of blocks before b and no others.
        """

    def logit_chunks(self, z: State, t: Times, context: State, where: Positions) -> LogitChunks:
        """Return a function that computes the logits of some of the selected positions.

        By default all logits are computed at once.
        """
        out = self(z, t, context, where)
        return lambda rows: out[rows]

    def begin_sampling(self) -> "Denoiser":
        """Return a denoiser for one run of a sampler, which may keep a cache; by default the denoiser itself."""
        return self

    def with_condition(self, condition: Condition) -> "Denoiser":
        """Return this denoiser with a condition bound to it; it then accepts only the sequences of the condition."""
        raise UserError(
            "This model was built without conditions; build it with labels=…, source=… or signal=… to use one."
        )

    def select_rows(self, kept: Bool[Tensor, " B"]) -> "Denoiser":
        """Return this denoiser for some sequences of its batch; by default it does not depend on the batch."""
        return self

    def self_conditioning_period(self) -> int:
        """Return n if every n-th sequence of a training batch is self-conditioned, and 0 otherwise."""
        return 0

    def with_self_conditioning(self, on: bool) -> "Denoiser":
        """Return this denoiser with self-conditioning always on or always off, if it has any."""
        return self


class Wrapper(Denoiser, ABC):
    """A denoiser around another denoiser; everything that it does not override is delegated to `inner`."""

    inner: Denoiser

    def __init__(self, inner: Denoiser):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time

    @abstractmethod
    def rewrap(self, inner: Denoiser) -> Denoiser:
        """Return the same wrapper around another denoiser."""

    def begin_sampling(self) -> Denoiser:
        return self._rewrap_in_mode(self.inner.begin_sampling())

    def with_condition(self, condition: Condition) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_condition(condition))

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return self._rewrap_in_mode(self.inner.select_rows(kept))

    def self_conditioning_period(self) -> int:
        return self.inner.self_conditioning_period()

    def with_self_conditioning(self, on: bool) -> Denoiser:
        return self._rewrap_in_mode(self.inner.with_self_conditioning(on))

    def _rewrap_in_mode(self, inner: Denoiser) -> Denoiser:
        return self.rewrap(inner).train(self.training)  # new modules start in training mode
