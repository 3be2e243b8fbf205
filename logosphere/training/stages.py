"""Trained autoencoders of latent systems as files, which any number of second stages can share, and what they reached.

autoencoder.safetensors   the weights of the codec, and the running mean of its reconstruction loss
autoencoder.json          system, size, options, tokenizer, hash of the weights, reconstruction of held-out text
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logosphere.errors import UserError, shorten
from logosphere.evaluation.likelihood import Reconstruction, measure_reconstruction
from logosphere.io import check_folder, file_sha256, load_strict, read_tensors, write_json, write_tensors
from logosphere.model import Model, Spec
from logosphere.networks.config import NetworkConfig
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.systems.latent import SETTINGS
from logosphere.types import Batch
from logosphere.untrusted import read_object

WEIGHTS, CARD = "autoencoder.safetensors", "autoencoder.json"
FORMAT, VERSION = "logosphere-autoencoder", 1
MEAN = "recon_ema"
"""The name of the running mean of the reconstruction loss among the weights."""
PATH_OPTIONS = frozenset({
    "predicts", "schedule", "tan", "max_logsnr", "min_logsnr", "min_decode_logsnr", "weighting", "self_conditioning",
    "learned_null", "autoencoder_fraction", "joint",
})  # fmt: skip
"""Options of the second stage, which an autoencoder does not determine."""
SIZES = {"autoencoder_width": "width", "autoencoder_heads": "heads"}
"""Sizes of the autoencoder that are those of the network unless given."""


def overall(fraction: float, stage: int, done: float) -> float:
    """The completed fraction of a training whose first stage is `fraction` of it, from that of stage 1 or 2."""
    return fraction * min(done, 1 - 1e-9) if stage == 1 else fraction + (1 - fraction) * done


@dataclass(frozen=True)
class AutoencoderFile:
    """A trained autoencoder on disk."""

    folder: Path
    content: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def system(self) -> str:
        return str(self.content["system"])

    @property
    def options(self) -> dict[str, Any]:
        """The options of its system that determine it, and its width and heads."""
        return dict(self.content["options"])

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        """The description of its tokenizer."""
        found: dict[str, Any] | None = self.content["tokenizer"]
        return found


def stage_of(model: Model) -> AutoencoderStage:
    """The process of a latent system."""
    if not isinstance(model.process, AutoencoderStage):
        raise UserError("Only latent systems have an autoencoder: ld4lg, planner, tencdm and cosmos.")
    return model.process


def begin_second_stage(model: Model) -> None:
    """Leave out the first stage, whose autoencoder is trained."""
    process = stage_of(model)
    process.progress.fill_(process.stage_one)


def begins_second_stage(model: Model) -> bool:
    """Whether a latent model has a trained autoencoder already, and no other training."""
    process = model.process
    return isinstance(process, AutoencoderStage) and float(process.progress) == process.stage_one


def autoencoder_options(spec: Spec) -> dict[str, Any]:
    """The options of a model that determine its autoencoder."""
    settings = SETTINGS[spec.system]
    known = {field.name: field.default for field in dataclasses.fields(settings)}
    options = {name: spec.options.get(name, default) for name, default in known.items() if name not in PATH_OPTIONS}
    network = vars(NetworkConfig()) | spec.options
    return options | {name: options[name] or network[size] for name, size in SIZES.items()}


def save_autoencoder(
    model: Model, folder: str | Path, reached: Reconstruction | None = None, origin: Mapping[str, Any] | None = None
) -> AutoencoderFile:
    """Write the autoencoder of a latent model, as it is, into a folder; `origin` says what it was trained on."""
    process, path = stage_of(model), Path(folder)
    if model.spec is None or model.spec.system not in SETTINGS:
        raise UserError("Only autoencoders of models made by build(…) can be saved; this one was made in another way.")
    check_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = dict(model.process.codec.state_dict())
    write_tensors(path / WEIGHTS, tensors | {MEAN: process.recon_ema})
    tokenizer = None if model.tokenizer is None else model.tokenizer.describe()
    if origin and "tokenizer" in origin:
        tokenizer = origin["tokenizer"]
    figures = None if reached is None else {
        "accuracy": reached.accuracy, "error": reached.error, "exact": reached.exact_match,
        "sequences": reached.sequences, "nats": reached.nats["own"],
    }  # fmt: skip
    content = {
        "format": FORMAT, "version": VERSION, "system": model.spec.system, "vocab_size": model.vocab_size,
        "length": model.length, "options": autoencoder_options(model.spec), "tokenizer": tokenizer,
        "sha256": file_sha256(path / WEIGHTS), "reached": figures,
        "corpus": None if origin is None else origin.get("corpus"),
    }  # fmt: skip
    write_json(path / CARD, content)
    return AutoencoderFile(path, content)


def read_autoencoder(place: str | Path) -> AutoencoderFile:
    """The autoencoder in a folder, or beside one of its two files."""
    path = Path(place).expanduser()
    folder = path.parent if path.name in (WEIGHTS, CARD) else path
    try:
        content = read_object(folder / CARD, inside=folder)
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"it does not have the format {FORMAT} {VERSION}")
        kinds = {"system": str, "vocab_size": int, "length": int, "options": dict, "sha256": str}
        if wrong := [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]:
            raise ValueError(f"its entry '{wrong[0]}' is missing or of another type")
        if not isinstance(content.get("tokenizer"), dict | None):
            raise ValueError("its tokenizer is no description")
    except FileNotFoundError:
        raise UserError(
            f"There is no autoencoder in {folder}; a folder with {CARD} and {WEIGHTS} is needed, such as that of a run "
            "of a latent system after its first stage."
        ) from None
    except (OSError, ValueError) as problem:
        raise UserError(
            f"{folder / CARD} cannot be read as an autoencoder ({problem}); restore it from a copy."
        ) from None
    return AutoencoderFile(folder, content)


def check_autoencoder(found: AutoencoderFile, system: str, options: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Raise UserError for a model of this system, (vocabulary, length) and options that it does not fit."""
    theirs = (found.content["vocab_size"], found.content["length"])
    if found.system != system:
        raise UserError(f"The autoencoder in {found.folder} is one of {found.system}, not of {system}.")
    if theirs != size:
        raise UserError(
            f"The autoencoder in {found.folder} is for {theirs[0]} tokens and length {theirs[1]}, and this model has "
            f"{size[0]} tokens and length {size[1]}."
        )
    for name, value in found.options.items():
        if name in options and options[name] != value:
            raise UserError(
                f"The autoencoder in {found.folder} has {name}={shorten(value)}, not {shorten(options[name])}; leave "
                "the option out, or train another autoencoder."
            )


def load_autoencoder(model: Model, place: str | Path) -> AutoencoderFile:
    """Load a trained autoencoder into a latent model that was built with its options, and leave out the first stage."""
    found, process = read_autoencoder(place), stage_of(model)
    if model.spec is None or model.spec.system not in SETTINGS:
        raise UserError("Only models made by build(…) can load an autoencoder; this one was made in another way.")
    check_autoencoder(found, model.spec.system, autoencoder_options(model.spec), (model.vocab_size, model.length))
    if None not in (model.tokenizer, found.tokenizer) and model.tokenizer.describe() != found.tokenizer:  # type: ignore[union-attr]
        raise UserError(f"The autoencoder in {found.folder} was trained with another tokenizer than this model has.")
    tensors = read_tensors(found.weights, str(found.content["sha256"]))
    mean = tensors.pop(MEAN, torch.zeros(2, dtype=torch.float64))
    load_strict(model.process.codec, tensors, found.weights)
    process.recon_ema.copy_(mean)
    begin_second_stage(model)
    return found


def measure_stage_one(model: Model, batches: Iterable[Batch]) -> Reconstruction:
    """The reconstruction of held-out texts by a latent model."""
    return measure_reconstruction(model, batches, torch.Generator().manual_seed(0))
