"""Trained models on disk: load a folder that Model.save or a training run has written, or a bundled checkpoint.

Bundled checkpoints are small models that come with the package, addressed as pretrained:NAME. The folder of one
holds recipe.json and tokenizer.json as a run does, model.safetensors in half precision, card.md (data, cost, bound,
samples) and record.json: a text and the bound measured on it when the checkpoint was exported.
"""

from pathlib import Path
from typing import Any, NamedTuple

from logosphere.errors import UserError, suggest
from logosphere.io import EMA_WEIGHTS, RECIPE, REMASKER, WEIGHTS, load_strict, read_recipe, read_tensors
from logosphere.model import Model, Spec
from logosphere.systems import build

PREFIX = "pretrained:"
PREFIXES = (PREFIX, "box:")
"""Accepted prefixes; box: is the first name of pretrained: and stays valid."""
CARD, RECORD = "card.md", "record.json"
DISPLAY_ORDER = ("stories", "rdlm", "mdlm", "ar")
"""The order in which checkpoints are listed; the first one that is installed is the default."""


class SamplingDefaults(NamedTuple):
    """The sampler and temperature of a bundled checkpoint when the user sets neither."""

    sampler: str = "auto"
    temperature: float = 0.6


_SAMPLING_DEFAULTS = {"stories": SamplingDefaults("entropy", 0.8)}


def sampling_defaults(name: str) -> SamplingDefaults:
    """The sampling defaults of the bundled checkpoint with this name."""
    return _SAMPLING_DEFAULTS.get(name, SamplingDefaults())


def list_pretrained() -> list[str]:
    """The names of all bundled checkpoints, the default one first."""
    installed = sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{RECORD}"))
    ordered = [name for name in DISPLAY_ORDER if name in installed]
    return ordered + [name for name in installed if name not in DISPLAY_ORDER]


def resolve_folder(path: str | Path) -> Path:
    """The folder of a model: of a bundled checkpoint for pretrained:NAME or box:NAME, else the path itself."""
    prefix = next((prefix for prefix in PREFIXES if str(path).startswith(prefix)), None)
    if prefix is None:
        return Path(path)
    name, installed = str(path).removeprefix(prefix), list_pretrained()
    if name not in installed:
        none = " This installation has none; train a model with: logosphere train"
        raise UserError(f"There is no bundled checkpoint '{name}'.{suggest(name, installed) if installed else none}")
    return Path(__file__).parent / name


def is_bundled(folder: Path) -> bool:
    """Whether a folder belongs to the package, so that nothing may be written to it."""
    return folder.parent == Path(__file__).parent


def default_pretrained() -> Path | None:
    """The folder of the default checkpoint, or None if the package has no checkpoints."""
    installed = list_pretrained()
    return resolve_folder(f"{PREFIX}{installed[0]}") if installed else None


def load(path: str | Path, options: dict[str, Any] | None = None) -> Model:
    """The model in a folder or of pretrained:NAME, with EMA weights where there are any.

    `options` replace options of its system that it was trained with, where its weights allow it: {"path": "joint"}.
    """
    folder = resolve_folder(path)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    ema = folder / EMA_WEIGHTS
    return load_weights(folder, ema if ema.exists() else folder / WEIGHTS, options)


def load_weights(folder: Path, weights: Path, options: dict[str, Any] | None = None) -> Model:
    """The model in a folder, with the weights of this file."""
    model = build_from_recipe(folder, options)
    load_strict(model, read_tensors(weights), weights)
    if model.remasker is not None and (folder / REMASKER).exists():
        load_strict(model.remasker, read_tensors(folder / REMASKER), folder / REMASKER)
    return model.eval()


def build_from_recipe(folder: Path, options: dict[str, Any] | None = None) -> Model:
    """A new model as the recipe of a folder describes it, with other `options` where they are given.

    Another path leaves the network as it is, although the defaults of its options may depend on the path.
    """
    spec, changed = read_spec(folder), dict(options or {})
    try:
        path = changed.pop("path", None)
        model = build(
            spec.system, vocab_size=spec.vocab_size, length=spec.length, preset=spec.preset,
            **(spec.options | changed),
        )  # fmt: skip
        return model if path is None else model.with_path(path)
    except (TypeError, ValueError) as problem:
        recipe = folder / RECIPE
        raise UserError(f"{recipe} describes no model that can be built ({problem}); restore it from a copy.") from None


def read_spec(folder: Path) -> Spec:
    """The specification of the model in a folder."""
    recipe, content = folder / RECIPE, read_recipe(folder / RECIPE).get("model")
    try:
        spec = Spec(**content) if isinstance(content, dict) else None
    except TypeError:
        spec = None
    if spec is None or not _is_valid(spec):
        raise UserError(f"{recipe} has no valid specification of a model; restore it from a copy.")
    return spec


def _is_valid(spec: Spec) -> bool:
    names, sizes = (spec.system, spec.preset), (spec.vocab_size, spec.length)
    return (
        all(isinstance(name, str) for name in names)
        and isinstance(spec.options, dict)
        and all(type(size) is int for size in sizes)
    )
