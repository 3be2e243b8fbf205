"""A classifier of noisy states with the names of its labels, kept in a folder: its weights and classifier.json."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError, suggest
from logosphere.io import load_strict, read_recipe, read_tensors, write_recipe, write_tensors
from logosphere.model import Model
from logosphere.networks.classifier import NoisyClassifier
from logosphere.networks.config import NetworkConfig
from logosphere.sampling.guidance import Edits, Gradients, Guide

ABOUT, CLASSIFIER = "classifier.json", "classifier.safetensors"
AGAIN = "teach another with: logosphere train-classifier RUN"


@dataclass(frozen=True)
class Labeller:
    """Knows what noisy states of one model, and of others with its noise, will be texts of."""

    classifier: NoisyClassifier
    labels: tuple[str, ...]
    """Names, in the order of their numbers."""

    @staticmethod
    def fresh(model: Model, labels: Sequence[str], network: NetworkConfig | None = None) -> "Labeller":
        """One that knows nothing yet (training/auxiliary.py)."""
        classifier = NoisyClassifier(model.process, model.length, len(labels), network)
        return Labeller(classifier.to(model.device), tuple(labels))

    def number(self, label: str) -> int:
        """The number of a label."""
        if label not in self.labels:
            raise UserError(f"The classifier knows no label '{label}'.{suggest(label, self.labels)}")
        return self.labels.index(label)

    def guide(self, model: Model, label: str, n: int, strength: float = 1.0, *, exact: bool = False) -> Guide:
        """Guidance of n texts towards a label: by edits of discrete states, by gradients of continuous ones."""
        labels = torch.full((n,), self.number(label))
        if isinstance(model.process.codec, TokenCodec):
            return Edits(self.classifier, labels, strength, exact)
        if exact:
            raise UserError("Only discrete diffusion such as mdlm or udlm has edits to be asked about one by one.")
        return Gradients(self.classifier, labels, strength)

    def save(self, folder: str | Path, model: Model, tokenizer: str = "") -> None:
        """Write the classifier into a folder, with the noise it has learnt and the fingerprint of its tokenizer."""
        about = {
            "noise": _noise(model),
            "tokenizer": tokenizer,
            "labels": list(self.labels),
            "network": asdict(self.classifier.network),
        }
        write_tensors(Path(folder) / CLASSIFIER, self.classifier.state_dict())
        write_recipe(Path(folder) / ABOUT, {"classifier": about})

    @staticmethod
    def load(folder: str | Path, model: Model, tokenizer: str = "") -> "Labeller":
        """The classifier in a folder, if it has learnt the noise of this model and the tokens of this tokenizer."""
        folder = Path(folder)
        if not (folder / ABOUT).is_file():
            raise UserError(f"There is no classifier in {folder}; {AGAIN} --out {folder}")
        about = _sound(read_recipe(folder / ABOUT).get("classifier"), folder / ABOUT)
        learnt, wanted = about["noise"], _noise(model)
        for what in wanted:
            if learnt.get(what) != wanted[what]:
                raise UserError(
                    f"The classifier in {folder} has learnt noise with {what} = {learnt.get(what)}, but this model has "
                    f"{wanted[what]}; {AGAIN}"
                )
        if tokenizer and about["tokenizer"] not in ("", tokenizer):
            raise UserError(f"The classifier in {folder} reads other tokens than this model writes; {AGAIN}")
        try:
            network = NetworkConfig(**about["network"])
        except TypeError as problem:
            raise UserError(f"{folder / ABOUT} describes no network ({problem}); restore it from a copy.") from None
        found = Labeller.fresh(model, about["labels"], network)
        load_strict(found.classifier, read_tensors(folder / CLASSIFIER), folder / CLASSIFIER)
        found.classifier.eval().requires_grad_(False)
        return found


def _noise(model: Model) -> dict[str, Any]:
    """What a classifier must share with a model: the states, and how they become noise; not the size of its network."""
    if model.spec is None:
        raise UserError("Only models made by build(…) can have a classifier that is kept.")
    sizes = {field.name for field in fields(NetworkConfig)}
    options = {name: value for name, value in model.spec.options.items() if name not in sizes}
    noise = {"system": model.spec.system, "vocabulary": model.vocab_size, "length": model.length, "options": options}
    same: dict[str, Any] = json.loads(json.dumps(noise))  # as it reads on disk: tuples are lists there
    return same


def _sound(about: Any, path: Path) -> dict[str, Any]:
    """What classifier.json says, if it says everything."""
    kinds = {"noise": dict, "tokenizer": str, "labels": list, "network": dict}
    if not isinstance(about, dict) or any(not isinstance(about.get(part), kind) for part, kind in kinds.items()):
        raise UserError(f"{path} does not describe a classifier; restore it from a copy.")
    if not all(isinstance(label, str) for label in about["labels"]):
        raise UserError(f"{path} does not name its labels; restore it from a copy.")
    return about
