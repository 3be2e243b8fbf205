"""Size and inputs of a network as plain settings, which can be read without importing torch."""

import re
from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.networks.registry import BUILT_IN, NETWORKS, is_registered

MAX_WIDTH, MAX_DEPTH, MAX_VOCABULARY = 1 << 17, 1 << 10, 1 << 24
"""Larger sizes come from typing errors or damaged files, and such a network could not be built."""

MAX_NEIGHBOURS = 8
"""Each neighbour costs a matrix; attention covers larger distances."""

PRECISIONS = ("auto", "float32", "bfloat16")

MIN_SIDE = 4
"""Shortest side, in pixels, of the smallest grid of a U-Net."""


@dataclass(frozen=True)
class NetworkConfig:
    """The size of a network, its backbone and the conditions it accepts."""

    width: int = 128
    """Features per position."""
    depth: int = 4
    """Number of blocks; of a U-Net, of those at each resolution, on the way down and again on the way up."""
    heads: int = 4
    """Attention heads; must divide the width into even parts."""
    dropout: float = 0.0
    """Fraction of activations dropped in training."""
    neighbours: int = 1
    """Positions on each side that a bidirectional transformer mixes directly, in addition to attention; 0 for none."""
    decoder_depth: int | None = None
    """Block diffusion: the number of blocks that read noisy states; the others read the clean text, once. None: all
    blocks read both."""
    hollow: bool = False
    """Block diffusion with decoder_depth=1: predict every position from the other ones alone (Sun et al. 2023); the
    process adds the likelihood of the position's own state."""
    tied: bool | None = None
    """Output head with the input vectors of the tokens as weights; None: where a system's default preset has it."""
    body: str = "transformer"
    """Backbone: transformer, convolution (dilated, for DNA), unet (for images), ddit (that of published discrete
    diffusion models), or the name of a registered network."""
    shape: str = ""
    """Extents of images, such as 32x32x3: positions then have a row, a column and a channel."""
    labels: int = 0
    """Number of labels a sequence may be conditioned on; 0 for none."""
    source: int = 0
    """Size of the vocabulary of source texts; 0 for none."""
    source_length: int = 64
    """Longest source text."""
    signal: int = 0
    """Numbers given at every position; 0 for none."""

    def __post_init__(self) -> None:
        if min(self.width, self.depth, self.heads) < 1:
            raise UserError("The width, depth and number of heads of a network must be at least 1.")
        sizes = (self.labels, self.source, self.source_length)
        if self.width > MAX_WIDTH or self.depth > MAX_DEPTH or max(sizes) > MAX_VOCABULARY:
            raise UserError(
                f"A network has at most {MAX_WIDTH:,} features, {MAX_DEPTH:,} blocks and {MAX_VOCABULARY:,} labels."
            )
        if self.width % (2 * self.heads):
            raise UserError(f"A width of {self.width} does not split into {self.heads} heads of even size.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be at least 0 and below 1, not {self.dropout}.")
        if self.decoder_depth is not None and not 1 <= self.decoder_depth < self.depth:
            raise UserError(
                f"decoder_depth must be at least 1 and below the depth of {self.depth}, not {self.decoder_depth}: some "
                "blocks read noisy states and some the clean text."
            )
        if self.hollow and self.decoder_depth != 1:
            raise UserError(
                f"hollow=True needs decoder_depth=1, not {self.decoder_depth}: the state of a position would return to "
                "it through the others in a second block."
            )
        if not 0 <= self.neighbours <= MAX_NEIGHBOURS:
            raise UserError(f"neighbours must be from 0 to {MAX_NEIGHBOURS}, not {self.neighbours}.")
        if self.body not in BUILT_IN and not is_registered(self.body):
            others = f", or a registered network ({', '.join(NETWORKS)})" if NETWORKS else ""
            raise UserError(
                f"body must be transformer, convolution or unet{others}, not '{self.body}'; import the module that "
                "registers a network of your own first."
            )
        if self.shape and not re.fullmatch(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){0,3}", self.shape):
            raise UserError(f"shape must have the form 32x32x3, not '{self.shape}'.")
        if len(self.axes) > self.width // self.heads // 2:
            raise UserError(f"Heads of {self.width // self.heads} features are too small for {len(self.axes)} axes.")
        if min(self.labels, self.source, self.signal) < 0 or self.source_length < 1:
            raise UserError("The numbers of labels, source tokens and signals must not be negative.")
        if self.body == "unet":
            self._check_image()

    def _check_image(self) -> None:
        if len(self.axes) not in (2, 3):
            raise UserError("body=unet requires the extents of images, such as shape=32x32 or shape=32x32x3.")
        if not self.halvings:
            raise UserError(
                f"A U-Net halves the sides of an image, and those of {self.shape} are odd or below {2 * MIN_SIDE}; "
                "use a transformer."
            )

    @property
    def axes(self) -> tuple[int, ...]:
        """The extents in `shape`; empty for a plain sequence."""
        return tuple(map(int, self.shape.split("x"))) if self.shape else ()

    @property
    def halvings(self) -> int:
        """How many times a U-Net halves both sides of an image: while they are even and at least 2 MIN_SIDE."""
        (rows, columns), count = self.axes[:2], 0
        while not (rows % 2 or columns % 2 or min(rows, columns) < 2 * MIN_SIDE):
            rows, columns, count = rows // 2, columns // 2, count + 1
        return count

    @property
    def conditional(self) -> bool:
        """Whether the network accepts any condition."""
        return max(self.labels, self.source, self.signal) > 0
