"""Training steps of the usual networks, written as plainly as their authors write them: GPT-2, BERT and DDiT."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The size of a network and of its batches."""

    name: str
    width: int
    depth: int
    heads: int
    vocabulary: int
    batch: int
    length: int = 128


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return [B, H, L, h]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class GPT2Block(nn.Module):
    """Pre-norm causal attention and a GELU layer (Radford et al. 2019)."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, width = shape.heads, shape.width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.norm1(h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).contiguous().flatten(2))
        return h + self.down(F.gelu(self.up(self.norm2(h))))


class GPT2(nn.Module):
    """Next-token cross-entropy at every position; the head shares the weights of the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(shape.vocabulary, shape.width),
            nn.Embedding(shape.length, shape.width),
        )
        self.blocks = nn.ModuleList(GPT2Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.norm(h), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


class BERTBlock(nn.Module):
    """Post-norm attention with separate projections and a GELU layer (Devlin et al. 2018)."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, width = shape.heads, shape.width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (split_heads(project(h), self.heads) for project in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = self.norm1(h + self.out(mixed))
        return self.norm2(h + self.down(F.gelu(self.up(h))))


class BERT(nn.Module):
    """Cross-entropy at masked positions; logits are computed at all positions, as its usual code does."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.mask = shape.vocabulary
        self.tokens = nn.Embedding(shape.vocabulary + 1, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.blocks = nn.ModuleList(BERTBlock(shape) for _ in range(shape.depth))
        self.transform, self.transform_norm = nn.Linear(shape.width, shape.width), nn.LayerNorm(shape.width)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        masked = torch.rand(tokens.shape) < torch.rand(len(tokens), 1)
        h = self.norm(self.tokens(tokens.masked_fill(masked, self.mask)) + self.positions.weight)
        for block in self.blocks:
            h = block(h)
        logits = F.linear(self.transform_norm(F.gelu(self.transform(h))), self.tokens.weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.masked_fill(~masked, -100).flatten())


class DDiTBlock(nn.Module):
    """adaLN by the time of a sequence, rotary positions and a GELU layer (Peebles and Xie 2022; Lou et al. 2023)."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.heads, width = shape.heads, shape.width
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(128, 6 * width)

    def forward(self, h: Tensor, c: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = self.modulation(c)[:, None].chunk(6, -1)
        q, k, v = (
            split_heads(part, self.heads) for part in self.qkv(self.norm1(h) * (1 + scale_a) + shift_a).chunk(3, -1)
        )
        q, k = (x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin for x in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v)
        h = h + gate_a * self.out(mixed.transpose(1, 2).flatten(2))
        up = self.up(self.norm2(h) * (1 + scale_f) + shift_f)
        return h + gate_f * self.down(F.gelu(up, approximate="tanh"))


class DDiT(nn.Module):
    """Cross-entropy at all positions of noisy inputs: masked tokens, or states on the sphere with `sphere`."""

    def __init__(self, shape: Shape, *, sphere: bool):
        super().__init__()
        self.sphere, self.vocabulary = sphere, shape.vocabulary
        self.embed = (
            nn.Linear(shape.vocabulary, shape.width) if sphere else nn.Embedding(shape.vocabulary + 1, shape.width)
        )
        self.time = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.blocks = nn.ModuleList(DDiTBlock(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.modulation = nn.Linear(128, 2 * shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary)
        half = shape.width // shape.heads // 2
        angles = torch.arange(shape.length)[:, None] * 10_000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        t = torch.rand(len(tokens))
        x = sphere_state(tokens, t, self.vocabulary) if self.sphere else mask_tokens(tokens, t, self.vocabulary)
        waves = 1000 * t[:, None] * torch.exp(-math.log(10_000) * torch.arange(64) / 64)
        c = self.time(torch.cat([waves.cos(), waves.sin()], -1))
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, c, self.cos, self.sin)
        shift, scale = self.modulation(c)[:, None].chunk(2, -1)
        logits = self.head(self.norm(h) * (1 + scale) + shift)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def mask_tokens(tokens: Tensor, t: Tensor, mask: int) -> Tensor:
    """Return tokens, each masked with probability t."""
    return tokens.masked_fill(torch.rand(tokens.shape) < t[:, None], mask)


def sphere_state(tokens: Tensor, t: Tensor, vocabulary: int) -> Tensor:
    """Return points on the sphere between the uniform distribution (t = 1) and the tokens, with tangent noise.

    x = cos ω μ + sin ω n with the mean direction μ on the geodesic and a normalised tangent normal n: the operations of
    a simulation-free transition, at angles that are not those of a bridge.
    """
    token = F.one_hot(tokens, vocabulary).float()
    uniform = torch.full((vocabulary,), vocabulary**-0.5)
    angle = math.acos(vocabulary**-0.5)
    s = t[:, None, None]
    mean = (torch.sin((1 - s) * angle) * token + torch.sin(s * angle) * uniform) / math.sin(angle)
    noise = torch.randn_like(mean)
    noise = noise - (noise * mean).sum(-1, keepdim=True) * mean
    noise = noise / noise.norm(dim=-1, keepdim=True)
    omega = 0.5 * (s * (1 - s)).sqrt()
    return torch.cos(omega) * mean + torch.sin(omega) * noise


def build_peer(name: str, shape: Shape) -> nn.Module:
    """Return the network of a peer."""
    match name:
        case "gpt2":
            return GPT2(shape)
        case "bert":
            return BERT(shape)
        case _:
            return DDiT(shape, sphere=name == "ddit-sphere")


def peer_step(name: str, shape: Shape, dtype: torch.dtype, tokens: Tensor) -> Callable[[], None]:
    """Return the training step of a peer: forward, backward, clipping, AdamW, and the EMA of diffusion codes."""
    network = build_peer(name, shape)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    parameters = list(network.parameters())
    averages = [p.detach().clone() for p in parameters] if name.startswith("ddit") else []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = network(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        for average, parameter in zip(averages, parameters, strict=bool(averages)):
            average.lerp_(parameter.detach(), 1e-3)

    return step
