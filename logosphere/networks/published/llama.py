"""Llama-type transformers: RMSNorm, rotary positions, grouped keys and values, SwiGLU (Touvron et al. 2023).

One block is x ← x + o(attention(norm1(x))), then x ← x + down(SiLU(gate(h)) ⊙ up(h)) with h = norm2(x). Qwen2 has
biases for q, k and v; Qwen3 normalises each head of q and k before the rotation.
LLaDA, Dream and SDAR are such networks.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.attention import KVCache
from logosphere.networks.published.base import PublishedNetwork, next_positions
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.embedding import token_embedding
from logosphere.types import Bool, Float, Int64


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) ⊙ weight over the last axis, computed in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def rotary_frequencies(head_width: int, base: float) -> Float[Tensor, " p"]:
    """base^(-2i/h) of each pair of features, in float32 (Su et al. 2021)."""
    return 1.0 / base ** (torch.arange(0, head_width, 2, dtype=torch.int64).float() / head_width)


def rotary_tables(
    positions: Int64[Tensor, "... M"], head_width: int, base: float
) -> tuple[Float[Tensor, "... M h"], Float[Tensor, "... M h"]]:
    """cos and sin of position × frequency in float32; bfloat16 would be wrong by up to 0.5 rad at position 1,024."""
    angles = positions[..., None].float() * rotary_frequencies(head_width, base).to(positions.device)
    angles = torch.cat([angles, angles], -1)
    if positions.dim() == 2:  # of each sequence; all heads share them
        angles = angles[:, None]
    return angles.cos(), angles.sin()


def rotate_halves(
    x: Float[Tensor, "B H M h"], tables: tuple[Float[Tensor, "... M h"], Float[Tensor, "... M h"]]
) -> Float[Tensor, "B H M h"]:
    """Rotate the pairs (i, i + h/2) of each head by the angles of their position, in float32."""
    left, right = x.float().chunk(2, -1)
    return (x * tables[0] + torch.cat([-right, left], -1) * tables[1]).to(x.dtype)


def attend_grouped(
    q: Float[Tensor, "B H M h"],
    k: Float[Tensor, "B K N h"],
    v: Float[Tensor, "B K N h"],
    mask: Bool[Tensor, "... M N"] | None,
    causal: bool,
) -> Float[Tensor, "B M D"]:
    """softmax(q kᵀ / √h) v, where each head of keys and values serves H/K heads of queries (Ainslie et al. 2023)."""
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return mixed.transpose(1, 2).flatten(2)


def causal_mask(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "M N"] | None:
    """Which keys each of the last `queries` positions sees; None where `is_causal` says it or nothing is hidden."""
    if queries in (1, keys):
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)


class LlamaBlock(nn.Module):
    """Attention and a gated feed-forward network, each after an RMSNorm and added to its input."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        D, h, bias = config.width, config.head_width, config.qkv_bias
        self.head_width = h
        self.norm1, self.norm2 = RMSNorm(D, config.eps), RMSNorm(D, config.eps)
        self.q = nn.Linear(D, config.heads * h, bias=bias)
        self.k = nn.Linear(D, config.kv_heads * h, bias=bias)
        self.v = nn.Linear(D, config.kv_heads * h, bias=bias)
        self.q_norm = RMSNorm(h, config.eps) if config.qk_norm else None
        self.k_norm = RMSNorm(h, config.eps) if config.qk_norm else None
        self.o = nn.Linear(config.heads * h, D, bias=False)
        self.gate = nn.Linear(D, config.inner, bias=False)
        self.up = nn.Linear(D, config.inner, bias=False)
        self.down = nn.Linear(config.inner, D, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B M D"],
        tables: tuple[Tensor, Tensor],
        mask: Bool[Tensor, "... M N"] | None,
        causal: bool,
        cache: KVCache | None,
    ) -> Float[Tensor, "B M D"]:
        h = self.norm1(x)
        q, k, v = (linear(h).unflatten(-1, (-1, self.head_width)) for linear in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = rotate_halves(q.transpose(1, 2), tables), rotate_halves(k.transpose(1, 2), tables), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v)
        x = x + self.o(attend_grouped(q, k, v, mask, causal and q.shape[2] == k.shape[2]))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(PublishedNetwork):
    """A Llama-type transformer with full, causal or any other attention."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        self.config = config
        self.embed = token_embedding(config)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.eps)
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
        tables = rotary_tables(positions, self.config.head_width, self.config.rotary_base)
        x = self.embed(inputs)
        for i, block in enumerate(self.blocks):
            x = self.run_block(block, x, tables, mask, causal, None if caches is None else caches[i])
        return self.norm(x)

    def head(self, features: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return F.linear(features, *self.head_parameters())

    def head_parameters(self) -> tuple[Tensor, ...]:
        return ((self.embed if self.out is None else self.out).weight,)

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        c = self.config
        return [KVCache(batch, c.kv_heads, length, c.head_width, self.embed.weight) for _ in range(c.depth)]
