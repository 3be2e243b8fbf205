"""A body of dilated convolutions in place of attention: for DNA, where motifs are local and distances matter.

The layout is that of the denoiser which DDSM, Dirichlet flow matching and Fisher-Flow share for promoters (Avdeyev et
al. 2023): blocks of kernel 9 whose dilations run 1, 1, 4, 16, 64 and start over, each with normalisation and a residual
connection, and the time added to every block.
"""

from torch import Tensor, nn

from logosphere.denoisers.network import Network
from logosphere.denoisers.trunk import Memory, TimeEmbedding, left_out, recall_layers, recalled, remade
from logosphere.shapes import Float

KERNEL = 9
DILATIONS = (1, 1, 4, 16, 64)


class ConvolutionBlock(nn.Module):
    """h + conv(silu(norm(h + time)))"""

    def __init__(self, network: Network, time_features: int | None, dilation: int):
        super().__init__()
        width = network.width
        self.time = None if time_features is None else nn.Linear(time_features, width)
        self.norm = nn.GroupNorm(1, width)
        self.convolution = nn.Conv1d(width, width, KERNEL, padding=dilation * (KERNEL // 2), dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.activation, self.dropout = nn.SiLU(), nn.Dropout(network.dropout)
        self.memory_norm, self.memory_attention = recall_layers(network)
        nn.init.normal_(self.mix.weight, std=0.02)
        nn.init.zeros_(self.mix.bias)  # type: ignore[arg-type]

    def forward(self, h: Float[Tensor, "B M D"], c: Tensor | None, memory: Memory | None) -> Float[Tensor, "B M D"]:
        seen = h if self.time is None else h + self.time(c)
        across = self.activation(self.convolution(self.norm(seen.transpose(1, 2))))
        h = h + self.dropout(self.mix(across).transpose(1, 2))
        return recalled(h, self.memory_norm, self.memory_attention, memory)


class ConvolutionTrunk(nn.Module):
    """The blocks, from embedded inputs to normalised features; it reads in both directions and knows no blocks."""

    out: Tensor | None

    recompute: bool = False
    """Keep no activations inside the blocks, and compute them anew for the gradient?"""

    def __init__(self, network: Network, *, reads_time: bool, own: bool = True):
        super().__init__()
        self.register_buffer("out", left_out(own))
        time_features = min(network.width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        dilations = [DILATIONS[i % len(DILATIONS)] for i in range(network.depth)]
        self.blocks = nn.ModuleList(ConvolutionBlock(network, time_features, dilation) for dilation in dilations)
        self.norm = nn.LayerNorm(network.width, bias=False)

    def forward(
        self, h: Float[Tensor, "B M D"], t: Float[Tensor, " B #M"] | None = None, *, memory: Memory | None = None
    ) -> Float[Tensor, "B M D"]:
        c = None if self.time is None or t is None else self.time(t)
        first = h
        for block in self.blocks:
            h = remade(block, h, c, memory) if self.recompute else block(h, c, memory)
        return self.norm(h if self.out is None else h - self.out * first)
