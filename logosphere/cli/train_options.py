"""The arguments of `logosphere train`: a recipe, and options that change it."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from logosphere.cli.console import Arguments, Flat, parse
from logosphere.errors import UserError
from logosphere.runs.config import TrainConfig
from logosphere.runs.recipes import RECIPES, recipe
from logosphere.runs.settings import TrackerName
from logosphere.systems import system


@dataclass(frozen=True)
class Train(Arguments):
    """What to train, and where to save it."""

    config: Annotated[TrainConfig, Flat] = field(default_factory=TrainConfig)
    out: Path | None = None
    """Folder of the run; default: runs/SYSTEM-DATA."""
    resume: bool = False
    """Continue the run in --out, or the one trained last."""
    nproc: int = 1
    """Processes on this machine that share the work; under torchrun it need not be given."""
    dry_run: bool = False
    """Only print what the training would cost: parameters, FLOPs, memory, time."""
    track: TrackerName | None = None
    """Copy the metrics to a tracker as well (extra 'track')."""
    tensorboard: bool = False
    """The same as --track tensorboard."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def processes(self) -> int:
        return 1 if self.dry_run else self.nproc

    @property
    def tracker(self) -> TrackerName | None:
        """The tracker that is requested."""
        if self.tensorboard and self.track not in (None, "tensorboard"):
            raise UserError(f"--tensorboard and --track {self.track} are two trackers; give one.")
        return "tensorboard" if self.tensorboard else self.track


TRAIN = f"""Train a model. RECIPE is a name or a .json/.yaml file; every option below changes it.

Names: {", ".join(RECIPES)}. Without one it is demo: RDLM, two minutes on text that every machine has.

The options and presets of a system, with their defaults: logosphere systems NAME

Stop with Ctrl-C at any time: the run is saved and --resume continues it to the last bit."""


LATENT = ("ld4lg", "planner", "tencdm", "cosmos")
"""Systems with an encoder, which may be a pretrained one."""

SYNONYMS = {
    "init-from": "begin",
    "withhold": "cond-dropout",
    "optim.final": "optim.min-lr-ratio",
    "optim.spike": "optim.grad-spike-factor",
}
"""Other names of options: one that users of other packages know, and former names."""


def parse_train(argv: list[str]) -> Train:
    """The arguments of `train [RECIPE]`, each setting as the recipe, the parent, the preset and the options say."""
    name, rest = split_recipe(argv)
    default = recipe(name or "demo")
    try:
        arguments = parse_train_options(rest, default)
    except SystemExit:  # --help was printed
        if chosen := named_option(rest, "--system"):
            from logosphere.cli.systems import print_options  # needs torch

            print_options(chosen)
        raise
    if not name and arguments.config.begin is not None and not arguments.resume:
        from logosphere.runs.parents import config_from_parent  # needs torch

        default = config_from_parent(arguments.config.begin)
        arguments = parse_train_options(rest, default)
    if arguments.config.preset != default.preset:  # its settings become the defaults of all other options
        default = replace(default, system=arguments.config.system).with_preset(arguments.config.preset)
        arguments = parse_train_options(rest, default)
    config = use_one_budget(use_own_column(arguments.config, rest, default), rest)
    system(config.system)
    return replace(arguments, config=use_encoder_tokenizer(config, rest, default))


def use_encoder_tokenizer(config: TrainConfig, argv: list[str], default: TrainConfig) -> TrainConfig:
    """The tokenizer of a recipe gives way to that of a pretrained encoder, which a latent system cannot do without."""
    named = any(word.split("=")[0] == "--tokenizer" for word in argv)
    if named or config.begin is not None or config.system == default.system or config.system not in LATENT:
        return config
    if config.autoencoder is not None:
        return replace(config, tokenizer="auto")  # that of the autoencoder
    from logosphere.runs.parents import tokenizer_for  # needs torch

    found = tokenizer_for(replace(config, tokenizer="auto"))
    return config if not isinstance(found, str) or found == "auto" else replace(config, tokenizer=found)


def parse_train_options(argv: list[str], default: TrainConfig) -> Train:
    """The options of `train` in place of a default configuration; options may have their other names."""
    synonyms = {f"--{other}": f"--{name}" for other, name in SYNONYMS.items()}
    words = [word.partition("=") for word in argv]
    argv = [synonyms.get(name.replace("_", "-"), name) + equals + value for name, equals, value in words]
    return parse(Train, argv, "train [RECIPE]", default=Train(config=default), about=TRAIN)


def named_option(argv: list[str], option: str) -> str:
    """The value after an option, empty where it is not given."""
    words = [part for word in argv for part in word.split("=", 1)]
    return next((after for word, after in pairwise(words) if word == option), "")


def split_recipe(argv: list[str]) -> tuple[str, list[str]]:
    """The name of the recipe, empty where there is none, and the arguments after it."""
    named = bool(argv) and not argv[0].startswith("-")
    return (argv[0], argv[1:]) if named else ("", argv)


def use_own_column(config: TrainConfig, argv: list[str], default: TrainConfig) -> TrainConfig:
    """The column of a recipe or a parent belongs to its data; other data have a column of their own."""
    named = any(word.split("=")[0] == "--column" for word in argv)
    return config if named or config.data == default.data else replace(config, column="")


def use_one_budget(config: TrainConfig, argv: list[str]) -> TrainConfig:
    """A budget given on the command line replaces the recipe's own."""
    options = {word.split("=")[0].replace("_", "-") for word in argv}
    steps, minutes, cpu_minutes = (f"--{name}" in options for name in ("steps", "minutes", "cpu-minutes"))
    if not (steps or minutes or cpu_minutes):
        return config
    return replace(
        config,
        steps=config.steps if steps else None,
        minutes=config.minutes if minutes else None,
        cpu_minutes=config.cpu_minutes if cpu_minutes else None,
    )
