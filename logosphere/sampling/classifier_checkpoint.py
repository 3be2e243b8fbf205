"""Checkpoints of classifiers: a folder with the weights of a classifier of noisy states and classifier.json."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from logosphere.errors import UserError, suggest
from logosphere.io import FILES, hash_files, load_strict, read_recipe, read_tensors, write_recipe, write_tensors
from logosphere.model import Model
from logosphere.networks.classifier import NoisyClassifier
from logosphere.networks.config import NetworkConfig
from logosphere.sampling.guidance import DiscreteClassifierGuidance, Gradients, Guide

ABOUT, CLASSIFIER = "classifier.json", "classifier.safetensors"
HOW_TO_TRAIN = "train one with: logosphere train-classifier RUN"


@dataclass(frozen=True)
class ClassifierCheckpoint:
    """A classifier of noisy states, for models with one forward process, and the names of its labels."""

    classifier: NoisyClassifier
    labels: tuple[str, ...]
    """Names of the classes in order."""

    @staticmethod
    def fresh(model: Model, labels: Sequence[str], network: NetworkConfig | None = None) -> "ClassifierCheckpoint":
        """An untrained classifier for a model (networks/classifier.py)."""
        classifier = NoisyClassifier(model.process, model.length, len(labels), network)
        return ClassifierCheckpoint(classifier.to(model.device), tuple(labels))

    def class_index(self, label: str) -> int:
        """The class of a label."""
        if label not in self.labels:
            raise UserError(f"The classifier has no label '{label}'.{suggest(label, self.labels)}")
        return self.labels.index(label)

    def guide(self, model: Model, label: str, n: int, strength: float = 1.0, *, exact: bool = False) -> Guide:
        """Guidance of n sequences towards a label: by edits of discrete states, by gradients for continuous ones."""
        labels = torch.full((n,), self.class_index(label))
        if model.process.codec.is_discrete:
            return DiscreteClassifierGuidance(self.classifier, labels, strength, exact)
        if exact:
            raise UserError(
                "exact=True needs discrete diffusion such as mdlm or udlm; continuous states have no edits."
            )
        return Gradients(self.classifier, labels, strength)

    def save(self, folder: str | Path, model: Model, tokenizer: str = "") -> None:
        """Write the classifier into a folder, with its forward process and the fingerprint of its tokenizer."""
        about = {
            "noise": _forward_process(model),
            "tokenizer": tokenizer,
            "labels": list(self.labels),
            "network": asdict(self.classifier.network),
        }
        write_tensors(Path(folder) / CLASSIFIER, self.classifier.state_dict())
        write_recipe(Path(folder) / ABOUT, {"classifier": about} | hash_files(Path(folder), CLASSIFIER))

    @staticmethod
    def load(folder: str | Path, model: Model, tokenizer: str = "") -> "ClassifierCheckpoint":
        """The classifier in a folder; an error if it was trained for another forward process or tokenizer."""
        folder = Path(folder)
        if not (folder / ABOUT).is_file():
            raise UserError(f"There is no classifier in {folder}; {HOW_TO_TRAIN} --out {folder}")
        content = read_recipe(folder / ABOUT)
        about, hashes = _checked(content.get("classifier"), folder / ABOUT), content.get(FILES)
        sha256 = hashes.get(CLASSIFIER) if isinstance(hashes, dict) else None
        trained, expected = about["noise"], _forward_process(model)
        for name in expected:
            if trained.get(name) != expected[name]:
                raise UserError(
                    f"The classifier in {folder} was trained with {name} = {trained.get(name)}, but this model has "
                    f"{expected[name]}; {HOW_TO_TRAIN}"
                )
        if tokenizer and about["tokenizer"] not in ("", tokenizer):
            raise UserError(
                f"The classifier in {folder} was trained with another tokenizer than this model; {HOW_TO_TRAIN}"
            )
        try:
            network = NetworkConfig(**about["network"])
        except TypeError as problem:
            raise UserError(
                f"{folder / ABOUT} does not describe a network ({problem}); restore it from a copy."
            ) from None
        found = ClassifierCheckpoint.fresh(model, about["labels"], network)
        load_strict(found.classifier, read_tensors(folder / CLASSIFIER, sha256), folder / CLASSIFIER)
        found.classifier.eval().requires_grad_(False)
        return found


def _forward_process(model: Model) -> dict[str, Any]:
    """What a classifier and a model must have in common: states and forward process, not the size of the network."""
    if model.spec is None:
        raise UserError("A classifier can only be saved for a model made by build(…).")
    sizes = {field.name for field in fields(NetworkConfig)}
    options = {name: value for name, value in model.spec.options.items() if name not in sizes}
    noise = {"system": model.spec.system, "vocabulary": model.vocab_size, "length": model.length, "options": options}
    same: dict[str, Any] = json.loads(json.dumps(noise))  # as in the file, where tuples are lists
    return same


def _checked(about: Any, path: Path) -> dict[str, Any]:
    """The content of classifier.json; an error if a field is missing."""
    kinds = {"noise": dict, "tokenizer": str, "labels": list, "network": dict}
    if not isinstance(about, dict) or any(not isinstance(about.get(part), kind) for part, kind in kinds.items()):
        raise UserError(f"{path} does not describe a classifier; restore it from a copy.")
    if not all(isinstance(label, str) for label in about["labels"]):
        raise UserError(f"{path} does not have label names; restore it from a copy.")
    return about
