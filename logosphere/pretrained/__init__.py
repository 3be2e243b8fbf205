"""Trained models on disk: load a folder that Model.save or a training run has written, or a bundled checkpoint.

A model that was published with `logosphere publish` or Model.push_to_hub is loaded by hf:OWNER/NAME.

Bundled checkpoints are small models that come with the package, addressed as pretrained:NAME. The folder of one
holds recipe.json and tokenizer.json as a run does, model.safetensors in half precision, card.md (data, cost, bound,
samples) and record.json: a text and the bound measured on it when the checkpoint was exported.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from logosphere.checkpoints.hub import fetch_run, is_hub
from logosphere.data.tokenizer_registry import load_tokenizer
from logosphere.errors import UserError, shorten, suggest
from logosphere.io import (
    EMA_WEIGHTS,
    RECIPE,
    REMASKER,
    TOKENIZER,
    WEIGHTS,
    check_link,
    is_written_here,
    load_strict,
    read_recipe,
    read_tensors,
)
from logosphere.model import Model, Spec
from logosphere.networks.published.lora import LoRAConfig, frozen_names
from logosphere.networks.registry import is_registered
from logosphere.origin import check_encoder
from logosphere.pretrained.adapters import build_adapted, find_base, load_base
from logosphere.pretrained.checksums import check_bundled
from logosphere.pretrained.hashes import check_file, find_weights, read_part, recorded_sha256
from logosphere.pretrained.limits import build_within
from logosphere.systems import build, systems

PREFIX = "pretrained:"
PREFIXES = (PREFIX, "box:")
"""Accepted prefixes; box: is the first name of pretrained: and stays valid."""
CARD, RECORD = "card.md", "record.json"
DISPLAY_ORDER = ("stories", "passages", "rdlm-blocks", "rdlm", "mdlm", "ar")
"""The order in which checkpoints are listed."""
GENERATION = "passages"
"""The default for new texts; its blocks follow one another, so that others fill gaps: the first of DISPLAY_ORDER."""


class SamplingDefaults(NamedTuple):
    """How a bundled checkpoint is sampled when the user does not say."""

    sampler: str = "auto"
    temperature: float = 0.6
    length: int | None = None
    """Tokens of each text, for models of texts that end: most of theirs are single sentences."""


_SAMPLING_DEFAULTS = {
    "stories": SamplingDefaults("entropy", 0.7, length=56),
    "passages": SamplingDefaults("left-to-right", 0.7),
}


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
    if not isinstance(path, str | Path):
        raise UserError(f"The folder of a model must be a string or a path, not {shorten(path)}.")
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
    return folder.parent == Path(__file__).parent and not folder.name.startswith(".")  # a draft is none yet


def default_pretrained(infilling: bool = False) -> Path | None:
    """The folder of the default checkpoint, or of that which fills gaps; None if the package has no checkpoints."""
    installed = list_pretrained()
    if GENERATION in installed and not infilling:
        return resolve_folder(f"{PREFIX}{GENERATION}")
    return resolve_folder(f"{PREFIX}{installed[0]}") if installed else None


def load(
    path: str | Path,
    options: dict[str, Any] | None = None,
    *,
    denoiser: nn.Module | None = None,
    trust_references: bool = False,
) -> Model:
    """The model in a folder or of pretrained:NAME, with EMA weights where there are any, and with its tokenizer.

    `hf:OWNER/NAME[@REVISION]` is a model that was published on the hub by this package; checkpoints of other packages
    are imported instead (`logosphere import`).
    `options` replace options of its system that it was trained with, where its weights allow it: {"path": "joint"}.
    `denoiser` is a new network for a model that was built with a network of your own, ls.wrap(module): its weights are
    read from the folder. Networks and systems that a module registers need that module to be imported before.
    A folder that was not written on this machine may name an encoder of the hub, which is fetched with
    `trust_references` only.
    """
    folder = fetch_run(str(path)).path if is_hub(path) else resolve_folder(path)
    check_link(folder)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    ema = folder / EMA_WEIGHTS
    weights, sha256 = find_weights(folder, (ema if ema.exists() else folder / WEIGHTS).name)
    return load_weights(folder, weights, options, denoiser, sha256=sha256, trust_references=trust_references)


def load_weights(
    folder: Path,
    weights: Path,
    options: dict[str, Any] | None = None,
    denoiser: nn.Module | None = None,
    *,
    sha256: str | None = None,
    trust_references: bool = False,
) -> Model:
    """The model in a folder, with the weights of this file, whose hash is that of the recipe or `sha256`."""
    if is_bundled(folder):
        check_bundled(folder)
    spec, recipe = read_spec(folder), folder / RECIPE
    check_encoder(spec.options, recipe, trusted=trust_references or is_trusted(folder))

    check_plugins(folder, spec, denoiser)

    def make() -> Model:
        return build_from_recipe(folder, options, denoiser)

    adapters = None if spec.adapters is None else LoRAConfig.from_dict(spec.adapters)
    base = None if adapters is None else find_base(folder, adapters, trusted=trust_references or is_trusted(folder))
    # A network that is passed has any size.
    model = make() if denoiser is not None else build_within(spec, weights, recipe, make, base)
    sha256 = sha256 or recorded_sha256(folder, weights.name)
    if (folder / TOKENIZER).exists():
        check_file(folder, TOKENIZER)
        model.tokenizer = load_tokenizer(folder / TOKENIZER)
    published = model.spec is not None and model.spec.published is not None
    if adapters is not None and base is not None:
        load_base(model, base, adapters.base_sha256)
    load_strict(model, read_tensors(weights, sha256), weights, assign=published, absent=frozen_names(model))
    if model.remasker is not None and (folder / REMASKER).exists():
        read_part(model.remasker, folder, REMASKER)
    return model.eval()


def is_trusted(folder: Path) -> bool:
    """Whether what a recipe names may be opened without asking: it was written here, or belongs to the package."""
    return is_bundled(folder) or is_written_here(folder / RECIPE)


def build_from_recipe(folder: Path, options: dict[str, Any] | None = None, denoiser: nn.Module | None = None) -> Model:
    """A new model as the recipe of a folder describes it, with other `options` where they are given.

    Another path leaves the network as it is, although the defaults of its options may depend on the path.
    """
    spec, changed = read_spec(folder), dict(options or {})
    check_plugins(folder, spec, denoiser)
    given: dict[str, Any] = {} if denoiser is None else {"denoiser": denoiser}
    try:
        path = changed.pop("path", None)
        if spec.published is not None:  # without memory: its weights are mapped from the file
            given = {"published": build_adapted(spec), "checkpoint": spec.checkpoint}
        model = build(
            spec.system, vocab_size=spec.vocab_size, length=spec.length, preset=spec.preset,
            **(spec.options | changed), **given,
        )  # fmt: skip
        assert model.spec is not None
        model.spec = replace(model.spec, adapters=spec.adapters)
        return model if path is None else model.with_path(path)
    except (TypeError, ValueError) as problem:
        recipe = folder / RECIPE
        raise UserError(f"{recipe} describes no model that can be built ({problem}); restore it from a copy.") from None


def check_plugins(folder: Path, spec: Spec, denoiser: nn.Module | None) -> None:
    """Raise UserError if a part of the model comes from a module that is not imported.

    Such a module is named but never imported here: the folder may be a stranger's.
    """
    named = read_recipe(folder / RECIPE).get("plugins")
    places = {str(part): str(place) for part, place in named.items()} if isinstance(named, dict) else {}
    if denoiser is None and "denoiser" in places:
        raise UserError(
            f"The model in {folder} has a network of the class {places['denoiser']}; make one and pass it: "
            "ls.load(path, denoiser=ls.wrap(module))."
        )
    body = spec.options.get("body")
    absent = {
        "system": "system" in places and spec.system not in systems(),
        "network": "network" in places and isinstance(body, str) and not is_registered(body),
    }
    for part, name in (("system", spec.system), ("network", body)):
        if absent[part]:
            module = places[part].rpartition(".")[0]
            raise UserError(
                f"The model in {folder} has the {part} '{name}' of the module {module}, which is not registered; "
                "if you trust its source, import that module first or install the package that it belongs to."
            )


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
        and all(isinstance(part, dict | None) for part in (spec.published, spec.checkpoint, spec.adapters))
        and (spec.adapters is None or spec.published is not None)
    )
