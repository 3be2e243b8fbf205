"""Rotations, attention and feed-forward layers on CPUs as single differentiable functions.

Each elementwise operation of a layer is a pass over its activations, and torch stores its inputs for the backward
pass. The functions here need fewer passes and store less. In float32 they have the same values and gradients as the
operations they replace, to the last bit. In bfloat16 attention is a plain product, softmax and product: torch's own
kernel for CPUs takes two to four times as long there, for up to some 512 positions. On other devices, and in compiled
code, whose operations the compiler fuses, attention.py and backbone.py use plain operations.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from logosphere.types import Bool, Float

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
    """softmax(R q (R k)ᵀ / √h) v with the rotation R of each position, in bfloat16; R is applied in float32."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Float[Tensor, "B M E"], table: Tensor, heads: int, bias: Tensor | None
    ) -> Float[Tensor, "B M D"]:
        rows = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, M, h]
        rotated = rotate_pairs(rows[:2].float(), table, torch.empty(rows[:2].shape)).to(qkv.dtype)
        v = rows[2].contiguous()
        rotated[0] *= v.shape[-1] ** -0.5
        scores = rotated[0] @ rotated[1].transpose(-1, -2)
        if bias is not None:
            scores += bias
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(rotated, v, weights, table)
        return (weights @ v).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "B M D"]) -> tuple[Tensor, None, None, None]:
        rotated, v, weights, table = ctx.saved_tensors
        B, H, M, h = v.shape
        g = grad.view(B, M, H, h).transpose(1, 2).contiguous()
        scores = torch._softmax_backward_data(g @ v.transpose(-1, -2), weights, -1, weights.dtype)
        rows = torch.empty(2, B, H, M, h)
        rows[0], rows[1] = scores @ rotated[1], scores.transpose(-1, -2) @ rotated[0]
        rows[0] *= h**-0.5
        out = torch.empty(B, M, 3, H, h, dtype=grad.dtype)
        parts = out.permute(2, 0, 3, 1, 4)
        parts[:2] = rotate_pairs(rows, table, torch.empty_like(rows), sign=-1)
        parts[2] = weights.transpose(-1, -2) @ g
        return out.flatten(2), None, None, None


def attend_plainly(
    qkv: Float[Tensor, "B M E"], table: Float[Tensor, "2 M h"], heads: int, mask: Bool[Tensor, "M M"] | None
) -> Float[Tensor, "B M D"]:
    """Return rotary attention among positions in bfloat16, given the projection to queries, keys and values."""
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=qkv.dtype).masked_fill_(~mask, -torch.inf)
    return _PlainAttention.apply(qkv, table, heads, bias)


class _SquaredReLU(torch.autograd.Function):
    """max(x, 0)²; only max(x, 0) is stored, in the memory of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        r = x.relu_()
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (r,) = ctx.saved_tensors
        return torch.addcmul(grad.new_zeros(()), grad, r, value=2)  # 2 grad r in one pass


def square_relu(x: Tensor) -> Tensor:
    """Return max(x, 0)² and overwrite x, which nothing else may read: the output of a linear layer."""
    if not torch.is_grad_enabled():
        return x.relu_().square_()
    return _SquaredReLU.apply(x)


class _FeedForward(torch.autograd.Function):
    """W₂ max(W₁ x + b₁, 0)² + b₂ in bfloat16; the squares are computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        w1, b1, w2, b2 = (weight.to(x.dtype) for weight in (w1, b1, w2, b2))
        linear = torch.ops.mkldnn._linear_pointwise  # bias and ReLU within the product
        r = linear(x, w1, b1, "relu", [], "")
        ctx.save_for_backward(x, w1, w2, r)
        return linear(r * r, w2, b2, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, w1, w2, r = ctx.saved_tensors
        g, r, rows = grad.flatten(0, -2), r.flatten(0, -2), x.flatten(0, -2)
        dw2 = g.t() @ (r * r)
        dr = (g @ w2).mul_(r)  # half of the gradient: the 2 of 2 r is applied to smaller tensors
        dx, dw1, db1 = dr @ (2 * w1), 2 * (dr.t() @ rows).float(), 2 * dr.sum(0).float()
        return dx.view_as(x), dw1, db1, dw2.float(), g.sum(0).float()


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return W₂ max(W₁ x + b₁, 0)² + b₂ in bfloat16."""
    return _FeedForward.apply(x.bfloat16(), w1, b1, w2, b2)
