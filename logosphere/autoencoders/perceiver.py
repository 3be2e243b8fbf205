"""The Perceiver (Jaegle et al. 2021): a fixed number of queries look at a memory of any length.

The same module compresses L states into N latents and turns N latents into L states again. A query begins at what
stands in its own part of the memory, cut evenly: queries that know nothing must first learn where to look, and stay at
the unigram entropy for hundreds of steps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.denoisers.attention import CrossAttention, rotary_table
from logosphere.denoisers.network import Network
from logosphere.denoisers.transformer import Block
from logosphere.shapes import Bool, Float


class Perceiver(nn.Module):
    """`count` queries read `memory` vectors, layer by layer, and talk to each other in between."""

    table: Tensor

    def __init__(self, network: Network, *, memory: int, memory_width: int, count: int):
        super().__init__()
        width = network.width
        self.count, self.each, self.shares = count, -(-memory // count), -(-count // memory)
        self.enter = nn.Linear(memory_width, width)
        self.begin = nn.Linear(self.each * memory_width, self.shares * width)
        # Attention to a memory knows no order; without places a query could ask for contents only.
        self.places = nn.Parameter(0.2 * torch.randn(memory, width))
        self.queries = nn.Parameter(0.2 * torch.randn(count, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(network.depth))
        self.looks = nn.ModuleList(CrossAttention(width, network.heads) for _ in range(network.depth))
        self.blocks = nn.ModuleList(Block(network, None) for _ in range(network.depth))
        self.register_buffer("table", rotary_table(count, width // network.heads), persistent=False)

    def forward(
        self, memory: Float[Tensor, "B S d"], shown: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """What the queries found; what is not `shown` of the memory they do not see."""
        if shown is None:
            shown = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        memory = memory * shown[..., None]
        seen = self.enter(memory) + self.places
        h = self._own(memory) + self.queries
        for norm, look, block in zip(self.norms, self.looks, self.blocks, strict=True):
            h = h + look(norm(h), seen, shown)
            h = block(h, None, self.table, None, False, None)
        return h

    def _own(self, memory: Float[Tensor, "B S d"]) -> Float[Tensor, "B N D"]:
        """Each query's part of the memory: several vectors for one query, or one vector for several queries."""
        gaps = -memory.shape[1] % self.each
        parts = F.pad(memory, (0, 0, 0, gaps)).unflatten(1, (-1, self.each)).flatten(2)
        own = self.begin(parts).unflatten(2, (self.shares, -1)).flatten(1, 2)
        return F.pad(own, (0, 0, 0, max(0, self.count - own.shape[1])))[:, : self.count]
