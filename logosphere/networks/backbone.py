"""The transformer backbone of all networks, in the manner of DiT (Peebles and Xie 2022), and its parts."""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from logosphere.networks.attention import (
    Attention,
    CleanContext,
    CrossAttention,
    KVCache,
    computes_in_bfloat16,
    is_eager_cpu,
    rotary_table,
)
from logosphere.networks.config import NetworkConfig
from logosphere.types import Bool, Float, Int64


class ConditionTokens(NamedTuple):
    """An encoded condition: the memory of cross-attention, and features that are added at each position."""

    features: Float[Tensor, "B S D"]
    valid: Bool[Tensor, "B S"]
    signal: Float[Tensor, "B L D"] | None
    """Added to the input embeddings at every position."""

    def select_rows(self, rows: Int64[Tensor, " n"]) -> "ConditionTokens":
        """Return the condition of some sequences."""
        signal = None if self.signal is None else self.signal[rows]
        return ConditionTokens(self.features[rows], self.valid[rows], signal)


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
        return linear(r.square(), w2, b2, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, w1, w2, r = ctx.saved_tensors
        g, r, rows = grad.flatten(0, -2), r.flatten(0, -2), x.flatten(0, -2)
        dw2 = g.t() @ r.square()
        dr = (g @ w2).mul_(r)  # half of the gradient: the 2 of 2 r is applied to smaller tensors
        dx, dw1, db1 = dr @ (2 * w1), 2 * (dr.t() @ rows).float(), 2 * dr.sum(0).float()
        return dx.view_as(x), dw1, db1, dw2.float(), g.sum(0).float()


def feed_forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return W₂ max(W₁ x + b₁, 0)² + b₂ in bfloat16."""
    return _FeedForward.apply(x.bfloat16(), w1, b1, w2, b2)


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
        clean: CleanContext | None = None,
    ) -> Tensor:
        if self.modulation is None:
            h = h + self.dropout(self.attention(self.attention_norm(h), table, mask, causal, cache, clean))
            h = cross_attend(h, self.memory_norm, self.memory_attention, memory)
            return h + self.dropout(self._feed(self.feed_norm(h)))
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c).chunk(6, dim=-1)
        modulated = torch.addcmul(shift_a, self.attention_norm(h), 1 + scale_a)
        h = h + (1 + gate_a) * self.dropout(self.attention(modulated, table, mask, causal, cache, clean))
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


def subtract_embedding(
    h: Tensor, embedded: Tensor, weight: Tensor | None, memory: ConditionTokens | None, positions: Tensor | None = None
) -> Tensor:
    """Return h - w e, where e is the embedding of each position's own state; the signal of a condition remains."""
    if weight is None:
        return h
    if memory is not None and memory.signal is not None:
        embedded = embedded - (memory.signal if positions is None else memory.signal[:, positions])
    return h - weight * embedded


def run_checkpointed(block: nn.Module, *inputs: object) -> Tensor:
    """Return the output of a block without storing its activations: the backward pass computes them again."""
    out: Tensor = checkpoint(block, *inputs, use_reentrant=False) if torch.is_grad_enabled() else block(*inputs)
    return out


class Backbone(nn.Module):
    """Transformer blocks, from embedded inputs to normalised features.

    With `subtract_input` the features are those of h - e: the embedding of a position's own state does not reach the
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
        clean: CleanContext | None = None,
        mixed: Float[Tensor, "B M D"] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """`clean` are positions that all blocks attend to; `mixed` is local mixing that was computed elsewhere, in
        place of the backbone's own."""
        table = self.table[:, : h.shape[1]] if positions is None else self.table[:, positions]
        c = None if self.time is None or t is None else self.time(t)
        embedded = h
        if mixed is not None:
            h = h + mixed
        elif self.neighbours is not None:
            h = h + self.neighbours(h)
        for i, block in enumerate(self.blocks):
            inputs = (h, c, table, mask, causal, None if caches is None else caches[i], memory, clean)
            h = run_checkpointed(block, *inputs) if self.recompute else block(*inputs)
        return self.norm(subtract_embedding(h, embedded, self.out, memory, positions))
