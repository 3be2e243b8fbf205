"""The one backbone: a transformer in the manner of DiT (Peebles and Xie 2022).

`Trunk` is the network proper. Three denoisers put it to use: `FullTransformer` reads the noisy states,
`CausalTransformer` the clean tokens before a position, `BlockTransformer` both, block by block.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.codecs.base import Codec
from logosphere.codecs.tokens import embedding
from logosphere.denoisers.attention import Attention, KeyValues, block_causal_mask, rotary_table
from logosphere.denoisers.base import Denoiser, check_block
from logosphere.denoisers.network import Network
from logosphere.shapes import Bool, Float, Int64
from logosphere.types import Logits, Positions, State, Times


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

    def forward(
        self, h: Tensor, c: Tensor | None, table: Tensor, mask: Tensor | None, causal: bool, cache: KeyValues | None
    ) -> Tensor:
        if self.modulation is None:
            h = h + self.dropout(self.attention(self.attention_norm(h), table, mask, causal, cache))
            return h + self.dropout(self._feed(self.feed_norm(h)))
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c).chunk(6, dim=-1)
        seen = torch.addcmul(shift_a, self.attention_norm(h), 1 + scale_a)
        h = h + (1 + gate_a) * self.dropout(self.attention(seen, table, mask, causal, cache))
        seen = torch.addcmul(shift_f, self.feed_norm(h), 1 + scale_f)
        return h + (1 + gate_f) * self.dropout(self._feed(seen))

    def _feed(self, h: Tensor) -> Tensor:
        """ReLU² (So et al. 2021, Primer): as good as GELU here, and a fifth of the step cheaper on a CPU."""
        return self.contract(F.relu(self.expand(h)).square())


class Trunk(nn.Module):
    """The blocks, from embedded inputs to normalised features."""

    table: Tensor

    def __init__(self, network: Network, length: int, *, reads_time: bool, looks_ahead: bool = True):
        super().__init__()
        time_features = min(network.width, 128) if reads_time else None
        self.time = None if time_features is None else TimeEmbedding(time_features)
        self.blocks = nn.ModuleList(Block(network, time_features) for _ in range(network.depth))
        self.norm = nn.LayerNorm(network.width, bias=False)
        self.register_buffer("table", rotary_table(length, network.width // network.heads), persistent=False)
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
                module.look_at_neighbours(ahead=looks_ahead)

    def forward(
        self,
        h: Float[Tensor, "B M D"],
        t: Float[Tensor, "B #M"] | None = None,
        *,
        positions: Int64[Tensor, "M"] | None = None,
        mask: Bool[Tensor, "M N"] | None = None,
        causal: bool = False,
        caches: list[KeyValues] | None = None,
    ) -> Float[Tensor, "B M D"]:
        table = self.table[:, : h.shape[1]] if positions is None else self.table[:, positions]
        c = None if self.time is None or t is None else self.time(t)
        for i, block in enumerate(self.blocks):
            h = block(h, c, table, mask, causal, None if caches is None else caches[i])
        return self.norm(h)


class Head(nn.Linear):
    """Features to logits: starts at zero (a uniform prediction) and always computes in float32."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__(width, vocab_size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, h: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        with torch.autocast(h.device.type, enabled=False):
            return super().forward(h.float())


def shared_time(t: Times) -> Float[Tensor, "B M"]:
    """One column when all positions of each sequence share a time, so that it is embedded once and not L times."""
    return t[:, :1] if bool((t == t[:, :1]).all()) else t


class FullTransformer(Denoiser):
    """Every position sees every noisy state."""

    def __init__(self, codec: Codec, length: int, network: Network, *, reads_time: bool):
        super().__init__()
        self.block, self.reads_time = length, reads_time
        self.stem = codec.stem(network.width)
        self.trunk = Trunk(network, length, reads_time=reads_time)
        self.head = Head(network.width, codec.choices)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        h = self.trunk(self.stem(z), shared_time(t) if self.reads_time else None)
        return self.head(h if where is None else h[where])


class CausalTransformer(Denoiser):
    """Position i sees the clean tokens before i. Its own state tells nothing in a one-shot process and is not read."""

    def __init__(self, vocab_size: int, length: int, network: Network):
        super().__init__()
        self.block, self.reads_time, self.start = 1, False, vocab_size
        self.stem = embedding(vocab_size + 1, network.width)
        self.trunk = Trunk(network, length, reads_time=False, looks_ahead=False)
        self.head = Head(network.width, vocab_size)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        h = self.trunk(self.stem(self.shifted(context)), causal=True)
        return self.head(h if where is None else h[where])

    def shifted(self, context: State) -> State:
        """The token before each position; a start symbol before the first. Hidden ones are never looked at."""
        before = F.pad(context, (1, 0), value=self.start)[:, :-1]
        return before.clamp_max(self.start)

    def session(self) -> Denoiser:
        return CausalSession(self)


class CausalSession(Denoiser):
    """A causal transformer that reads each position once: keys, values and features of the past are kept."""

    def __init__(self, model: CausalTransformer):
        super().__init__()
        self.model, self.block, self.reads_time = model, 1, False
        self.caches: list[KeyValues] = []
        self.features = torch.empty(0)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        upto = context.shape[1] if where is None else int(where.any(0).nonzero().max()) + 1
        if not self.caches:
            self._allocate(context)
        if upto > self.caches[0].filled:
            self._extend(context, upto)
        return self.model.head(self.features if where is None else self.features[where])

    def _allocate(self, context: State) -> None:
        trunk, (B, L), like = self.model.trunk, context.shape, self.model.stem.weight
        heads, width = trunk.network.heads, trunk.network.width
        self.caches = [KeyValues(B, heads, L, width // heads, like) for _ in trunk.blocks]
        self.features = like.new_empty(B, L, width)

    def _extend(self, context: State, upto: int) -> None:
        first = self.caches[0].filled
        h = self.model.stem(self.model.shifted(context[:, :upto])[:, first:])
        new = torch.arange(first, upto, device=h.device)
        mask = None if len(new) == 1 else new[:, None] >= torch.arange(upto, device=h.device)
        self.features[:, first:upto] = self.model.trunk(h, positions=new, mask=mask, caches=self.caches)


class BlockTransformer(Denoiser):
    """Noisy block b sees itself and the clean blocks before it, all blocks in one pass over [z ; context]."""

    mask: Tensor
    positions: Tensor

    def __init__(self, codec: Codec, length: int, block: int, network: Network, *, reads_time: bool):
        super().__init__()
        check_block(length, block)
        self.block, self.reads_time = block, reads_time
        self.stem = codec.stem(network.width)
        self.trunk = Trunk(network, length, reads_time=reads_time)
        self.head = Head(network.width, codec.choices)
        self.register_buffer("mask", block_causal_mask(length, block), persistent=False)
        self.register_buffer("positions", torch.arange(length).repeat(2), persistent=False)

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        both = self.stem(torch.cat([z, context], dim=1))
        times = torch.cat([t, torch.zeros_like(t)], dim=1) if self.reads_time else None
        h = self.trunk(both, times, positions=self.positions, mask=self.mask)[:, : z.shape[1]]
        return self.head(h if where is None else h[where])
