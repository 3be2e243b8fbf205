"""Attention of networks: rotary positions, masks, a cache of keys and values, self- and cross-attention.

Masks are full (all positions), causal (position i sees positions up to i), and block-causal (noisy blocks see
themselves and the clean blocks before them, `block_causal_mask`).

Where operations run one by one on a CPU, rotations, and attention in bfloat16, are single differentiable functions:
each elementwise operation would be a pass over the activations, and torch would store its inputs. In float32 they have
the same values and gradients as the operations they replace, to the last bit. In bfloat16 attention is a plain product,
softmax and product, since torch's own kernel for CPUs takes two to four times as long, for up to some 512 positions.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


def split_and_rotate(
    qkv: Float[Tensor, "B M E"], table: Float[Tensor, "2 M h"], heads: int
) -> tuple[Float[Tensor, "B H M h"], Float[Tensor, "B H M h"], Float[Tensor, "B H M h"]]:
    """Return rotated queries, rotated keys and values of a projection of positions."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return rotate(q, table), rotate(k, table), v


def attend_by_operations(
    qkv: Float[Tensor, "B M E"], table: Float[Tensor, "2 M h"], heads: int, mask: Bool[Tensor, "M M"] | None
) -> Float[Tensor, "B M D"]:
    """Return rotary attention in the precision of qkv by plain operations, which a compiler fuses."""
    q, k, v = split_and_rotate(qkv, table, heads)
    with torch.autocast(qkv.device.type, enabled=False):
        scores = (q * q.shape[-1] ** -0.5).to(v.dtype) @ k.to(v.dtype).transpose(-1, -2)
        if mask is not None:
            scores = torch.where(mask, scores, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


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
        self.kept = 0
        """Positions that are seen in any case: those after the new ones are kept from an earlier evaluation."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values of further positions, and return those of all positions so far, and of those kept."""
        end = self.filled + keys.shape[2]
        self.keys[:, :, self.filled : end], self.values[:, :, self.filled : end] = keys, values
        self.filled = end
        seen = max(end, self.kept)
        return self.keys[:, :, :seen], self.values[:, :, :seen]

    def select_rows(self, rows: Int64[Tensor, " n"]) -> "KVCache":
        """Return a copy for some of the sequences."""
        part = copy(self)
        part.keys, part.values = self.keys[rows], self.values[rows]
        return part


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


# ---- single functions on CPUs --------------------------------------------------------------------------------


PLAIN_LIMIT = 512
"""Positions up to which attention is computed plainly in bfloat16; its weights take memory quadratic in them."""


def is_eager_cpu(h: Tensor) -> bool:
    """Whether operations on this tensor run one by one on a CPU."""
    return h.device.type == "cpu" and not torch.compiler.is_compiling()


def computes_in_bfloat16() -> bool:
    """Whether layers on a CPU compute in bfloat16 here."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def rotate_pairs(
    x: Float[Tensor, "... M h"], table: Float[Tensor, "2 M h"], out: Float[Tensor, "... M h"], sign: int = 1
) -> Float[Tensor, "... M h"]:
    """Write x, rotated by the angles of its positions, to `out`, and return it; `sign` = -1 rotates back.

    (a, b) ↦ (a cos θ - b sin θ, b cos θ + a sin θ) for the halves a, b of the features of a head.
    """
    half = x.shape[-1] // 2
    torch.mul(x, table[0], out=out)
    sin = table[1, :, :half] * sign
    part = torch.empty(*x.shape[:-1], half)
    out[..., :half] -= torch.mul(x[..., half:], sin, out=part)
    out[..., half:] += torch.mul(x[..., :half], sin, out=part)
    return out


class _RotateQueriesAndKeys(torch.autograd.Function):
    """Splits the projection of positions into rotated queries and keys, and values."""

    @staticmethod
    def forward(ctx: Any, qkv: Float[Tensor, "B M E"], table: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(table)
        rows = qkv.float().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, M, h]
        return rotate_pairs(rows[:2], table, torch.empty(rows[:2].shape)), rows[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_values: Tensor) -> tuple[Tensor, None, None]:
        (table,) = ctx.saved_tensors
        _, B, H, M, h = grad.shape
        out = torch.empty(B, M, 3, H, h)
        parts = out.permute(2, 0, 3, 1, 4)
        rotate_pairs(grad, table, parts[:2], sign=-1)
        parts[2] = grad_values
        return out.flatten(2), None, None


def rotate_queries_and_keys(
    qkv: Float[Tensor, "B M E"], table: Float[Tensor, "2 M h"], heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries, rotated keys and values, each [B, H, M, h] in float32, of a projection of positions."""
    rotated, v = _RotateQueriesAndKeys.apply(qkv, table, heads)
    q, k = rotated.unbind()
    return q, k, v


class _PlainAttention(torch.autograd.Function):
    """softmax(R q (R k)ᵀ / √h) v with the rotation R of each position, in bfloat16; R is applied in float32.

    With `clean`, keys and values of further positions follow those of the queries' own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Float[Tensor, "B M E"],
        table: Tensor,
        heads: int,
        bias: Tensor | None,
        clean: Float[Tensor, "B N F"] | None,
        clean_table: Tensor | None,
    ) -> Float[Tensor, "B M D"]:
        rows = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, M, h]
        rotated = rotate_pairs(rows[:2].float(), table, torch.empty(rows[:2].shape)).to(qkv.dtype)
        q, k, v = rotated[0], rotated[1], rows[2].contiguous()
        if clean is not None and clean_table is not None:
            k2, v2 = clean.unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)  # [B, H, N, h] each
            k = torch.cat([k, rotate_pairs(k2.float(), clean_table, torch.empty(k2.shape)).to(qkv.dtype)], 2)
            v = torch.cat([v, v2], 2)
        q *= v.shape[-1] ** -0.5
        scores = q @ k.transpose(-1, -2)
        if bias is not None:
            scores += bias
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, weights, table, clean_table)
        return (weights @ v).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "B M D"]) -> tuple[Tensor | None, ...]:
        q, k, v, weights, table, clean_table = ctx.saved_tensors
        B, H, M, h = q.shape
        g = grad.view(B, M, H, h).transpose(1, 2).contiguous()
        scores = torch._softmax_backward_data(g @ v.transpose(-1, -2), weights, -1, weights.dtype)
        dk, dv = scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ g
        rows = torch.empty(2, B, H, M, h)
        rows[0], rows[1] = scores @ k, dk[:, :, :M]
        rows[0] *= h**-0.5
        out = torch.empty(B, M, 3, H, h, dtype=grad.dtype)
        parts = out.permute(2, 0, 3, 1, 4)
        parts[:2] = rotate_pairs(rows, table, torch.empty_like(rows), sign=-1)
        parts[2] = dv[:, :, :M]
        clean = None
        if clean_table is not None:
            clean = torch.empty(B, k.shape[2] - M, 2, H, h, dtype=grad.dtype)
            parts, turned = clean.permute(2, 0, 3, 1, 4), dk[:, :, M:].float()
            parts[0] = rotate_pairs(turned, clean_table, torch.empty_like(turned), sign=-1)
            parts[1] = dv[:, :, M:]
            clean = clean.flatten(2)
        return out.flatten(2), None, None, None, clean, None


def attend_plainly(
    qkv: Float[Tensor, "B M E"],
    table: Float[Tensor, "2 M h"],
    heads: int,
    mask: Bool[Tensor, "M N"] | None,
    clean: Float[Tensor, "B C F"] | None = None,
    clean_table: Float[Tensor, "2 C h"] | None = None,
) -> Float[Tensor, "B M D"]:
    """Return rotary attention among positions in bfloat16, given the projection to queries, keys and values.

    `clean` is the projection of further positions to keys and values; the mask then has M + C columns.
    """
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=qkv.dtype).masked_fill_(~mask, -torch.inf)
    return _PlainAttention.apply(qkv, table, heads, bias, clean, clean_table)


# ---- layers ------------------------------------------------------------------------------------------------------


GROUP = 128
"""Queries that are evaluated together where a mask leaves most keys out."""
_skips_masked_keys = True


@contextmanager
def all_pairs_evaluated() -> Iterator[None]:
    """Evaluate masked pairs of positions too, so that counted operations do not depend on the device."""
    global _skips_masked_keys
    before, _skips_masked_keys = _skips_masked_keys, False
    try:
        yield
    finally:
        _skips_masked_keys = before


def attend_in_groups(
    q: Float[Tensor, "B H M h"], k: Float[Tensor, "B H N h"], v: Float[Tensor, "B H N h"], mask: Bool[Tensor, "M N"]
) -> Float[Tensor, "B H M h"]:
    """Return masked attention, for groups of queries one after another, each with the keys that any of them sees.

    Of the 2L × 2L pairs of block diffusion this evaluates little more than the L² that its mask has.
    """
    mixed = []
    for start in range(0, len(mask), GROUP):
        rows = mask[start : start + GROUP]
        seen = rows.any(0).nonzero()[:, 0]
        mixed.append(
            attend(q[:, :, start : start + GROUP], k.index_select(2, seen), v.index_select(2, seen), rows[:, seen])
        )
    return torch.cat(mixed, 2)


class CleanContext(NamedTuple):
    """Features of clean positions, which noisy positions attend to as well as to one another, and their rotations."""

    features: Float[Tensor, "B N D"]
    table: Float[Tensor, "2 N h"]


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
        clean: CleanContext | None = None,
    ) -> Float[Tensor, "B M D"]:
        (B, M, D), eager = h.shape, is_eager_cpu(h)
        qkv, dropout = self.qkv(h), self.dropout if self.training else 0.0
        if h.device.type == "cpu" and computes_in_bfloat16() and M <= PLAIN_LIMIT and cache is None and dropout == 0:
            mask = torch.ones(M, M, dtype=torch.bool).tril_() if causal else mask
            if clean is None:
                return self.out((attend_plainly if eager else attend_by_operations)(qkv, table, self.heads, mask))
            if eager:
                projected = self._project_clean(clean.features)
                return self.out(attend_plainly(qkv, table, self.heads, mask, projected, clean.table))
        q, k, v = (rotate_queries_and_keys if eager else split_and_rotate)(qkv, table, self.heads)
        if clean is not None:
            more = self.keys_and_values(clean)
            k, v = torch.cat([k, more[0].to(k.dtype)], 2), torch.cat([v, more[1].to(v.dtype)], 2)
        if cache is not None:
            k, v = cache.extend(k, v)
        if mask is not None and M > PLAIN_LIMIT and eager and dropout == 0 and _skips_masked_keys:
            mixed = attend_in_groups(q, k, v, mask)
        else:
            mixed = attend(q, k, v, mask, dropout, causal)
        return self.out(mixed.transpose(1, 2).reshape(B, M, D))

    def _project_clean(self, features: Float[Tensor, "B N D"]) -> Float[Tensor, "B N F"]:
        """Project positions that only others attend to; their queries are not needed."""
        D = features.shape[-1]
        return F.linear(features, self.qkv.weight[D:], self.qkv.bias[D:])

    def keys_and_values(self, clean: CleanContext) -> tuple[Float[Tensor, "B H N h"], Float[Tensor, "B H N h"]]:
        """Return rotated keys, and values, of clean positions."""
        k, v = self._project_clean(clean.features).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return rotate(k, clean.table), v


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
