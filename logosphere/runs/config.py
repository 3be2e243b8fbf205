"""TrainConfig: everything that determines a training run, typed, complete and without torch."""

import dataclasses
import json
import math
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from logosphere.errors import UserError, suggest
from logosphere.migration import RENAMED_FIELDS, migrate
from logosphere.networks.config import NetworkConfig
from logosphere.systems import DEFAULT, find_preset
from logosphere.training.optimizer import OptimizerConfig, check_finite, check_training
from logosphere.untrusted import read_regular

MAX_RECIPE = 1 << 20
"""Bytes of a file with a recipe, at most; reading YAML takes a hundred times as much memory."""


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    system: str = "mdlm"
    """Which system to train; `logosphere systems` lists them."""
    preset: str = DEFAULT
    """default, or paper: the published system with its optimiser; `logosphere systems NAME` shows the differences."""
    options: tuple[str, ...] = ()
    """Options of the system as name=value, for example timesteps=500; `logosphere systems NAME` lists them."""
    data: str = "pydoc"
    """A corpus by name (`logosphere data list`), a file or folder of text or tables, hf:owner/name, any of these after
    letters: in the alphabet of text8, stream:owner/name to train while it is read, or lines:FILE, labelled:FILE,
    pairs:FILE, promoters:FILE for separate sequences."""
    column: str = ""
    """The column that holds the text of a table (.csv, .tsv, JSON, .parquet) or of a dataset of the hub; without it
    the only one that looks like text."""
    tokenizer: str = "auto"
    """auto, text8, characters, byte, bpe:SIZE, wordpiece:SIZE, minilm:SIZE, or a tokenizer.json."""
    task: str = "unconditional"
    """Which positions are known in training: unconditional, continuation, infilling, varied (lengths), or answers:
    the source of each pair of pairs:FILE is a prompt before the text, and only the text is corrupted and counted."""
    length: int = 128
    """Tokens per sequence."""
    batch: int = 32
    """Sequences per step."""
    order: str = "crops"
    """crops: random places, with replacement; epochs: every window once an epoch, shuffled."""
    accumulate: int = 1
    """Parts a batch is cut into, to save memory."""
    draws: int = 1
    """Noisy copies of every sequence in a step; an encoder of the clean text (decoder_depth) reads it once for all."""
    steps: int | None = 2000
    """Steps to train; 'None' together with a time."""
    minutes: float | None = None
    """Wall-clock minutes to train, instead of steps."""
    cpu_minutes: float | None = None
    """Minutes of processor time to train, instead of steps; independent of the load of the machine."""
    stage_one_minutes: float | None = None
    """Minutes of processor time for the autoencoder of a latent system, before the budget above, which is then that of
    the diffusion alone; None: a fraction of the budget (autoencoder_fraction)."""
    autoencoder: str | None = None
    """The folder of a trained autoencoder (autoencoder.json), such as another run's, in place of the first stage."""
    cond_dropout: float = 0.1
    """Fraction of training sequences whose condition (label, source or signal) is dropped, which guidance needs."""
    ema: float = 0.999
    """Decay of the running average of the weights that is evaluated and sampled."""
    validations: int = 10
    """How often the bound is measured during training; a checkpoint is saved each time."""
    validation_sequences: int = 128
    """Sequences of the validation split it is measured on."""
    precision: str = "auto"
    """auto, float32 or bfloat16; auto is bfloat16 where the processor has instructions for it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""
    compile: bool = False
    """Compile the blocks of the network for training (torch.compile); the code is cached for later trainings."""
    shard: bool = False
    """Shard weights, gradients and moments over the processes (FSDP): for large networks."""
    recompute: bool = False
    """Recompute activations in the backward pass (activation checkpointing): less memory, a third more work."""
    deterministic: bool = False
    """Use only deterministic algorithms, even where others are faster (GPUs)."""
    seed: int = 0
    """Fixes weights, data order and noise."""
    begin: str | None = None
    """A run, pretrained:NAME, hf:OWNER/NAME or a checkpoint folder whose (averaged) weights to begin with instead of
    random ones; without a recipe, its own recipe is the default."""
    lora: int = 0
    """Rank of adapters of the linear layers of a published network, which are trained in place of its weights; 0:
    all weights are trained."""
    lora_alpha: float | None = None
    """Scale of the adapters, which are multiplied by lora_alpha / lora; None: twice the rank."""
    pack: bool = False
    """Pack several separate texts into a row in training; attention does not cross them (published networks)."""
    patience: int | None = None
    """Validations without a better bound after which the training ends early; None: never."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optim: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(name="auto"))

    def __post_init__(self) -> None:
        check_finite("", vars(self))
        check_training(self.ema, self.cond_dropout, self.accumulate, self.precision, self.draws)
        self.optim.check_sharding(self.shard)
        if self.steps is None and self.minutes is None and self.cpu_minutes is None:
            raise UserError("The length of the training is missing: give --steps N, --minutes M or --cpu-minutes M.")
        if self.steps is not None and self.steps < 1:
            raise UserError(f"The number of steps must be at least 1, not {self.steps}.")
        if self.autoencoder is not None and self.stage_one_minutes is not None:
            raise UserError("A trained autoencoder (--autoencoder) has no first stage; leave out --stage-one-minutes.")
        for minutes in (self.minutes, self.cpu_minutes, self.stage_one_minutes):
            if minutes is not None and minutes <= 0:
                raise UserError(f"The time to train must be above 0 minutes, not {minutes}.")
        if self.lora < 0:
            raise UserError(f"The rank of adapters (lora) must be at least 1, or 0 for none, not {self.lora}.")
        if self.lora and self.shard:
            raise UserError("Adapters are small, so --lora needs no shards; leave out --shard.")
        if self.patience is not None and self.patience < 1:
            raise UserError(f"patience must be at least 1 validation, not {self.patience}.")
        if self.validations < 1 or self.validation_sequences < 1:
            raise UserError("There must be at least 1 validation on at least 1 sequence.")

    def system_options(self) -> dict[str, Any]:
        """The options as values."""
        return parse_options(self.options)

    def with_preset(self, name: str, *, optimiser: bool = True) -> "TrainConfig":
        """The configuration with a preset of its system: its network settings and, unless switched off, its optimiser.

        A configuration holds every setting, so they are filled in here; later settings replace them.
        """
        preset = find_preset(self.system, name)
        sizes = {f.name for f in dataclasses.fields(NetworkConfig)}
        options = {key: value for key, value in preset.options.items() if key in sizes}
        chosen = dataclasses.replace(self, preset=name, network=dataclasses.replace(self.network, **options))
        if not optimiser:
            return chosen
        ema = self.ema if preset.ema is None else preset.ema
        published: dict[str, Any] = {"name": "adamw", "matrix_lr": None} | dict(preset.optim)
        optim = dataclasses.replace(self.optim, **published)
        return dataclasses.replace(chosen, optim=optim, ema=ema)


