"""The arguments of every command, as dataclasses without torch.

Arguments are parsed before the module of a command is imported, so `--help` and usage errors need no torch. This is the
only lazy import of the command line; command modules import what they need at the top.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from logosphere.cli.console import parse
from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.slurm import Job
from logosphere.runs.config import TrainConfig
from logosphere.runs.recipes import RECIPES, recipe
from logosphere.runs.settings import (
    AuxiliaryConfig,
    Budget,
    EvaluateConfig,
    SampleConfig,
    SampleMetrics,
)
from logosphere.sampling.catalogue import listing
from logosphere.systems import system, systems

Flat = tyro.conf.arg(name="")
"""Settings whose options stand without a prefix."""


class Arguments:
    """Arguments of a command."""

    def check(self) -> None:
        """Refuse values that contradict each other or name nothing."""


@dataclass(frozen=True)
class Train(Arguments):
    """What to train, where to keep it, and how to go about it."""

    config: Annotated[TrainConfig, Flat] = field(default_factory=TrainConfig)
    out: Path | None = None
    """Folder of the run; default: runs/SYSTEM-DATA."""
    resume: bool = False
    """Go on with the run in --out, or with the one trained last."""
    nproc: int = 1
    """Processes on this machine that share the work; under torchrun it need not be given."""
    dry_run: bool = False
    """Only say what the training would cost: parameters, FLOPs, memory, time."""
    tensorboard: bool = False
    """Also write metrics for tensorboard (extra 'track')."""
    json: bool = False
    """Print the result as JSON."""


TRAIN = f"""Train a model. RECIPE is a name or a .json/.yaml file; every option below changes it.

Names: {", ".join(RECIPES)}. Without one it is demo: two minutes on text that every machine has.

Stop with Ctrl-C at any time: the run is saved and --resume continues it to the last bit."""


def parse_train(argv: list[str]) -> Train:
    """The arguments of `train [RECIPE]`, each setting as the recipe, the parent, the preset and the options say."""
    name, rest = split_recipe(argv)
    default = recipe(name or "demo")
    arguments = parse_train_options(rest, default)
    if not name and arguments.config.begin is not None and not arguments.resume:
        from logosphere.runs.warm_start import config_from_parent  # reads the parent's run folder, which needs torch

        default = config_from_parent(arguments.config.begin)
        arguments = parse_train_options(rest, default)
    if arguments.config.preset != default.preset:  # its settings become the defaults of all other options
        default = replace(default, system=arguments.config.system).with_preset(arguments.config.preset)
        arguments = parse_train_options(rest, default)
    config = use_one_budget(arguments.config, rest)
    system(config.system)
    return replace(arguments, config=config)


def parse_train_options(argv: list[str], default: TrainConfig) -> Train:
    return parse(Train, argv, "train [RECIPE]", default=Train(config=default), about=TRAIN)


def split_recipe(argv: list[str]) -> tuple[str, list[str]]:
    """The name of the recipe, empty where there is none, and the arguments after it."""
    named = bool(argv) and not argv[0].startswith("-")
    return (argv[0], argv[1:]) if named else ("", argv)


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


@dataclass(frozen=True)
class Evaluate(Arguments):
    """Measure the likelihood of a trained model on held-out text, with its standard error."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    measure: Annotated[EvaluateConfig, Flat] = EvaluateConfig()
    options: tuple[str, ...] = ()
    """Options of the system to change for this measurement, where the weights allow it, such as path=joint."""
    nproc: int = 1
    """Processes on this machine that share the sequences; under torchrun it need not be given."""
    json: bool = False
    """Print the result as JSON."""


SAVED_AS = (".html", ".svg", ".gif", ".json")


@dataclass(frozen=True)
class Sample(Arguments):
    """Generate text with a trained model; without RUN, with the one trained last, or else with the bundled one."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of the run, or box:NAME for a model that came with the package."""
    config: Annotated[SampleConfig, Flat] = field(default_factory=SampleConfig)
    save: Path | None = None
    """Also save how the text is denoised: a page that plays it (.html), a drawing (.svg), a .gif, or numbers
    (.json)."""
    image: Path | None = None
    """Also write the samples as a picture (.png), where they are images."""
    watch: bool = False
    """Show the text while it is denoised; tokens are coloured by the confidence of the network."""
    nproc: int = 1
    """Processes on this machine that share the texts; under torchrun it need not be given."""
    json: bool = False
    """Print as JSON."""

    def check(self) -> None:
        """Refuse options that contradict each other."""
        self.config.check()
        if self.config.sampler != "auto":
            listing(self.config.sampler)
        if self.save is not None and self.save.suffix not in SAVED_AS:
            raise UserError(f"A film is saved as one of {', '.join(SAVED_AS)}, and {self.save.name} is none of them.")
        if self.save is not None and self.config.length is not None:
            raise UserError("--save keeps one window of text; leave out --length.")


@dataclass(frozen=True)
class Compare(Arguments):
    """Rank models on the same sequences, with paired differences. --systems trains them first, all alike.

    A system may have options: mdlm:preset=paper, mdlm:schedule=cosine, rdlm:optim.lr=1e-3. Run the same command again
    to go on with a comparison that was stopped; what is finished is not done again.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs."""
    systems: str = ""
    """Systems to train first, separated by commas: ar,mdlm"""
    recipe: str = "demo"
    """Recipe to train them with: a name or a file."""
    budget: Annotated[Budget, Flat] = Budget()
    seeds: int = 1
    """Trainings of each system."""
    out: Path = Path("runs/compare")
    """Folder for their runs."""
    report: Path | None = None
    """Write a page with everything (out.html), and the same as Markdown and JSON beside it."""
    measure: Annotated[EvaluateConfig, Flat] = EvaluateConfig()
    samples: Annotated[SampleMetrics, Flat] = field(default_factory=SampleMetrics)
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        for word in self.systems.split(","):
            if word.strip():
                system(word.strip().split(":")[0])
        if not self.systems and not self.runs:
            raise UserError(
                "Name runs to compare, or systems to train: logosphere compare --systems ar,mdlm --minutes 2"
            )
        if self.report is not None and self.report.suffix not in (".html", ".htm"):
            raise UserError(f"The report is a page; give it a name that ends in .html, not '{self.report}'.")


