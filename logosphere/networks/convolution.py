"""Convolutional backbones: dilated convolutions for DNA, and a U-Net for images.

DNA has local motifs and fixed distances. The layout is that of the denoiser that DDSM, Dirichlet flow matching and
Fisher-Flow share for promoters (Avdeyev et al. 2023): blocks of kernel 9 with dilations 1, 1, 4, 16, 64 in rotation,
each with normalisation and a residual connection, and the time added to every block.

The U-Net (Ronneberger et al. 2015; Ho et al. 2020, DDPM) has blocks of 3 × 3 convolutions at full resolution, at half
of it, and so on while both sides are even and not small; the same number of blocks leads back up, with skip connections
at each resolution. On the smallest grid there is one transformer block. All resolutions have the same width. The
channels of a pixel are separate positions of the sequence and one pixel inside the U-Net, as in D3PM and MD4.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.networks.attention import rotary_table
from logosphere.networks.backbone import (
    Block,
    ConditionTokens,
    TimeEmbedding,
    cross_attend,
    cross_attention_layers,
    input_subtraction_weight,
    run_checkpointed,
    subtract_embedding,
)
from logosphere.networks.config import NetworkConfig
from logosphere.types import Float

KERNEL = 9
DILATIONS = (1, 1, 4, 16, 64)


class ConvolutionBlock(nn.Module):
    """h + conv(silu(norm(h + time)))"""

    def __init__(self, network: NetworkConfig, time_features: int | None, dilation: int):
        super().__init__()
        width = network.width
        self.time = None if time_features is None else nn.Linear(time_features, width)
        self.norm = nn.GroupNorm(1, width)
        self.convolution = nn.Conv1d(width, width, KERNEL, padding=dilation * (KERNEL // 2), dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.activation, self.dropout = nn.SiLU(), nn.Dropout(network.dropout)
        self.memory_norm, self.memory_attention = cross_attention_layers(network)
        nn.init.normal_(self.mix.weight, std=0.02)
        nn.init.zeros_(self.mix.bias)  # type: ignore[arg-type]

    def forward(
        self, h: Float[Tensor, "B M D"], c: Tensor | None, memory: ConditionTokens | None
    ) -> Float[Tensor, "B M D"]:
        timed = h if self.time is None else h + self.time(c)
        across = self.activation(self.convolution(self.norm(timed.transpose(1, 2))))
        h = h + self.dropout(self.mix(across).transpose(1, 2))
        return cross_attend(h, self.memory_norm, self.memory_attention, memory)


class ConvolutionBackbone(nn.Module):
    """Convolution blocks, from embedded inputs to normalised features, in both directions."""

    out: Tensor | None

    recompute: bool = False
    """Whether activations inside a block are computed again in the backward pass instead of stored."""

    def __init__(self, network: NetworkConfig, *, reads_time: bool, subtract_input: bool = False):
        super().__init__()
        self.register_buffer("out", input_subtraction_weight(subtract_input))
        time_features = min(network.width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        dilations = [DILATIONS[i % len(DILATIONS)] for i in range(network.depth)]
        self.blocks = nn.ModuleList(ConvolutionBlock(network, time_features, dilation) for dilation in dilations)
        self.norm = nn.LayerNorm(network.width, bias=False)

    def forward(
        self,
        h: Float[Tensor, "B M D"],
        t: Float[Tensor, " B #M"] | None = None,
        *,
        memory: ConditionTokens | None = None,
    ) -> Float[Tensor, "B M D"]:
        c = None if self.time is None or t is None else self.time(t)
        embedded = h
        for block in self.blocks:
            h = run_checkpointed(block, h, c, memory) if self.recompute else block(h, c, memory)
        return self.norm(subtract_embedding(h, embedded, self.out, memory))


Image = Float[Tensor, "B D H W"]
TimeFeatures = Float[Tensor, "B C #H #W"]
"""Time features of each pixel, or of one time that all pixels share."""


class ImageBlock(nn.Module):
    """h + conv(silu(norm(conv(silu(norm(h))) + time))), then cross-attention to the condition."""

    def __init__(self, network: NetworkConfig, time_features: int | None):
        super().__init__()
        width = network.width
        self.first_norm, self.first = nn.GroupNorm(1, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = None if time_features is None else nn.Conv2d(time_features, width, 1)
        self.second_norm, self.second = nn.GroupNorm(1, width), nn.Conv2d(width, width, 3, padding=1)
        self.dropout = nn.Dropout(network.dropout)
        self.memory_norm, self.memory_attention = cross_attention_layers(network)
        nn.init.normal_(self.second.weight, std=0.1 / math.sqrt(9 * width))
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, h: Image, c: TimeFeatures | None, memory: ConditionTokens | None) -> Image:
        inside = self.first(F.silu(self.first_norm(h)))
        inside = inside if self.time is None else inside + self.time(c)
        h = h + self.second(self.dropout(F.silu(self.second_norm(inside))))
        if memory is None or self.memory_attention is None:
            return h
        return _image(cross_attend(_sequence(h), self.memory_norm, self.memory_attention, memory), h.shape[2:])


class UNetStage(nn.Module):
    """The blocks of one resolution."""

    recompute: bool = False
    """Whether activations inside a block are computed again in the backward pass instead of stored."""

    def __init__(self, network: NetworkConfig, time_features: int | None):
        super().__init__()
        self.blocks = nn.ModuleList(ImageBlock(network, time_features) for _ in range(network.depth))

    def forward(self, h: Image, c: TimeFeatures | None, memory: ConditionTokens | None) -> Image:
        for block in self.blocks:
            h = run_checkpointed(block, h, c, memory) if self.recompute else block(h, c, memory)
        return h


class UNetBackbone(nn.Module):
    """A U-Net, from embedded inputs to normalised features; it accepts whole images only."""

    table: Tensor
    out: Tensor | None

    def __init__(self, network: NetworkConfig, length: int, *, reads_time: bool, subtract_input: bool = False):
        super().__init__()
        self.register_buffer("out", input_subtraction_weight(subtract_input))
        rows, columns, self.channels = (*network.axes, 1)[:3]
        if rows * columns * self.channels != length:
            raise UserError(f"A shape of {network.shape} has {math.prod(network.axes)} positions, not {length}.")
        self.extent, width = (rows, columns), network.width
        time_features = min(width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        self.own_time = None if time_features is None else nn.Linear(time_features, width)
        self.gather = nn.Linear(self.channels * width, width)
        extents = range(network.halvings)
        self.down = nn.ModuleList(UNetStage(network, time_features) for _ in extents)
        self.smaller = nn.ModuleList(nn.Conv2d(width, width, 2, stride=2) for _ in extents)
        self.join = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for _ in extents)
        self.up = nn.ModuleList(UNetStage(network, time_features) for _ in extents)
        smallest = tuple(side >> network.halvings for side in self.extent)
        self.middle = Block(network, time_features)
        table = rotary_table(math.prod(smallest), width // network.heads, smallest)
        self.register_buffer("table", table, persistent=False)
        self.spread = nn.Linear(width, self.channels * width)
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(
        self,
        h: Float[Tensor, "B M D"],
        t: Float[Tensor, " B #M"] | None = None,
        *,
        memory: ConditionTokens | None = None,
    ) -> Float[Tensor, "B M D"]:
        if h.shape[1] != math.prod(self.extent) * self.channels:
            raise UserError(f"A U-Net needs whole images, not {h.shape[1]} pixels of one; use a transformer for parts.")
        c = None if self.time is None or t is None else self.time(t)
        timed = h if self.own_time is None else h + self.own_time(c)
        image = _image(self.gather(timed.flatten(1).unflatten(1, (math.prod(self.extent), -1))), self.extent)
        image = self._run_stages(image, None if c is None else self._pixel_times(c), memory)
        added = self.spread(_sequence(image)).reshape(h.shape)
        return self.norm(subtract_embedding(h + added, h, self.out, memory))

    def _pixel_times(self, c: Float[Tensor, " B #M C"]) -> Float[Tensor, "B C H W"]:
        """Return time features of each pixel, averaged over its channels; of one pixel if all share a time."""
        if c.shape[1] == 1:
            return c[:, 0, :, None, None]
        return _image(c.unflatten(1, (-1, self.channels)).mean(2), self.extent)

    def _run_stages(self, h: Image, c: TimeFeatures | None, memory: ConditionTokens | None) -> Image:
        skips = []
        for stage, smaller in zip(self.down, self.smaller, strict=True):
            h = stage(h, c, memory)
            skips.append((h, c))
            h, c = smaller(h), _halve_times(c)
        times = None if c is None else _sequence(c)
        h = _image(self.middle(_sequence(h), times, self.table, None, False, None, memory), h.shape[2:])
        for join, stage in zip(reversed(self.join), reversed(self.up), strict=True):
            skip, c = skips.pop()
            h = join(torch.cat([F.interpolate(h, scale_factor=2.0, mode="nearest"), skip], 1))
            h = stage(h, c, memory)
        return h


def _halve_times(c: Float[Tensor, "B C H W"] | None) -> Float[Tensor, "B C h w"] | None:
    return c if c is None or c.shape[2] == 1 else F.avg_pool2d(c, 2)


def _sequence(image: Image) -> Float[Tensor, "B M D"]:
    return image.flatten(2).transpose(1, 2)


def _image(h: Float[Tensor, "B M D"], extent: tuple[int, ...]) -> Image:
    return h.transpose(1, 2).unflatten(2, tuple(extent))
