"""GPT-2: learned positions, layer norms with biases, a fused projection to queries, keys and values.

Radford et al. 2019. DiffuGPT has the same layers with full attention.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.attention import KVCache
from logosphere.networks.published.base import PublishedNetwork, next_positions
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.embedding import token_embedding
from logosphere.networks.published.llama import attend_grouped, causal_mask
from logosphere.types import Bool, Float, Int64


class GPT2Block(nn.Module):
    """Attention and a feed-forward network with GELU (tanh approximation), each after a layer norm."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        D = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(D, config.eps), nn.LayerNorm(D, config.eps)
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.inner), nn.Linear(config.inner, D)

    def forward(
        self, x: Float[Tensor, "B M D"], mask: Bool[Tensor, "... M N"] | None, causal: bool, cache: KVCache | None
    ) -> Float[Tensor, "B M D"]:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.extend(k, v)
        x = x + self.o(attend_grouped(q, k, v, mask, causal and q.shape[2] == k.shape[2]))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(PublishedNetwork):
    """The transformer of GPT-2 with full, causal or any other attention; the head is the embedding table or its own."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        self.config = config
        self.embed = token_embedding(config)
        self.position = nn.Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(GPT2Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, config.eps)
        self.out = None if config.tied else nn.Linear(config.width, config.rows, bias=False)

    def features(
        self,
        inputs: Tensor,
        condition: Float[Tensor, "B M"] | None,
        *,
        positions: Int64[Tensor, "... M"] | None = None,
        mask: Bool[Tensor, "... M N"] | None = None,
        causal: bool = False,
        caches: Sequence[KVCache] | None = None,
    ) -> Float[Tensor, "B M D"]:
        positions = next_positions(inputs, caches) if positions is None else positions
        if causal and mask is None:
            M, filled = inputs.shape[1], caches[0].filled if caches else 0
            mask = causal_mask(M, filled + M, inputs.device)
        x = self.embed(inputs) + self.position(positions)
        for i, block in enumerate(self.blocks):
            x = self.run_block(block, x, mask, causal, None if caches is None else caches[i])
        return self.norm(x)

    def head(self, features: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return F.linear(features, *self.head_parameters())

    def head_parameters(self) -> tuple[Tensor, ...]:
        return ((self.embed if self.out is None else self.out).weight,)

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        c = self.config
        return [KVCache(batch, c.heads, length, c.head_width, self.embed.weight) for _ in range(c.depth)]
