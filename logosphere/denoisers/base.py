"""The contract of every denoiser, network or not."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.shapes import Bool
from logosphere.types import Condition, Logits, Parts, Positions, State, Times


def check_block(length: int, block: int) -> None:
    """Blocks must fill the length."""
    if block < 1 or length % block:
        raise UserError(f"A length of {length} does not split into blocks of {block}; choose a block that divides it.")


class Denoiser(nn.Module, ABC):
    """Predicts p(x_i | z) from noisy states z, times t and the clean states of earlier blocks."""

    block: int
    """Positions that share a clock: the whole length, or less when blocks are generated one after another."""

    reads_time: bool
    """Does the prediction depend on t? If not, it may be kept while z does not change."""

    @abstractmethod
    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        """Logits [B, M, V]; with `where`, only of those positions, packed as [N, V].

        `context` holds clean states; block b may look at those of blocks before b and at no others.
        """

    def parts(self, z: State, t: Times, context: State, where: Positions) -> Parts:
        """The prediction at the wanted positions a few rows at a time; by default all are made at once."""
        out = self(z, t, context, where)
        return lambda rows: out[rows]

    def session(self) -> "Denoiser":
        """A denoiser for one run of the sampler, free to remember what it has seen (a cache); by default itself."""
        return self

    def given(self, condition: Condition) -> "Denoiser":
        """The same denoiser, told a condition; it then belongs to these sequences and no others."""
        raise UserError(
            "This model was built without conditions; build it with labels=…, source=… or signal=… to use one."
        )

    def rows(self, kept: Bool[Tensor, " B"]) -> "Denoiser":
        """The same denoiser for some of the sequences it belongs to; by default it belongs to none in particular."""
        return self

    def conditioned_rows(self) -> int:
        """n where every n-th sequence of a training batch is conditioned on its own estimate; 0 otherwise."""
        return 0

    def conditioning(self, on: bool) -> "Denoiser":
        """The same denoiser, always or never conditioned on its own estimate; one that never is stays as it is."""
        return self


class Wrapper(Denoiser, ABC):
    """A denoiser around a denoiser, of which it asks everything it does not know itself."""

    inner: Denoiser

    @abstractmethod
    def around(self, inner: Denoiser) -> Denoiser:
        """The same wrapper around another denoiser."""

    def session(self) -> Denoiser:
        return self._again(self.inner.session())

    def given(self, condition: Condition) -> Denoiser:
        return self._again(self.inner.given(condition))

    def rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return self._again(self.inner.rows(kept))

    def conditioned_rows(self) -> int:
        return self.inner.conditioned_rows()

    def conditioning(self, on: bool) -> Denoiser:
        return self._again(self.inner.conditioning(on))

    def _again(self, inner: Denoiser) -> Denoiser:
        return self.around(inner).train(self.training)  # modules are born in training
