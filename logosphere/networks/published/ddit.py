"""DDiT: the diffusion transformer of SEDD, MDLM, BD3-LM, UDLM, Duo, GIDD and RDLM (Peebles and Xie; Lou et al.).

    c = SiLU(W₂ SiLU(W₁ [cos σf, sin σf] + b₁) + b₂),   f_i = 10000^(-i/128), i = 0 … 127
    x ← x + g_a · attention(norm₁(x) (1 + s_a) + h_a)
    x ← x + g_m · mlp(norm₂(x) (1 + s_m) + h_m),        (h_a, s_a, g_a, h_m, s_m, g_m) = A c + a
    logits = W (norm(x) (1 + s) + h) + b,               (h, s) = A' c + a'

Gates multiply as they are, a SiLU follows the second layer as well, and layer norms keep their weight under the
modulation. The residual stream, layer norms and rotations are float32 also where the weights are bfloat16.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.networks.attention import KVCache, attend
from logosphere.networks.published.base import PublishedNetwork, next_positions
from logosphere.networks.published.config import PublishedConfig
from logosphere.networks.published.embedding import token_embedding
from logosphere.types import Bool, Float, Int64

FEATURES = 256
"""Sinusoidal features of σ, half of them cosines."""
LONGEST_PERIOD = 10_000.0


def working_dtype(weight: Tensor) -> torch.dtype:
    """The precision of the residual stream and of tables: that of the weights, but at least float32."""
    return torch.promote_types(weight.dtype, torch.float32)


def embed_noise(sigma: Float[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "... 256"]:
    """[cos σf, sin σf] with f_i = 10000^(-i/128): cosines first."""
    half = FEATURES // 2
    frequencies = LONGEST_PERIOD ** (-torch.arange(half, device=sigma.device, dtype=dtype) / half)
    angles = sigma.to(dtype)[..., None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], -1)


def inverse_frequencies(head_width: int, base: float, like: Tensor, dtype: torch.dtype) -> Float[Tensor, " n"]:
    """base^(-2i/h), the angles between neighbouring positions."""
    return 1 / base ** (torch.arange(0, head_width, 2, device=like.device, dtype=dtype) / head_width)


def rotary_angles(
    positions: Int64[Tensor, "... M"], head_width: int, base: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "... M n"], Float[Tensor, "... M n"]]:
    """cos and sin of position × frequency (Su et al. 2021); no buffers, which a cast of the weights would round."""
    angles = positions.to(dtype)[..., None] * inverse_frequencies(head_width, base, positions, dtype)
    if positions.dim() == 2:  # of each sequence; all heads share them
        angles = angles[:, None]
    return angles.cos(), angles.sin()


def rotate_halves(
    x: Float[Tensor, "B H M h"], rotation: tuple[Float[Tensor, "... M n"], Float[Tensor, "... M n"]]
) -> Float[Tensor, "B H M h"]:
    """(a, b) ↦ (a cos θ - b sin θ, b cos θ + a sin θ) for the halves a, b of the features of a head."""
    (cos, sin), (a, b) = rotation, x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def causal_mask(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "M N"] | None:
    """Which of `keys` positions each of the last `queries` positions sees: those up to itself."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class Norm(nn.Module):
    """Layer norm without bias, in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), None, self.eps)


class Attention(nn.Module):
    """Rotary attention without biases; the projection has the layout (query, key, value) × head × feature."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B M D"],
        rotation: tuple[Tensor, Tensor],
        mask: Bool[Tensor, "... M N"] | None,
        causal: bool,
        cache: KVCache | None,
    ) -> Float[Tensor, "B M D"]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate_halves(q, rotation), rotate_halves(k, rotation)
        if cache is not None:
            k, v = cache.extend(k, v)
        if causal and k.shape[2] > q.shape[2]:
            mask, causal = causal_mask(q.shape[2], k.shape[2], x.device), False
        return self.out(attend(q, k, v, mask, causal=causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward layer, both modulated by the noise level if there is a condition."""

    def __init__(self, config: PublishedConfig, dropout: float):
        super().__init__()
        width = config.width
        self.norm1, self.norm2 = Norm(width, config.eps), Norm(width, config.eps)
        self.attention = Attention(config)
        self.up, self.down = nn.Linear(width, config.inner), nn.Linear(config.inner, width)
        self.modulation = nn.Linear(config.condition_width, 6 * width) if config.modulated else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B M D"],
        c: Float[Tensor, "b m C"] | None,
        rotation: tuple[Tensor, Tensor],
        mask: Bool[Tensor, "... M N"] | None,
        causal: bool,
        cache: KVCache | None,
    ) -> Float[Tensor, "B M D"]:
        dtype = self.up.weight.dtype
        if self.modulation is None or c is None:
            x = x + self.dropout(self.attention(self.norm1(x).to(dtype), rotation, mask, causal, cache))
            return x + self.dropout(self.feed_forward(self.norm2(x).to(dtype)))
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(c).chunk(6, -1)
        h = (self.norm1(x) * (1 + scale_a) + shift_a).to(dtype)
        x = x + gate_a * self.dropout(self.attention(h, rotation, mask, causal, cache))
        h = (self.norm2(x) * (1 + scale_m) + shift_m).to(dtype)
        return x + gate_m * self.dropout(self.feed_forward(h))

    def feed_forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        out: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return out


class DDiT(PublishedNetwork):
    """The diffusion transformer; also its causal form without modulation, and with states instead of token ids."""

    def __init__(self, config: PublishedConfig, dropout: float = 0.0):
        super().__init__()
        self.config, self.dropout = config, dropout
        width, condition = config.width, config.condition_width
        self.embedding: nn.Embedding | nn.Linear
        self.embedding = nn.Linear(config.rows, width) if config.reads_states else token_embedding(config)
        modulated = config.modulated
        self.noise1 = nn.Linear(FEATURES, condition) if modulated else None
        self.noise2 = nn.Linear(condition, condition) if modulated else None
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.depth))
        self.norm = Norm(width, config.eps)
        self.modulation = nn.Linear(condition, 2 * width) if modulated else None
        self.out = nn.Linear(width, config.rows)

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
        weight = self.out.weight
        dtype = working_dtype(weight)
        if self.config.reads_states:  # the last coordinate of a state of the sphere is the mask, which is not read
            inputs = inputs[..., : self.config.rows].to(weight.dtype)
        x = self.embedding(inputs).to(dtype)
        positions = next_positions(inputs, caches) if positions is None else positions
        rotation = rotary_angles(positions, self.config.head_width, self.config.rotary_base, dtype)
        c = self.embed_condition(condition, inputs)
        for index, block in enumerate(self.blocks):
            x = self.run_block(block, x, c, rotation, mask, causal, caches[index] if caches else None)
        x = self.norm(x)
        if self.modulation is not None and c is not None:
            shift, scale = self.modulation(c).chunk(2, -1)
            x = x * (1 + scale) + shift
        return x.to(weight.dtype)

    def embed_condition(self, condition: Float[Tensor, "B M"] | None, inputs: Tensor) -> Float[Tensor, "b m C"] | None:
        """c of every position, or one for all positions that share the noise level.

        A network that reads nothing but σ = 0 has one vector for all sequences.
        """
        if self.noise1 is None or self.noise2 is None:
            return None
        weight = self.noise1.weight
        dtype = working_dtype(weight)
        if condition is None or self.config.reads in ("nothing", "zero"):
            condition = torch.zeros(1, 1, device=inputs.device, dtype=dtype)
        if condition.stride(1) == 0 or (condition.device.type == "cpu" and bool((condition == condition[:, :1]).all())):
            condition = condition[:, :1]
        hidden = F.silu(self.noise1(embed_noise(condition, dtype).to(weight.dtype)))
        return F.silu(self.noise2(hidden))

    def head(self, features: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        out: Tensor = self.out(features)
        return out

    def head_parameters(self) -> tuple[Tensor, ...]:
        return tuple(self.out.parameters())

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        config, like = self.config, self.out.weight
        return [KVCache(batch, config.heads, length, config.head_width, like) for _ in self.blocks]
