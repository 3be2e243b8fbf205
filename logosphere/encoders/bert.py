"""BERT (Devlin et al. 2018), read from a safetensors file: no more of it than hidden states need."""

import json
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.types import Float, Int64


class BertLayer(nn.Module):
    """Attention, then a feed-forward layer; each is added first and normalised afterwards."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, epsilon)
        self.expand, self.contract = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, epsilon)

    def forward(self, h: Float[Tensor, "B M D"]) -> Float[Tensor, "B M D"]:
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = self.attention_norm(h + self.out(mixed))
        return self.norm(h + self.contract(F.gelu(self.expand(h))))


class Bert(nn.Module):
    """Word pieces to the hidden states after each layer; layer 0 are the embeddings."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        width, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.width, self.depth = width, int(config["num_hidden_layers"])
        self.vocab_size, self.longest = int(config["vocab_size"]), int(config["max_position_embeddings"])
        self.words, self.places = nn.Embedding(self.vocab_size, width), nn.Embedding(self.longest, width)
        self.kinds, self.norm = nn.Embedding(int(config["type_vocab_size"]), width), nn.LayerNorm(width, epsilon)
        sizes = (width, int(config["num_attention_heads"]), int(config["intermediate_size"]), epsilon)
        self.layers = nn.ModuleList(BertLayer(*sizes) for _ in range(self.depth))

    def forward(self, pieces: Int64[Tensor, "B M"], layer: int) -> Float[Tensor, "B M D"]:
        h = self.norm(self.words(pieces) + self.places.weight[: pieces.shape[1]] + self.kinds.weight[0])
        for block in self.layers[:layer]:
            h = block(h)
        return h


NAMES = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
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
"""What the parts are called in published files."""


def load_bert(folder: Path) -> Bert:
    """The model of a folder with config.json and model.safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model = Bert(json.loads((folder / "config.json").read_bytes()))
        tensors = load_file(folder / "model.safetensors")
        model.load_state_dict({name: tensors[_published(name)] for name in model.state_dict()})
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as problem:
        raise UserError(f"The encoder in {folder} cannot be read ({problem}); install its package again.") from None
    return model.eval().requires_grad_(False)


def _published(name: str) -> str:
    """layers.0.query.weight is encoder.layer.0.attention.self.query.weight."""
    *place, part, kind = name.split(".")
    if not place:
        return f"{NAMES[part]}.{kind}"
    return f"encoder.layer.{place[1]}.{NAMES['layer_norm' if part == 'norm' else part]}.{kind}"


def framed(pieces: Int64[Tensor, "B L"], first: int, last: int) -> Int64[Tensor, "B M"]:
    """The pieces between the marks of a beginning and an end, as the encoder has always seen them."""
    return F.pad(F.pad(pieces, (1, 0), value=first), (0, 1), value=last)
