"""A warm start: a training that begins with the averaged weights of another run or of a model in the box."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Model, Spec
from logosphere.recipes.recipe import Recipe
from logosphere.runs.folder import RunFolder
from logosphere.runs.history import Beginning
from logosphere.weights import fill, read_tensors

FREE = {"dropout"}
"""What a network may change between trainings: it has no weights and measures nothing."""


def beginning(name: str, model: Model, tokenizer: Tokenizer, labels: Sequence[str]) -> Beginning:
    """Put the weights of a parent into a fresh model of this text; refused, with the reason, if they do not fit."""
    parent = RunFolder(name)
    weights = parent.weights_file()
    assert model.spec is not None
    if differences := _differences(parent, model.spec, tokenizer, labels):
        raise UserError(f"A training cannot begin with {name}, which differs from it in {'; '.join(differences)}.")
    fill(model, read_tensors(weights), weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    return Beginning(name, weights, digest, parent.trainings)


def as_parent(name: str) -> Recipe:
    """The recipe of a parent as the default of a training that begins with it.

    The text comes in another order, and what suited the parent's machine is not asked of this one.
    """
    recipe, plain = RunFolder(name).recipe, Recipe()
    return replace(
        recipe, begin=name, seed=recipe.seed + 1, precision=plain.precision, device=plain.device,
        compile=plain.compile, shard=plain.shard, recompute=plain.recompute,
    )  # fmt: skip


def tokenizer_of(recipe: Recipe) -> str | Tokenizer:
    """The parent's own tokenizer, unless another is asked for: one made anew would number its pieces otherwise."""
    if recipe.begin is None:
        return recipe.tokenizer
    parent = RunFolder(recipe.begin)
    return parent.tokenizer if recipe.tokenizer in ("auto", parent.recipe.tokenizer) else recipe.tokenizer


def _differences(parent: RunFolder, spec: Spec, tokenizer: Tokenizer, labels: Sequence[str]) -> list[str]:
    """In what the parent is another model than the one that is to be trained, in words."""
    theirs: dict[str, Any] = asdict(parent.spec)
    ours: dict[str, Any] = asdict(spec)
    rows = [(what, theirs[key], ours[key]) for what, key in _NAMES.items()]
    one, two = theirs["options"], ours["options"]
    rows += [(name, one.get(name), two.get(name)) for name in sorted((one.keys() | two.keys()) - FREE)]
    rows += [("labels", ", ".join(parent.labels), ", ".join(labels))]
    told = [f"{what} ({_said(a)} there, {_said(b)} here)" for what, a, b in rows if a != b]
    if not told and parent.tokenizer.fingerprint != tokenizer.fingerprint:
        told = [f"tokenizer ({parent.tokenizer.name} there, {tokenizer.name} here, of equal size)"]
    return told


_NAMES = {"system": "system", "vocabulary": "vocab_size", "length": "length"}


def _said(value: object) -> str:
    return "nothing" if value is None or value == "" else str(value)
