"""Encoders of the BERT and MPNet families, read from a folder with config.json and model.safetensors.

Only the part that computes hidden states is implemented (Devlin et al. 2018; Song et al. 2020).
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.types import Float, Int64
from logosphere.untrusted import read_regular

MAX_CONFIG, MAX_DEPTH, MAX_SIZE = 1 << 20, 256, 1 << 24
"""Bytes of a config.json, and its numbers of layers and of anything else, at most."""


class BertLayer(nn.Module):
    """Self-attention, then a feed-forward layer, each with a residual connection and LayerNorm after it."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, epsilon)
        self.expand, self.contract = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, epsilon)

    def forward(self, h: Float[Tensor, "B M D"], bias: Float[Tensor, "1 H M M"] | None = None) -> Tensor:
        """`bias` is added to the logits of the attention."""
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)
        h = self.attention_norm(h + self.out(mixed))
        return self.norm(h + self.contract(F.gelu(self.expand(h))))


class Bert(nn.Module):
    """Word pieces to the hidden states after a layer; layer 0 are the embeddings."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        width, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.width, self.depth = width, int(config["num_hidden_layers"])
        self.vocab_size, self.max_length = int(config["vocab_size"]), int(config["max_position_embeddings"])
        self.words, self.positions = nn.Embedding(self.vocab_size, width), nn.Embedding(self.max_length, width)
        self.types, self.norm = nn.Embedding(int(config["type_vocab_size"]), width), nn.LayerNorm(width, epsilon)
        sizes = (width, int(config["num_attention_heads"]), int(config["intermediate_size"]), epsilon)
        self.layers = nn.ModuleList(BertLayer(*sizes) for _ in range(self.depth))

    def forward(self, pieces: Int64[Tensor, "B M"], layer: int) -> Float[Tensor, "B M D"]:
        h = self.norm(self.words(pieces) + self.positions.weight[: pieces.shape[1]] + self.types.weight[0])
        for block in self.layers[:layer]:
            h = block(h)
        return h


class MPNet(nn.Module):
    """BERT without token types, and with a learned bias of the attention for each bucket of relative positions.

    The first position of a text has the number 2: those of Fairseq begin after the number of the padding.
    """

    FIRST_POSITION, FARTHEST = 2, 128

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        width, epsilon, heads = (
            int(config["hidden_size"]),
            float(config["layer_norm_eps"]),
            int(config["num_attention_heads"]),
        )
        self.width, self.depth = width, int(config["num_hidden_layers"])
        rows, self.buckets = int(config["max_position_embeddings"]), int(config["relative_attention_num_buckets"])
        self.vocab_size, self.max_length = int(config["vocab_size"]), rows - self.FIRST_POSITION
        self.words, self.positions = nn.Embedding(self.vocab_size, width), nn.Embedding(rows, width)
        self.norm, self.bias = nn.LayerNorm(width, epsilon), nn.Embedding(self.buckets, heads)
        sizes = (width, heads, int(config["intermediate_size"]), epsilon)
        self.layers = nn.ModuleList(BertLayer(*sizes) for _ in range(self.depth))

    def forward(self, pieces: Int64[Tensor, "B M"], layer: int) -> Float[Tensor, "B M D"]:
        count = pieces.shape[1]
        h = self.norm(self.words(pieces) + self.positions.weight[self.FIRST_POSITION : self.FIRST_POSITION + count])
        bias = self.bias(relative_buckets(count, self.buckets, self.FARTHEST).to(pieces.device))
        bias = bias.permute(2, 0, 1)[None]
        for block in self.layers[:layer]:
            h = block(h, bias)
        return h


def relative_buckets(count: int, buckets: int, farthest: int) -> Int64[Tensor, "M M"]:
    """The bucket of key j for query i (Raffel et al. 2020): half of them for j > i; far ones in log steps."""
    offset = torch.arange(count) - torch.arange(count)[:, None]
    half, distance = buckets // 2, offset.abs()
    exact = half // 2
    steps = (distance.clamp_min(1) / exact).log() / math.log(farthest / exact) * (half - exact)
    far = (exact + steps.long()).clamp_max(half - 1)
    return half * (offset > 0) + torch.where(distance < exact, distance, far)


Encoder = Bert | MPNet
FAMILIES: dict[str, type[Bert] | type[MPNet]] = {"bert": Bert, "mpnet": MPNet}
"""Families by `model_type` in config.json."""

BERT_NAMES = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "layer_norm": "output.LayerNorm",
}
"""Names of the modules in published files."""
MPNET_NAMES = BERT_NAMES | {
    "bias": "encoder.relative_attention_bias",
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "out": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}


def load_bert(folder: Path) -> Encoder:
    """The model of a folder with config.json and model.safetensors; names may have the prefix of their model."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads(read_regular(folder / "config.json", MAX_CONFIG))
        family = config.get("model_type", "bert")
        if family not in FAMILIES:
            raise ValueError(f"its family is {family!r}; bert and mpnet can be read")
        sizes = [value for value in config.values() if type(value) is int]
        if int(config["num_hidden_layers"]) > MAX_DEPTH or max(sizes) > MAX_SIZE or min(sizes) < 0:
            raise ValueError("its sizes are out of range")
        names = MPNET_NAMES if family == "mpnet" else BERT_NAMES
        with torch.device("meta"):  # the weights are those of the file
            model = FAMILIES[family](config)
        tensors = {name.removeprefix(f"{family}."): x for name, x in load_file(folder / "model.safetensors").items()}
        wanted = {name: tensors[published_name(name, names)].float() for name in model.state_dict()}
        model.load_state_dict(wanted, assign=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as problem:
        raise UserError(
            f"The encoder in {folder} cannot be read ({problem}); it needs the config.json and model.safetensors of a "
            "BERT or MPNet model."
        ) from None
    return model.eval().requires_grad_(False)


def published_name(name: str, names: dict[str, str] = BERT_NAMES) -> str:
    """layers.0.query.weight is encoder.layer.0.attention.self.query.weight."""
    *layer, part, kind = name.split(".")
    if not layer:
        return f"{names[part]}.{kind}"
    return f"encoder.layer.{layer[1]}.{names['layer_norm' if part == 'norm' else part]}.{kind}"
