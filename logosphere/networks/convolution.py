"""A backbone of dilated convolutions, for DNA, where motifs are local and distances matter.

The layout is that of the denoiser that DDSM, Dirichlet flow matching and Fisher-Flow share for promoters (Avdeyev et
al. 2023): blocks of kernel 9 with dilations 1, 1, 4, 16, 64 in rotation, each with normalisation and a residual
connection, and the time added to every block.
"""

from torch import Tensor, nn

from logosphere.networks.backbone import (
    ConditionTokens,
    TimeEmbedding,
    cross_attend,
    cross_attention_layers,
    input_subtraction_weight,
    run_checkpointed,
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
        return self.norm(h if self.out is None else h - self.out * embedded)