@dataclass(frozen=True)
class Studio(Arguments):
    """Open models in the browser: watch them sample, pin and edit tokens, compare two on the same seed."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of runs, or box:NAME; without any, all of runs/ and the bundled models."""
    report: tuple[str, ...] = ()
    """Comparison reports to open beside them; without any, those of `logosphere compare` here and in runs/."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""
    open: bool = False
    """Open the page in the browser."""

    def check(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UserError(f"Ports are numbers from 0 to 65535, not {self.port}.")


@dataclass(frozen=True)
class Plot(Arguments):
    """Draw the training curves of a run, also while it trains; without RUN, of the one trained last."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of the run."""
    height: int = 12
    """Lines of each drawing."""
    json: bool = False
    """Print the curves as JSON."""

    def check(self) -> None:
        if not 2 <= self.height <= 200:
            raise UserError(f"The height must be from 2 to 200 lines, not {self.height}.")


@dataclass(frozen=True)
class TrainRemasker(Arguments):
    """Train the remasker of a g-star run: which of its tokens are wrong; the model itself stays as it is."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    config: Annotated[AuxiliaryConfig, Flat] = AuxiliaryConfig()
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        self.config.check()


@dataclass(frozen=True)
class TrainClassifier(Arguments):
    """Train a classifier of noisy texts, to guide a trained model by; the model itself stays as it is.

    Then: logosphere sample RUN --classifier FOLDER --label NAME --strength 5
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    config: Annotated[AuxiliaryConfig, Flat] = AuxiliaryConfig()
    out: Path | None = None
    """Folder of the classifier; RUN/classifier unless set."""
    data: str = ""
    """Labelled data, such as labelled:FILE; the run's own unless set."""
    width: int = 96
    """Features per position."""
    depth: int = 2
    """Number of blocks."""
    heads: int = 4
    """Attention heads; must divide the width into even parts."""
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        self.config.check()


@dataclass(frozen=True)
class Bench(Arguments):
    """Speed and memory of training and sampling, beside the bare network. Seconds are processor seconds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, or box:NAME."""
    systems: str = ""
    """Systems to build afresh, separated by commas; 'all' for all."""
    vocabulary: int = 27
    """Tokens of the vocabulary, for --systems."""
    length: int = 128
    """Tokens of a sequence, for --systems."""
    batch: int = 16
    """Sequences at a time."""
    steps: int = 32
    """Steps of the sampler."""
    rounds: int = 5
    """Training steps that are timed."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    json: bool = False
    """Print as JSON."""

    @property
    def names(self) -> list[str]:
        """The systems to build."""
        return systems() if self.systems == "all" else [n.strip() for n in self.systems.split(",") if n.strip()]

    def check(self) -> None:
        for name in self.names:
            system(name)
        if not self.names and not self.runs:
            raise UserError("Name runs or systems to measure: logosphere bench --systems ar,mdlm")
        if min(self.batch, self.steps, self.rounds) < 1:
            raise UserError("The batch, the steps and the rounds must be at least 1.")


@dataclass(frozen=True)
class Export(Arguments):
    """Export a run as a small folder: weights in half precision, a model card, and a record of what it must measure."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: Path = Path("box")
    """Folder to write."""
    measure: Annotated[EvaluateConfig, Flat] = field(default_factory=lambda: EvaluateConfig(sequences=2000))
    samples: int = 3
    """Texts on the card."""
    steps: int = 128
    """Steps to sample them with."""
    json: bool = False
    """Print the record as JSON."""


@dataclass(frozen=True)
class Systems(Arguments):
    """List the systems that can be trained; with NAME, show its options and presets."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """A system, to see its options and how its default differs from what was published."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True)
class Samplers(Arguments):
    """List the samplers that `logosphere sample --sampler NAME` knows."""

    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True)
class Data(Arguments):
    """List corpora, or fetch one now so that training needs no network."""

    action: Annotated[Literal["list", "get"], tyro.conf.Positional] = "list"
    """list or get"""
    name: Annotated[str, tyro.conf.Positional] = ""
    """With get: a corpus by name, a file or folder, or hf:owner/name."""
    tokenizer: str = "auto"
    """auto, text8, characters, byte, bpe:SIZE, wordpiece:SIZE, or a tokenizer.json."""
    json: bool = False
    """Print as JSON."""

    def check(self) -> None:
        if self.action == "get" and not self.name:
            raise UserError("Say which corpus to fetch, for example: logosphere data get text8")


@dataclass(frozen=True)
class Launch(Arguments):
    """Write a batch script for a cluster. What follows a bare -- are arguments of `logosphere train`, with --out."""

    target: Annotated[Literal["slurm"], tyro.conf.Positional]
    """slurm"""
    job: Annotated[Job, Flat] = field(default_factory=Job)
    file: Path = Path("train.sbatch")
    """Where to write the script."""


@dataclass(frozen=True)
class Completion(Arguments):
    """Print a script that completes commands, options and files.

    Put one line into the file that your shell reads when it starts.
    bash and zsh: source <(logosphere completion bash), with zsh for zsh;
    fish: logosphere completion fish | source
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional] = "bash"
    """bash, zsh or fish."""