class Plain(yaml.SafeLoader):
    """YAML of plain data only, in which 1e-3 is a number, as in JSON."""


Plain.yaml_implicit_resolvers = {  # a copy: the lists belong to all loaders
    first: list(found) for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_plain(text: str) -> Any:
    """As yaml.load with this loader; that name is forbidden in this package, since most other loaders run code."""
    loader = Plain(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def parse_options(words: Sequence[str]) -> dict[str, Any]:
    """Options of the form name=value; values are numbers, booleans, None and strings, as in YAML."""
    read = {}
    for option in words:
        name, separator, value = option.partition("=")
        if not separator or not name:
            raise UserError(f"'{option}' is not an option of the form name=value.")
        try:
            read[name] = parse_plain(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"The value of the option '{option}' cannot be read.") from None
    return read


def config_from_dict(content: Any, place: str) -> TrainConfig:
    """A configuration from plain data, as read from JSON or YAML; names and types are checked.

    Settings that it leaves out are those of its preset.
    """
    recipe = _filled(TrainConfig, content, place, TrainConfig())
    assert isinstance(recipe, TrainConfig)
    if recipe.preset == DEFAULT:
        return recipe
    recipe = _filled(TrainConfig, content, place, TrainConfig(system=recipe.system).with_preset(recipe.preset))
    assert isinstance(recipe, TrainConfig)
    return recipe


def config_of_model(system: str, preset: str, length: int, options: dict[str, Any], place: str) -> TrainConfig:
    """The configuration of a model that was saved without a training run: what sampling needs, and no data."""
    known = {f.name for f in dataclasses.fields(NetworkConfig)}
    network = {name: value for name, value in options.items() if name in known}
    own = [f"{name}={json.dumps(value)}" for name, value in options.items() if name not in known]
    content = {"system": system, "length": length, "data": "", "network": network, "options": own}
    return dataclasses.replace(config_from_dict(content, place), preset=preset)


def read_config_file(path: Path) -> TrainConfig:
    """A configuration from a .json or .yaml file, such as the recipe.json of a run folder."""
    try:
        content = parse_plain(read_regular(path, MAX_RECIPE).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        reason = (str(problem) or "empty").splitlines()[0]
        raise UserError(f"The recipe {path} cannot be read ({reason}).") from None
    if isinstance(content, dict) and "recipe" in content:
        content = (migrate(content, str(path)) if "version" in content else content)["recipe"]
    return config_from_dict(content, str(path))


def _filled(kind: type, content: Any, place: str, default: Any = None) -> Any:
    """An object of this kind with the values of `content`; what is left out is that of `default`."""
    if not isinstance(content, dict):
        raise UserError(f"{place} must hold names and values.")
    known = {f.name: f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            if RENAMED_FIELDS.get(name) in known:
                raise UserError(f"The entry '{name}' of {place} is now '{RENAMED_FIELDS[name]}'.")
            raise UserError(f"{place} has an unknown entry '{name}'.{suggest(str(name), known)}")
        inner = None if default is None else getattr(default, name)
        values[name] = _value(_annotation(known[name].type), value, f"'{name}' in {place}", inner)
    return kind(**values) if default is None else dataclasses.replace(default, **values)


def _annotation(kind: Any) -> str:
    """A type as it is written in source: float rather than <class 'float'>."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _value(annotation: str, value: Any, place: str, default: Any) -> Any:
    """Check a plain value against the annotation of its field; settings within settings are filled with `default`."""
    if "NetworkConfig" in annotation or "OptimizerConfig" in annotation:
        return _filled(NetworkConfig if "NetworkConfig" in annotation else OptimizerConfig, value, place, default)
    if value is None and "None" in annotation:
        return None
    if "tuple" in annotation and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if "bool" in annotation:
        fits: tuple[type, ...] = (bool,)
    elif "float" in annotation:
        fits = (int, float)
    elif "int" in annotation:
        fits = (int,)
    else:
        fits = (str,)
    if not isinstance(value, fits) or (isinstance(value, bool) and bool not in fits):
        raise UserError(f"{place} must be of type {annotation.replace(' | None', '')}, not {_shown(value)}.")
    return _finite(value, place) if float in fits else value


def _shown(value: Any) -> str:
    """A value for an error message; containers by their type only, since YAML aliases can make them huge."""
    plain = value is None or isinstance(value, str | int | float)
    return reprlib.repr(value) if plain else f"a {type(value).__name__}"


def _finite(value: Any, place: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{place} must be a finite number, not {_shown(value)}.")
    return number
