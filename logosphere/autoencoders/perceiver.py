"""The Perceiver (Jaegle et al. 2021): a fixed number of queries look at a memory of any length.

The same module compresses L states into N latents and turns N latents into L states again. A query begins at what
stands in its own part of the memory: queries that know nothing must first learn where to look, and stay at the unigram
entropy for hundreds of steps.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.backbone import Backbone, ConditionTokens
from logosphere.networks.config import NetworkConfig
from logosphere.types import Bool, Float


class OwnPart(nn.Module):
    """What stands in each place's own part of a memory that is cut evenly over `count` places.

    Several vectors of the memory become one place, or one vector several places, each by a linear map of its own.
    """

    def __init__(self, *, memory: int, memory_width: int, count: int, width: int):
        super().__init__()
        self.count, self.each, self.shares = count, -(-memory // count), -(-count // memory)
        self.map = nn.Linear(self.each * memory_width, self.shares * width)

    def forward(self, memory: Float[Tensor, "B S d"]) -> Float[Tensor, "B N D"]:
        gaps = -memory.shape[1] % self.each
        parts = F.pad(memory, (0, 0, 0, gaps)).unflatten(1, (-1, self.each)).flatten(2)
        own = self.map(parts).unflatten(2, (self.shares, -1)).flatten(1, 2)
        return F.pad(own, (0, 0, 0, max(0, self.count - own.shape[1])))[:, : self.count]


class Perceiver(nn.Module):
    """`count` queries read `memory` vectors, layer by layer, and talk to each other in between.

    They do so in the backbone of all networks, which attends to a memory as to a source text.
    """

    def __init__(self, network: NetworkConfig, *, memory: int, memory_width: int, count: int):
        super().__init__()
        width = network.width
        self.enter = nn.Linear(memory_width, width)
        self.begin = OwnPart(memory=memory, memory_width=memory_width, count=count, width=width)
        # Attention to a memory knows no order; without places a query could ask for contents only.
        self.places = nn.Parameter(0.2 * torch.randn(memory, width))
        self.queries = nn.Parameter(0.2 * torch.randn(count, width))
        looking = replace(network, labels=0, signal=0, source=memory, source_length=memory)
        self.trunk = Backbone(looking, count, reads_time=False)

    def forward(
        self, memory: Float[Tensor, "B S d"], shown: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B N D"]:
        """What the queries found; what is not `shown` of the memory they do not see."""
        if shown is None:
            shown = torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device)
        memory = memory * shown[..., None]
        seen = ConditionTokens(self.enter(memory) + self.places, shown, None)
        return self.trunk(self.begin(memory) + self.queries, memory=seen)
