"""Models from disk: folders that Model.save or a training run has written."""

from pathlib import Path
from typing import Any

from logosphere.errors import UserError
from logosphere.model import Model, Spec
from logosphere.pretrained import resolve_folder
from logosphere.systems import build
from logosphere.weights import AVERAGED, RECIPE, REMASKER, WEIGHTS, fill, read_recipe, read_tensors


def load(path: str | Path, options: dict[str, Any] | None = None) -> Model:
    """The model in a folder, with averaged weights where there are any; pretrained:NAME is a bundled one.

    With `options` it is built with other options of its system than it was trained with, where its weights allow it:
    {"path": "joint"}.
    """
    folder = resolve_folder(path)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    averaged = folder / AVERAGED
    return load_weights(folder, averaged if averaged.exists() else folder / WEIGHTS, options)


def load_weights(folder: Path, weights: Path, options: dict[str, Any] | None = None) -> Model:
    """The model in a folder, with the weights of this file."""
    model = rebuild(folder, options)
    fill(model, read_tensors(weights), weights)
    if model.remasker is not None and (folder / REMASKER).exists():
        fill(model.remasker, read_tensors(folder / REMASKER), folder / REMASKER)
    return model.eval()


def rebuild(folder: Path, options: dict[str, Any] | None = None) -> Model:
    """The model of a folder, freshly built, with other options where they are given."""
    spec = spec_of(folder)
    try:
        return build(
            spec.system, vocab_size=spec.vocab_size, length=spec.length, preset=spec.preset,
            **(spec.options | (options or {})),
        )  # fmt: skip
    except (TypeError, ValueError) as problem:
        place = folder / RECIPE
        raise UserError(f"{place} describes no model that can be built ({problem}); restore it from a copy.") from None


def spec_of(folder: Path) -> Spec:
    """What a folder says of its model."""
    place, content = folder / RECIPE, read_recipe(folder / RECIPE).get("model")
    try:
        spec = Spec(**content) if isinstance(content, dict) else None
    except TypeError:
        spec = None
    if spec is None or not _sound(spec):
        raise UserError(f"{place} does not say which model it belongs to; restore it from a copy.")
    return spec


def _sound(spec: Spec) -> bool:
    sizes = (spec.vocab_size, spec.length)
    names = (spec.system, spec.preset)
    return (
        all(isinstance(name, str) for name in names)
        and isinstance(spec.options, dict)
        and all(type(size) is int for size in sizes)
    )
