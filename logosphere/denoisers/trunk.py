"""The one backbone: a transformer in the manner of DiT (Peebles and Xie 2022), and the parts around its blocks."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logosphere.denoisers.attention import Attention, CrossAttention, KeyValues, rotary_table
from logosphere.denoisers.neighbours import Neighbours
from logosphere.denoisers.network import Network
from logosphere.shapes import Bool, Float, Int64


class Memory(NamedTuple):
    """What a condition says, as the blocks see it."""

    features: Float[Tensor, "B S D"]
    valid: Bool[Tensor, "B S"]
    along: Float[Tensor, "B L D"] | None
    """Added to the first layer at every position."""


def recall_layers(network: Network) -> tuple[nn.LayerNorm | None, CrossAttention | None]:
    """The layers by which a block looks at the memory of a condition, if its network is built for any."""
    if not network.conditional:
        return None, None
    return nn.LayerNorm(network.width, bias=False), CrossAttention(network.width, network.heads)


def recalled(h: Tensor, norm: nn.LayerNorm | None, attention: CrossAttention | None, memory: Memory | None) -> Tensor:
    """Features after a look at the memory, where there is one."""
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


class Block(nn.Module):
    """Attention and a feed-forward layer; when time is read it shifts, scales and gates both (adaLN).

    Shifts, scales and gates begin where a network without time stands: gates that begin closed (adaLN-zero) cost text
    models of this size hundreds of steps.
    """

    def __init__(self, network: Network, time_features: int | None):
        super().__init__()
        width = network.width
        plain = time_features is None
        self.attention_norm = nn.LayerNorm(width, elementwise_affine=plain, bias=False)
        self.attention = Attention(width, network.heads, network.dropout)
        self.feed_norm = nn.LayerNorm(width, elementwise_affine=plain, bias=False)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(network.dropout)
        self.modulation = None if time_features is None else nn.Linear(time_features, 6 * width)
        self.memory_norm, self.memory_attention = recall_layers(network)

    def forward(
        self,
        h: Tensor,
        c: Tensor | None,
        table: Tensor,
        mask: Tensor | None,
        causal: bool,
        cache: KeyValues | None,
        memory: Memory | None,
    ) -> Tensor:
        if self.modulation is None:
            h = h + self.dropout(self.attention(self.attention_norm(h), table, mask, causal, cache))
            h = recalled(h, self.memory_norm, self.memory_attention, memory)
            return h + self.dropout(self._feed(self.feed_norm(h)))
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c).chunk(6, dim=-1)
        seen = torch.addcmul(shift_a, self.attention_norm(h), 1 + scale_a)
        h = h + (1 + gate_a) * self.dropout(self.attention(seen, table, mask, causal, cache))
        h = recalled(h, self.memory_norm, self.memory_attention, memory)
        seen = torch.addcmul(shift_f, self.feed_norm(h), 1 + scale_f)
        return h + (1 + gate_f) * self.dropout(self._feed(seen))

    def _feed(self, h: Tensor) -> Tensor:
        """ReLU² (So et al. 2021, Primer): as good as GELU here, and a fifth of the step cheaper on a CPU."""
        return self.contract(F.relu(self.expand(h)).square())


def left_out(own: bool) -> Tensor | None:
    """By how much the embedding of a position itself is taken out again before the head, if at all: see Trunk.

    It is part of the weights, so that those which were trained otherwise are refused.
    """
    return None if own else torch.ones(())


def remade(block: nn.Module, *given: object) -> Tensor:
    """What a block makes, without keeping how: it is made once more where a gradient is wanted."""
    made: Tensor = checkpoint(block, *given, use_reentrant=False) if torch.is_grad_enabled() else block(*given)
    return made


class Trunk(nn.Module):
    """The blocks, from embedded inputs to normalised features.

    Without `own` these are features of what is added to it, h - h₀: the embedding of a position's own state does not
    run straight into the head. That is for states of which the process itself says what they tell of their token, while
    the head is asked what the others say. With `reach` positions look next door before the first block (neighbours.py).
    """

    table: Tensor
    out: Tensor | None
    recompute: bool = False
    """Forget what happens inside a block and compute it anew for the backward pass."""

    def __init__(
        self,
        network: Network,
        length: int,
        *,
        reads_time: bool,
        looks_ahead: bool = True,
        own: bool = True,
        reach: int = 0,
    ):
        super().__init__()
        self.register_buffer("out", left_out(own))
        time_features = min(network.width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        self.blocks = nn.ModuleList(Block(network, time_features) for _ in range(network.depth))
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.register_buffer(
            "table", rotary_table(length, network.width // network.heads, network.axes), persistent=False
        )
        self.neighbours = Neighbours(network.width, reach, network.axes) if reach else None
        self.network, self.length = network, length
        self._initialise(looks_ahead)

    def _initialise(self, looks_ahead: bool) -> None:
        """Small normal weights; what writes into the residual stream is scaled by depth; heads look at neighbours."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                writes = name.endswith(("out.weight", "contract.weight"))
                written = 0.02 / math.sqrt(2 * self.network.depth)
                nn.init.normal_(weight, std=written if writes else weight.shape[1] ** -0.5 / 2)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
            if "modulation" in name:
                nn.init.zeros_(weight)
        for module in self.modules():
            if isinstance(module, Attention):
                module.look_at_neighbours(ahead=looks_ahead, axes=max(1, len(self.network.axes)))
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
        caches: list[KeyValues] | None = None,
        memory: Memory | None = None,
    ) -> Float[Tensor, "B M D"]:
        table = self.table[:, : h.shape[1]] if positions is None else self.table[:, positions]
        c = None if self.time is None or t is None else self.time(t)
        first = h
        if self.neighbours is not None:
            h = h + self.neighbours(h)
        for i, block in enumerate(self.blocks):
            given = (h, c, table, mask, causal, None if caches is None else caches[i], memory)
            h = remade(block, *given) if self.recompute else block(*given)
        return self.norm(h if self.out is None else h - self.out * first)


class Head(nn.Linear):
    """Features to logits: starts at zero (a uniform prediction) and always computes in float32."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__(width, vocab_size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        with torch.autocast(h.device.type, enabled=False):
            return super().forward(h.float())
