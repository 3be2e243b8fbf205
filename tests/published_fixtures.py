"""Folders of published checkpoints with random weights, LLaDA-shaped, and a small family of two layers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from logosphere.checkpoints.families import Description, Family, Piece, Tensors
from logosphere.networks.attention import KVCache
from logosphere.networks.published.base import PublishedNetwork
from logosphere.networks.published.config import PublishedConfig
from logosphere.types import Bool, Float, Int64

SIZES: dict[str, int] = {"rows": 40, "width": 16, "depth": 2, "heads": 2, "inner": 32, "length": 8, "mask": 38}


def llada_config(**sizes: int) -> dict[str, Any]:
    """config.json as LLaDA's names have it."""
    size = SIZES | sizes
    return {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": size["width"], "n_layers": size["depth"],
        "n_heads": size["heads"], "n_kv_heads": size["heads"], "mlp_hidden_size": size["inner"],
        "embedding_size": size["rows"], "vocab_size": size["rows"], "max_sequence_length": size["length"],
        "block_type": "llama", "activation_type": "silu", "layer_norm_type": "rms", "weight_tying": False,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "mask_token_id": size["mask"], "eos_token_id": 1,
        "include_bias": False, "include_qkv_bias": False, "rope": True, "pad_token_id": 1,
    }  # fmt: skip


def llada_shapes(**sizes: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a LLaDA-shaped checkpoint."""
    size = SIZES | sizes
    rows, width, inner = size["rows"], size["width"], size["inner"]
    shapes: dict[str, tuple[int, ...]] = {"model.transformer.wte.weight": (rows, width)}
    for i in range(size["depth"]):
        block = f"model.transformer.blocks.{i}"
        shapes |= {f"{block}.{name}.weight": (width, width) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
        shapes |= {f"{block}.{name}.weight": (width,) for name in ("attn_norm", "ff_norm")}
        shapes |= {f"{block}.{name}.weight": (inner, width) for name in ("ff_proj", "up_proj")}
        shapes[f"{block}.ff_out.weight"] = (width, inner)
    return shapes | {"model.transformer.ln_f.weight": (width,), "model.transformer.ff_out.weight": (rows, width)}


def random_tensors(
    shapes: Mapping[str, tuple[int, ...]], seed: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, shape in shapes.items():
        scale = 0.3 if len(shape) > 1 else 0.1
        drawn[name] = ((len(shape) == 1) + scale * torch.randn(shape, generator=rng)).to(dtype)
    return drawn


def write_llada(
    folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, shards: int = 1, **sizes: int
) -> Path:
    """A folder with config.json and weights, in shards with an index if there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llada_config(**sizes)))
    write_shards(folder, random_tensors(llada_shapes(**sizes), seed, dtype), shards)
    return folder


def write_shards(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = list(tensors)
    places: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number::shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# ---- a family of two layers ------------------------------------------------------------------------------------------


class SmallBlock(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        D, self.heads = config.width, config.heads
        self.norm1, self.norm2 = nn.RMSNorm(D, config.eps), nn.RMSNorm(D, config.eps)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(D, config.inner, bias=False), nn.Linear(D, config.inner, bias=False)
        self.down = nn.Linear(config.inner, D, bias=False)

    def forward(self, h: Tensor, table: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        x = self.norm1(h)
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotate(q, table), rotate(k, table)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2).flatten(2)
        h = h + self.o(mixed)
        x = self.norm2(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary positions in halves."""
    first, second = x.float().chunk(2, -1)
    cos, sin = table.cos(), table.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class SmallNetwork(PublishedNetwork):
    """A Llama-type network without caches."""

    def __init__(self, config: PublishedConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.rows, config.width)
        self.blocks = nn.ModuleList(SmallBlock(config) for _ in range(config.depth))
        self.norm, self.out = nn.RMSNorm(config.width, config.eps), nn.Linear(config.width, config.rows, bias=False)

    def features(
        self,
        inputs: Tensor,
        condition: Float[Tensor, "B M"] | None,
        *,
        positions: Int64[Tensor, " M"] | None = None,
        mask: Bool[Tensor, "M N"] | None = None,
        causal: bool = False,
        caches: Sequence[KVCache] | None = None,
    ) -> Float[Tensor, "B M D"]:
        at = torch.arange(inputs.shape[1], device=inputs.device) if positions is None else positions
        half = self.config.head_width // 2
        frequencies = self.config.rotary_base ** (-torch.arange(half, device=inputs.device).float() / half)
        h, table = self.embedding(inputs), at[:, None] * frequencies
        for block in self.blocks:
            h = block(h, table, mask, causal)
        found: Tensor = self.norm(h)
        return found

    def head(self, features: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        logits: Tensor = self.out(features)
        return logits

    def new_caches(self, batch: int, length: int) -> list[KVCache]:
        raise NotImplementedError

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.out.weight,)


class SmallFamily(Family):
    """Checkpoints with LLaDA's names."""

    name, models = "small", ("tests/small",)

    def recognises(self, config: Mapping[str, Any], tensors: Tensors) -> bool:
        return "model.transformer.blocks.0.ff_proj.weight" in tensors

    def describe(
        self, config: Mapping[str, Any], tensors: Tensors, *, source: str = "", tokenizer_size: int | None = None
    ) -> Description:
        rows, width = tensors["model.transformer.wte.weight"].shape
        heads = int(config["n_heads"])
        network = PublishedConfig(
            "llama", rows, width, int(config["n_layers"]), heads, heads, width // heads, int(config["mlp_hidden_size"]),
            int(config["max_sequence_length"]), mask_id=config.get("mask_token_id"), shift=config.get("shift", False),
            rotary_base=float(config["rope_theta"]), attention="blocks" if "block_size" in config else "full",
        )  # fmt: skip
        vocabulary = tokenizer_size or rows - 2
        options = {"block": config["block_size"]} if "block_size" in config else {}
        system = "bd3lm" if options else "mdlm"
        special = {"eos": config["eos_token_id"]} | (
            {"bos": config["bos_token_id"]} if "bos_token_id" in config else {}
        )
        return Description(self.name, system, vocabulary, network.positions, network, options, special)

    def pieces(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Piece]:
        found = {
            "embedding.weight": Piece(("model.transformer.wte.weight",)),
            "norm.weight": Piece(("model.transformer.ln_f.weight",)),
            "out.weight": Piece(("model.transformer.ff_out.weight",)),
        }
        names = {
            "norm1": "attn_norm", "norm2": "ff_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out",
            "gate": "ff_proj", "up": "up_proj", "down": "ff_out",
        }  # fmt: skip
        for i in range(config.depth):
            for ours, theirs in names.items():
                found[f"blocks.{i}.{ours}.weight"] = Piece((f"model.transformer.blocks.{i}.{theirs}.weight",))
        return found

    def tables(self, config: PublishedConfig, tensors: Tensors) -> dict[str, Tensor]:
        name = "model.transformer.rotary.inv_freq"
        half = config.head_width // 2
        table = config.rotary_base ** (-torch.arange(half).double() / half)
        return {name: table} if name in tensors else {}
