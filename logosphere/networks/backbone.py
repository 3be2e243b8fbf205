"""The transformer backbone of all networks, in the manner of DiT (Peebles and Xie 2022), and its parts.

Attention has rotary positions and a key-value cache. Its masks are full (all positions), causal (position i sees
positions up to i), and block-causal (noisy blocks see themselves and the clean blocks before them,
`block_causal_mask`).
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.networks.fused import (
    PLAIN_LIMIT,
    attend_by_operations,
    attend_plainly,
    computes_in_bfloat16,
    feed_forward,
    is_eager_cpu,
    rotate_queries_and_keys,
    square_relu,
)
from logosphere.types import Bool, Float, Int64

ROTARY_BASE = 10_000.0


def rotary_table(length: int, head_width: int, axes: tuple[int, ...] = ()) -> Float[Tensor, "2 L h"]:
    """Return cos and sin of coordinate × frequency (Su et al. 2021, RoPE).

    A position of a sequence has one coordinate. A position of an image has one for each axis, and the rotation planes
    of a head alternate between the axes (Heo et al. 2024, axial RoPE), so that a head can attend along any axis.
    """
    if axes and math.prod(axes) != length:
        raise UserError(f"A shape of {'x'.join(map(str, axes))} has {math.prod(axes)} positions, not {length}.")
    coordinates = torch.cartesian_prod(*map(torch.arange, axes or (length,))).view(length, -1).float()
    frequencies, axis = plane_frequencies(head_width, max(1, len(axes)))
    angles = coordinates[:, axis] * frequencies
    angles = torch.cat([angles, angles], dim=1)
    return torch.stack([angles.cos(), angles.sin()])


def plane_frequencies(head_width: int, axes: int) -> tuple[Float[Tensor, " n"], Int64[Tensor, " n"]]:
    """Return the frequency of each rotation plane, base^(-i/n) with i counted within its axis, and its axis."""
    planes = torch.arange(head_width // 2)
    count = (head_width // 2 + axes - 1 - planes % axes) // axes  # planes of the same axis
    return ROTARY_BASE ** (-(planes // axes).float() / count), planes % axes


def rotate(x: Float[Tensor, "B H M h"], table: Float[Tensor, "2 M h"]) -> Float[Tensor, "B H M h"]:
    """Rotate each pair of features by the angle of its position."""
    left, right = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat([-right, left], dim=-1) * table[1]


def block_causal_mask(length: int, block: int) -> Bool[Tensor, "N N"]:
    """Return whether query q sees key k, over the 2L positions [noisy ; clean] of block diffusion (BD3-LM).

    Noisy block b sees itself and the clean blocks before b; clean block b sees clean blocks up to b (Arriola et al.
    2025).
    """
    b = torch.arange(length) // block
    same, before = b[:, None] == b, b[:, None] > b
    return torch.cat([torch.cat([same, before], 1), torch.cat([torch.zeros_like(same), same | before], 1)], 0)


class KVCache:
    """Keys and values of the positions computed so far, for one attention layer."""

    def __init__(self, batch: int, heads: int, length: int, head_width: int, like: Tensor):
        self.keys = like.new_empty(batch, heads, length, head_width)
        self.values = like.new_empty(batch, heads, length, head_width)
        self.filled = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of further positions, and return those of all positions so far."""
        end = self.filled + keys.shape[2]
        self.keys[:, :, self.filled : end], self.values[:, :, self.filled : end] = keys, values
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]


