"""Checkpoints of random weights in the DDiT layout under their published names, and the forward pass of its formulas.

The forward pass shares no code with the package: it is written in numpy, in float64, from the equations of the papers
(Peebles and Xie 2023; Lou et al. 2024; Sahoo et al. 2024), one sequence and one head at a time.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

import logosphere as ls
from logosphere.checkpoints.files import open_checkpoint
from logosphere.checkpoints.load import match, read_parameters
from logosphere.checkpoints.registry import find_family
from logosphere.model import Model
from logosphere.networks.published.registry import build_network

HF = {"vocab_size": 11, "model_length": 8, "hidden_dim": 12, "n_blocks": 2, "n_heads": 2, "cond_dim": 6}
"""Sizes in config.json of the network that `Shape()` describes."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a checkpoint."""

    rows: int = 11
    width: int = 12
    depth: int = 2
    heads: int = 2
    condition: int = 6
    length: int = 8
    modulated: bool = True
    states: bool = False


def random_tensors(shape: Shape, seed: int = 0, scale: float = 0.4) -> dict[str, Tensor]:
    """Random weights under the published names, without prefix."""
    rng = torch.Generator().manual_seed(seed)
    D, C, V = shape.width, shape.condition, shape.rows

    def draw(*extents: int) -> Tensor:
        return torch.randn(*extents, generator=rng) * scale

    tensors = {"vocab_embed.embedding": draw(V, D)}
    if shape.states:
        tensors = {"vocab_embed.embedding.weight": draw(D, V), "vocab_embed.embedding.bias": draw(D)}
    if shape.modulated:
        tensors |= {"sigma_map.mlp.0.weight": draw(C, 256) / 4, "sigma_map.mlp.0.bias": draw(C)}
        tensors |= {"sigma_map.mlp.2.weight": draw(C, C), "sigma_map.mlp.2.bias": draw(C)}
    for i in range(shape.depth):
        tensors |= {
            f"blocks.{i}.norm1.weight": 1 + draw(D),
            f"blocks.{i}.attn_qkv.weight": draw(3 * D, D),
            f"blocks.{i}.attn_out.weight": draw(D, D),
            f"blocks.{i}.norm2.weight": 1 + draw(D),
            f"blocks.{i}.mlp.0.weight": draw(4 * D, D),
            f"blocks.{i}.mlp.0.bias": draw(4 * D),
            f"blocks.{i}.mlp.2.weight": draw(D, 4 * D),
            f"blocks.{i}.mlp.2.bias": draw(D),
        }
        if shape.modulated:
            tensors |= {f"blocks.{i}.adaLN_modulation.weight": draw(6 * D, C)}
            tensors |= {f"blocks.{i}.adaLN_modulation.bias": draw(6 * D)}
    tensors |= {"output_layer.norm_final.weight": 1 + draw(D)}
    tensors |= {"output_layer.linear.weight": draw(V, D), "output_layer.linear.bias": draw(V)}
    if shape.modulated:
        tensors |= {"output_layer.adaLN_modulation.weight": draw(2 * D, C)}
        tensors |= {"output_layer.adaLN_modulation.bias": draw(2 * D)}
    return tensors


