"""Warm starts: trainings that start from the averaged weights of another run or of a bundled checkpoint."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.io import load_strict, read_tensors
from logosphere.model import Model, Spec
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run
from logosphere.runs.training_record import ParentCheckpoint

FREE = {"dropout"}
"""Options that may differ from the parent: they have no weights and do not change the model."""


def load_parent(name: str, model: Model, tokenizer: Tokenizer, labels: Sequence[str]) -> ParentCheckpoint:
    """Load the weights of a parent into a fresh model; a parent that does not fit is refused with the reason."""
    parent = Run(name)
    weights = parent.weights_file()
    assert model.spec is not None
    if differences := _differences(parent, model.spec, tokenizer, labels):
        raise UserError(f"A training cannot begin with {name}, which differs from it in {'; '.join(differences)}.")
    load_strict(model, read_tensors(weights), weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return ParentCheckpoint(name, weights, digest, parent.trainings)


def config_from_parent(name: str) -> TrainConfig:
    """The configuration of a parent as the default of a training that starts from it.

    The seed changes, so that the data come in another order; settings of the parent's machine are not taken over.
    """
    config, plain = Run(name).config, TrainConfig()
    return replace(
        config, begin=name, seed=config.seed + 1, precision=plain.precision, device=plain.device,
        compile=plain.compile, shard=plain.shard, recompute=plain.recompute,
    )  # fmt: skip


def tokenizer_for(config: TrainConfig) -> str | Tokenizer:
    """The parent's own tokenizer, unless another is asked for: a new one would number its tokens differently."""
    if config.begin is None:
        return config.tokenizer
    parent = Run(config.begin)
    return parent.tokenizer if config.tokenizer in ("auto", parent.config.tokenizer) else config.tokenizer


def _differences(parent: Run, spec: Spec, tokenizer: Tokenizer, labels: Sequence[str]) -> list[str]:
    """How the parent differs from the model to be trained, in words."""
    theirs: dict[str, Any] = asdict(parent.spec)
    ours: dict[str, Any] = asdict(spec)
    rows = [(what, theirs[key], ours[key]) for what, key in _NAMES.items()]
    one, two = theirs["options"], ours["options"]
    rows += [(name, one.get(name), two.get(name)) for name in sorted((one.keys() | two.keys()) - FREE)]
    rows += [("labels", ", ".join(parent.labels), ", ".join(labels))]
    found = [f"{what} ({_shown(a)} there, {_shown(b)} here)" for what, a, b in rows if a != b]
    if not found and parent.tokenizer.fingerprint != tokenizer.fingerprint:
        found = [f"tokenizer ({parent.tokenizer.name} there, {tokenizer.name} here, of equal size)"]
    return found


_NAMES = {"system": "system", "vocabulary": "vocab_size", "length": "length"}


def _shown(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