def attend(
    q: Float[Tensor, "B H M h"],
    k: Float[Tensor, "B H N h"],
    v: Float[Tensor, "B H N h"],
    mask: Bool[Tensor, "..."] | None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Float[Tensor, "B H M h"]:
    """Return softmax(q kᵀ / √h) v, by torch's fused kernel (Vaswani et al. 2017).

    On a CPU always in float32: the backward pass in bfloat16 takes three times as long there.
    """
    if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return attend(q.float(), k.float(), v.float(), mask, dropout, causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)


class Attention(nn.Module):
    """Multi-head self-attention.

    Queries and keys have a bias, which is initialised such that each head attends to one neighbour. Without it a head
    can select a position only by content, and a network of noisy inputs takes hundreds of steps to learn positions.
    """

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)

    @torch.no_grad()
    def init_to_neighbours(self, *, ahead: bool, axes: int = 1) -> None:
        """Initialise the biases so that each head attends to one relative position.

        The offsets of successive heads are 1, 2, 3 … back; with `ahead`, 1 back, 1 ahead, 2 back, 2 ahead …; the axes
        of an image alternate. Biases q = r (1, 0) and k = r (cos ωδ, sin ωδ) in each plane add r² Σ_ω cos(ω(i - j - δ))
        to the attention logits, largest at j = i - δ. r = 3 concentrates a head there; r = 1 learns much more slowly.
        """
        rank, head_axis = torch.arange(self.heads) // axes, torch.arange(self.heads) % axes
        offset = (1 + rank // 2) * (1 - 2 * (rank % 2)) if ahead else 1 + rank
        width = self.qkv.in_features // self.heads
        frequencies, axis = plane_frequencies(width, axes)
        angles = offset[:, None] * frequencies * (axis == head_axis[:, None])
        q, k, _ = self.qkv.bias.zero_().view(3, self.heads, width)
        q[:, : width // 2] = 3
        k.copy_(3 * torch.cat([angles.cos(), angles.sin()], 1))

    def forward(
        self,
        h: Float[Tensor, "B M D"],
        table: Float[Tensor, "2 M h"],
        mask: Bool[Tensor, "M N"] | None,
        causal: bool,
        cache: KVCache | None,
    ) -> Float[Tensor, "B M D"]:
        B, M, D = h.shape
        qkv, dropout = self.qkv(h), self.dropout if self.training else 0.0
        plain = (
            h.device.type == "cpu" and computes_in_bfloat16() and M <= PLAIN_LIMIT and cache is None and dropout == 0
        )
        seen = torch.ones(M, M, dtype=torch.bool, device=h.device).tril_() if plain and causal else mask
        if is_eager_cpu(h):
            if plain:
                return self.out(attend_plainly(qkv, table, self.heads, seen))
            q, k, v = rotate_queries_and_keys(qkv, table, self.heads)
        else:
            q, k, v = qkv.view(B, M, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # [B, H, M, h] each
            q, k = rotate(q, table), rotate(k, table)
            if plain:
                return self.out(attend_by_operations(q, k, v, seen).transpose(1, 2).reshape(B, M, D))
        if cache is not None:
            k, v = cache.extend(k, v)
        mixed = attend(q, k, v, mask, dropout, causal)
        return self.out(mixed.transpose(1, 2).reshape(B, M, D))


class CrossAttention(nn.Module):
    """Multi-head attention of positions to a memory: vectors of another sequence."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self, h: Float[Tensor, "B M D"], memory: Float[Tensor, "B S D"], valid: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B M D"]:
        B, M, D = h.shape
        q = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key_value(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = attend(q, k, v, valid[:, None, None])
        return self.out(mixed.transpose(1, 2).reshape(B, M, D))


class ConditionTokens(NamedTuple):
    """An encoded condition: the memory of cross-attention, and features that are added at each position."""

    features: Float[Tensor, "B S D"]
    valid: Bool[Tensor, "B S"]
    signal: Float[Tensor, "B L D"] | None
    """Added to the input embeddings at every position."""


def cross_attention_layers(network: NetworkConfig) -> tuple[nn.LayerNorm | None, CrossAttention | None]:
    """Return the layers by which a block attends to a condition; None if the network accepts no condition."""
    if not network.conditional:
        return None, None
    return nn.LayerNorm(network.width, bias=False), CrossAttention(network.width, network.heads)


def cross_attend(
    h: Tensor, norm: nn.LayerNorm | None, attention: CrossAttention | None, memory: ConditionTokens | None
) -> Tensor:
    """Add the output of cross-attention to the condition tokens, if there are any."""
    if norm is None or attention is None or memory is None:
        return h
    return h + attention(norm(h), memory.features, memory.valid)


class TimeEmbedding(nn.Module):
    """Sines and cosines of t at wavelengths from 1/5 to 200, through a small network; shorter waves would be noise."""

    frequencies: Tensor

    def __init__(self, features: int, waves: int = 128):
        super().__init__()
        exponents = torch.arange(waves // 2) / (waves // 2)
        self.register_buffer("frequencies", 5 * 1000.0**-exponents, persistent=False)
        self.layers = nn.Sequential(nn.Linear(waves, features), nn.SiLU(), nn.Linear(features, features), nn.SiLU())

    def forward(self, t: Float[Tensor, "B M"]) -> Float[Tensor, "B M C"]:
        angles = 2 * math.pi * t[..., None] * self.frequencies
        features: Tensor = self.layers(torch.cat([angles.cos(), angles.sin()], -1))
        return features / math.sqrt(features.shape[-1])  # else one step of Adam moves all modulations by lr · features


class LocalMixing(nn.Module):
    """Linear mixing of the `reach` positions on both sides, along each axis; zeros beyond the ends.

        h_i ← h_i + Σ_{0 < |δ| ≤ r} A_δ h_{i+δ}

    A left-to-right model has the token before each position in its residual stream from the first step, and learns
    bigrams by its head alone. A masked position has no information of its own: that of its neighbours must come through
    attention heads, each of which carries a part of the width, and this takes hundreds of steps to learn
    (docs/results.md). After the token shift of RWKV (Peng et al. 2023), to both sides and with full matrices.
    """

    def __init__(self, width: int, reach: int, axes: tuple[int, ...] = ()):
        super().__init__()
        self.reach, self.axes = reach, axes
        self.mix = nn.Linear(2 * reach * max(1, len(axes)) * width, width, bias=False)
        self.initialise()

    def initialise(self) -> None:
        """Draw weights of the same order of magnitude as a position's own embedding."""
        nn.init.normal_(self.mix.weight, std=self.mix.out_features**-0.5 / 2)

    def forward(self, h: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
        grid = h.unflatten(1, self.axes or (h.shape[1],))
        sides = [shift(grid, 1 + axis, by) for axis in range(grid.dim() - 2) for by in self._offsets()]
        mixed: Tensor = self.mix(torch.cat(sides, -1))
        return mixed.flatten(1, -2)

    def _offsets(self) -> list[int]:
        return [by for by in range(-self.reach, self.reach + 1) if by]


def shift(h: Tensor, axis: int, by: int) -> Tensor:
    """Return the values `by` places further along an axis; zeros beyond its ends."""
    size = h.shape[axis]
    kept = h.narrow(axis, min(max(by, 0), size), max(size - abs(by), 0))
    pad = [0, 0] * (h.dim() - 1 - axis) + [min(max(-by, 0), size), min(max(by, 0), size)]
    return F.pad(kept, pad)


class Block(nn.Module):
    """Attention and a feed-forward layer; if there is a time, it shifts, scales and gates both (adaLN).

    Modulations start such that the block equals one without time: gates that start closed (adaLN-zero) cost text models
    of this size hundreds of steps.
    """

    def __init__(self, network: NetworkConfig, time_features: int | None):
        super().__init__()
        width = network.width
        plain = time_features is None
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=plain, bias=False)
        self.attention = Attention(width, network.heads, network.dropout)
        self.feed_norm = nn.LayerNorm(width, elementwise_affine=plain, bias=False)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(network.dropout)
        self.modulation = None if time_features is None else nn.Linear(time_features, 6 * width)
        self.memory_norm, self.memory_attention = cross_attention_layers(network)

    def forward(
        self,
        h: Tensor,
        c: Tensor | None,
        table: Tensor,
        mask: Tensor | None,
        causal: bool,
        cache: KVCache | None,
        memory: ConditionTokens | None,
    ) -> Tensor:
        if self.modulation is None:
            h = h + self.dropout(self.attention(self.attention_norm(h), table, mask, causal, cache))
            h = cross_attend(h, self.memory_norm, self.memory_attention, memory)
            return h + self.dropout(self._feed(self.feed_norm(h)))
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c).chunk(6, dim=-1)
        modulated = torch.addcmul(shift_a, self.attention_norm(h), 1 + scale_a)
        h = h + (1 + gate_a) * self.dropout(self.attention(modulated, table, mask, causal, cache))
        h = cross_attend(h, self.memory_norm, self.memory_attention, memory)
        modulated = torch.addcmul(shift_f, self.feed_norm(h), 1 + scale_f)
        return h + (1 + gate_f) * self.dropout(self._feed(modulated))

    def _feed(self, h: Tensor) -> Tensor:
        """ReLU² (So et al. 2021, Primer): as good as GELU here, and a step takes a fifth less time on a CPU."""
        up, down = self.expand, self.contract
        if not is_eager_cpu(h):
            return down(F.relu(up(h)).square())
        if computes_in_bfloat16() and torch.is_grad_enabled():
            return feed_forward(h, up.weight, up.bias, down.weight, down.bias)
        return down(square_relu(up(h)))


def input_subtraction_weight(subtract_input: bool) -> Tensor | None:
    """Return the weight with which a backbone subtracts its input before the head (see Backbone); None for never.

    It is a buffer among the weights, so that weights trained the other way are refused.
    """
    return torch.ones(()) if subtract_input else None


def run_checkpointed(block: nn.Module, *inputs: object) -> Tensor:
    """Return the output of a block without storing its activations: the backward pass computes them again."""
    out: Tensor = checkpoint(block, *inputs, use_reentrant=False) if torch.is_grad_enabled() else block(*inputs)
    return out


class Backbone(nn.Module):
    """Transformer blocks, from embedded inputs to normalised features.

    With `subtract_input` the features are those of h - h₀: the embedding of a position's own state does not reach the
    head through the residual stream. This is for processes that add the likelihood of the position's own state to the
    logits, while the head predicts from the other positions. With `reach`, LocalMixing precedes the first block.
    """

    table: Tensor
    out: Tensor | None
    recompute: bool = False
    """Whether activations inside a block are computed again in the backward pass instead of stored."""

    def __init__(
        self,
        network: NetworkConfig,
        length: int,
        *,
        reads_time: bool,
        bidirectional: bool = True,
        subtract_input: bool = False,
        reach: int = 0,
    ):
        super().__init__()
        self.register_buffer("out", input_subtraction_weight(subtract_input))
        time_features = min(network.width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        self.blocks = nn.ModuleList(Block(network, time_features) for _ in range(network.depth))
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.register_buffer(
            "table", rotary_table(length, network.width // network.heads, network.axes), persistent=False
        )
        self.neighbours = LocalMixing(network.width, reach, network.axes) if reach else None
        self.network, self.length = network, length
        self._initialise(bidirectional)

    def _initialise(self, bidirectional: bool) -> None:
        """Draw small normal weights, scaled by depth where they add to the residual stream; heads see neighbours."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("out.weight", "contract.weight"))
                residual_std = 0.02 / math.sqrt(2 * self.network.depth)
                nn.init.normal_(weight, std=residual_std if residual else weight.shape[1] ** -0.5 / 2)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
            if "modulation" in name:
                nn.init.zeros_(weight)
        for module in self.modules():
            if isinstance(module, Attention):
                module.init_to_neighbours(ahead=bidirectional, axes=max(1, len(self.network.axes)))
        if self.neighbours is not None:
            self.neighbours.initialise()

    def forward(
        self,
        h: Float[Tensor, "B M D"],
        t: Float[Tensor, " B #M"] | None = None,
        *,
        positions: Int64[Tensor, " M"] | None = None,
        mask: Bool[Tensor, "M N"] | None = None,
        causal: bool = False,
        caches: list[KVCache] | None = None,
        memory: ConditionTokens | None = None,
    ) -> Float[Tensor, "B M D"]:
        table = self.table[:, : h.shape[1]] if positions is None else self.table[:, positions]
        c = None if self.time is None or t is None else self.time(t)
        embedded = h
        if self.neighbours is not None:
            h = h + self.neighbours(h)
        for i, block in enumerate(self.blocks):
            inputs = (h, c, table, mask, causal, None if caches is None else caches[i], memory)
            h = run_checkpointed(block, *inputs) if self.recompute else block(*inputs)
        return self.norm(h if self.out is None else h - self.out * embedded)


LARGE_VOCABULARY = 1024
"""Logits from which the head computes in the precision of the network; below, float32 costs little."""


class LinearHead(nn.Linear):
    """Maps features to logits; its weights start at zero, which is a uniform prediction.

    Logits are float32. In networks of lower precision the product of a large vocabulary is computed in that precision.
    """

    def __init__(self, width: int, vocab_size: int):
        super().__init__(width, vocab_size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        if self.out_features >= LARGE_VOCABULARY:
            return super().forward(h).float()
        with torch.autocast(h.device.type, enabled=False):
            return super().forward(h.float())
