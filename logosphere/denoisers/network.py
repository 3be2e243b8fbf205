"""The size of a network, apart from the network: recipes and the command line read it without loading torch."""

from dataclasses import dataclass

from logosphere.errors import UserError


@dataclass(frozen=True)
class Network:
    """The size of a transformer."""

    width: int = 128
    """Features per position."""
    depth: int = 4
    """Number of blocks."""
    heads: int = 4
    """Attention heads; must divide the width into even parts."""
    dropout: float = 0.0
    """Share of activations dropped while training."""

    def __post_init__(self) -> None:
        if min(self.width, self.depth, self.heads) < 1:
            raise UserError("The width, depth and number of heads of a network must be at least 1.")
        if self.width % (2 * self.heads):
            raise UserError(f"A width of {self.width} does not split into {self.heads} heads of even size.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, not {self.dropout}.")
