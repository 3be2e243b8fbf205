"""The contract of every denoiser, network or not."""

from abc import ABC, abstractmethod

from torch import nn

from logosphere.errors import UserError
from logosphere.types import Logits, Positions, State, Times


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

    def session(self) -> "Denoiser":
        """A denoiser for one run of the sampler, free to remember what it has seen (a cache); by default itself."""
        return self
