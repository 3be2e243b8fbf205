"""Multi-head attention with rotary positions, its key-value cache, and attention masks.

Three masks cover every model: full (all positions), causal (position i sees positions up to i), and block-causal
(noisy blocks see themselves and the clean blocks before them, `block_causal_mask`).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
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
        q, k, v = self.qkv(h).view(B, M, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # [B, H, M, h] each
        q, k = rotate(q, table), rotate(k, table)
        if cache is not None:
            k, v = cache.extend(k, v)
        dropout = self.dropout if self.training else 0.0
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