def inverse_frequencies(head_width: int) -> Tensor:
    """The persistent buffer of rotary frequencies."""
    return torch.tensor([10_000.0 ** (-2 * i / head_width) for i in range(head_width // 2)])


def cached_angles(head_width: int, length: int) -> dict[str, Tensor]:
    """GIDD's buffers: cosines and sines for queries, keys and values; values are not rotated."""
    cos, sin = torch.ones(1, length, 3, 1, head_width), torch.zeros(1, length, 3, 1, head_width)
    for position in range(length):
        for i in range(head_width):
            angle = position * 10_000.0 ** (-2 * (i % (head_width // 2)) / head_width)
            cos[0, position, :2, 0, i], sin[0, position, :2, 0, i] = math.cos(angle), math.sin(angle)
    return {"rotary_emb.cos_cached": cos, "rotary_emb.sin_cached": sin}


@dataclass(frozen=True)
class Reference:
    """The formulas, and what happens to them if one convention is dropped (for tests that must notice it)."""

    tensors: dict[str, Tensor]
    shape: Shape
    dropped: str = ""
    weights: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", {name: t.double().numpy() for name, t in self.tensors.items()})

    def condition(self, sigma: float) -> np.ndarray:
        """c, a vector."""
        angles = sigma * 10_000.0 ** (-np.arange(128) / 128)
        cosines, sines = np.cos(angles), np.sin(angles)
        features = np.concatenate([sines, cosines] if self.dropped == "cosines first" else [cosines, sines])
        w = self.weights
        hidden = silu(w["sigma_map.mlp.0.weight"] @ features + w["sigma_map.mlp.0.bias"])
        c = w["sigma_map.mlp.2.weight"] @ hidden + w["sigma_map.mlp.2.bias"]
        return c if self.dropped == "silu after the second layer" else silu(c)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """(x - mean)/√(variance + 1e-5) · weight."""
        eps = 1e-3 if self.dropped == "eps" else 1e-5
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return scaled if self.dropped == "norm weight" else scaled * self.weights[name]

    def attention(self, x: np.ndarray, block: str, positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
        """softmax(q kᵀ/√h) v head by head, q and k rotated in halves."""
        D, H = self.shape.width, self.shape.heads
        h = D // H
        qkv = x @ self.weights[f"{block}.attn_qkv.weight"].T
        angles = positions[:, None] * 10_000.0 ** (-2 * np.arange(h // 2) / h)
        mixed = np.zeros_like(x)
        for head in range(H):
            if self.dropped == "qkv layout":
                q, k, v = (qkv[:, (3 * head + part) * h : (3 * head + part + 1) * h] for part in range(3))
            else:
                q, k, v = (qkv[:, part * D + head * h : part * D + (head + 1) * h] for part in range(3))
            q, k = rotate(q, angles), rotate(k, angles)
            scores = np.where(visible, q @ k.T / math.sqrt(h), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head * h : (head + 1) * h] = weights / weights.sum(-1, keepdims=True) @ v
        return mixed @ self.weights[f"{block}.attn_out.weight"].T

    def feed_forward(self, x: np.ndarray, block: str) -> np.ndarray:
        """W₂ gelu(W₁ x + b₁) + b₂ with the tanh approximation."""
        w = self.weights
        hidden = x @ w[f"{block}.mlp.0.weight"].T + w[f"{block}.mlp.0.bias"]
        if self.dropped == "gelu tanh":
            active = 0.5 * hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        else:
            active = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return active @ w[f"{block}.mlp.2.weight"].T + w[f"{block}.mlp.2.bias"]

    def logits(
        self,
        inputs: np.ndarray,
        sigma: np.ndarray | None,
        *,
        positions: np.ndarray | None = None,
        visible: np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits [M, V] of one sequence of ids [M] or states [M, n + 1]; `sigma` [M] for each position."""
        M, D, w = len(inputs), self.shape.width, self.weights
        positions = np.arange(M) if positions is None else positions
        visible = np.ones((M, M), dtype=bool) if visible is None else visible
        if self.shape.states:
            x = inputs[:, : self.shape.rows] @ w["vocab_embed.embedding.weight"].T + w["vocab_embed.embedding.bias"]
        else:
            x = w["vocab_embed.embedding"][inputs]
        c = None if sigma is None else np.stack([self.condition(float(value)) for value in sigma])
        for i in range(self.shape.depth):
            block = f"blocks.{i}"
            if c is None:
                x = x + self.attention(self.norm(x, f"{block}.norm1.weight"), block, positions, visible)
                x = x + self.feed_forward(self.norm(x, f"{block}.norm2.weight"), block)
                continue
            parts = c @ w[f"{block}.adaLN_modulation.weight"].T + w[f"{block}.adaLN_modulation.bias"]
            shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (parts[:, j * D : (j + 1) * D] for j in range(6))
            if self.dropped == "chunk order":
                shift_a, scale_a, shift_m, scale_m = scale_a, shift_a, scale_m, shift_m
            one = 1.0 if self.dropped == "raw gates" else 0.0
            h = self.norm(x, f"{block}.norm1.weight") * (1 + scale_a) + shift_a
            x = x + (one + gate_a) * self.attention(h, block, positions, visible)
            h = self.norm(x, f"{block}.norm2.weight") * (1 + scale_m) + shift_m
            x = x + (one + gate_m) * self.feed_forward(h, block)
        x = self.norm(x, "output_layer.norm_final.weight")
        if c is not None and self.dropped != "modulated head":
            parts = c @ w["output_layer.adaLN_modulation.weight"].T + w["output_layer.adaLN_modulation.bias"]
            x = x * (1 + parts[:, D:]) + parts[:, :D]
        return x @ w["output_layer.linear.weight"].T + w["output_layer.linear.bias"]


CONVENTIONS = (
    "cosines first",
    "silu after the second layer",
    "raw gates",
    "chunk order",
    "qkv layout",
    "gelu tanh",
    "eps",
    "norm weight",
    "modulated head",
)


def silu(x: np.ndarray) -> np.ndarray:
    """x σ(x)."""
    return x / (1 + np.exp(-x))


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate the pairs (x_i, x_{i + h/2})."""
    half = x.shape[1] // 2
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], 1)


def write_checkpoint(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], prefix: str = "", **extra: Tensor
) -> Path:
    """A folder with config.json and model.safetensors; `extra` tensors have no prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = {f"{prefix}{name}": tensor.contiguous() for name, tensor in tensors.items()} | extra
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def import_folder(folder: Path, tokens: int | None = None) -> Model:
    """The model of a folder; with `tokens` as if its tokenizer had so many, by the same steps as an import."""
    if tokens is None:
        return ls.import_model(folder).eval()
    weights = open_checkpoint(folder)
    family = find_family(dict(weights.config), weights.tensors, str(folder))
    found = family.describe(dict(weights.config), weights.tensors, tokenizer_size=tokens)
    network = build_network(found.network)
    network.load_state_dict(dict(read_parameters(weights, match(family, found, weights.tensors), torch.float32)))
    made = ls.build(found.system, vocab_size=found.vocab_size, length=found.length, published=network, **found.options)
    return made.eval()
