"""The arguments of every command, as dataclasses without torch.

Arguments are parsed before the module of a command is imported, so `--help` and usage errors need no torch. This is the
only lazy import of the command line; command modules import what they need at the top.
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro

from logosphere.cli.adapt_options import Adapt, parse_adapt
from logosphere.cli.compare_options import Compare, parse_compare
from logosphere.cli.console import Arguments, Flat, parse
from logosphere.cli.import_options import Import as Import  # found here by name
from logosphere.cli.train_options import Train, parse_train
from logosphere.errors import UserError
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.launch import Job, is_distributed
from logosphere.runs.settings import (
    AuxiliaryConfig,
    EvaluateConfig,
    InfillingConfig,
    OrderConfig,
    Precision,
    SampleConfig,
    TaskConfig,
    Weights,
)
from logosphere.systems import system, systems


@dataclass(frozen=True)
class Evaluate(Arguments):
    """Measure the likelihood of a trained model on held-out text, with its standard error."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    measure: Annotated[EvaluateConfig, Flat] = EvaluateConfig()
    by_order: Annotated[OrderConfig, Flat] = OrderConfig()
    gaps: Annotated[InfillingConfig, Flat] = InfillingConfig()
    by_task: Annotated[TaskConfig, Flat] = TaskConfig()
    options: tuple[str, ...] = ()
    """Options of the system to change for this measurement, where the weights allow it, such as path=joint."""
    nproc: int = 1
    """Processes on this machine that share the sequences; under torchrun it need not be given."""
    json: bool = False
    """Print the result as JSON."""

    @property
    def processes(self) -> int:
        return self.nproc

    def check(self) -> None:
        self.gaps.check()
        self.by_task.check()
        chosen = {"--order": self.by_order.order, "--infilling": self.gaps.infilling, "--tasks": self.by_task.tasks}
        if len(measures := [name for name, value in chosen.items() if value]) > 1:
            raise UserError(f"{' and '.join(measures)} are measures of their own; give one of them.")
        if not self.by_task.tasks:
            return
        default = EvaluateConfig()
        for name in ("data", "column", "split", "sequences", "protocol", "per"):
            if vars(self.measure)[name] != vars(default)[name]:
                raise UserError(f"Tasks have texts and metrics of their own; leave out --{name} or --tasks.")
        if self.nproc > 1 or is_distributed():
            raise UserError("--tasks needs a single process; leave out --nproc.")


SAVED_AS = (".html", ".svg", ".gif", ".json")


@dataclass(frozen=True)
class Sample(Arguments):
    """Generate text with a trained model; without RUN, with the last one, or else with the bundled checkpoint."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Folder of the run, or pretrained:NAME for a bundled checkpoint."""
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

    @property
    def processes(self) -> int:
        return self.nproc

    def check(self) -> None:
        """Raise for options that contradict each other."""
        self.config.check()
        if (self.watch or self.save is not None) and (self.nproc > 1 or is_distributed()):
            raise UserError("--watch and --save need a single process; leave out --nproc.")
        if self.config.sampler != "auto":
            from logosphere.sampling.registry import sampler_info  # needs torch

            sampler_info(self.config.sampler)
        if self.save is not None and self.save.suffix not in SAVED_AS:
            raise UserError(f"The name of --save must end in one of {', '.join(SAVED_AS)}, not be '{self.save.name}'.")
        if self.save is not None and self.config.length is not None:
            raise UserError("--save keeps one window of text; leave out --length.")


@dataclass(frozen=True)
class Studio(Arguments):
    """Open models in the browser: watch them sample, hold tokens, edit words, compare two on the same seed."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of runs, or pretrained:NAME; without any, all of runs/ and the bundled checkpoints."""
    report: tuple[str, ...] = ()
    """Comparison reports to open as well; without any, those of `logosphere compare` here and in runs/."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""
    open: bool = False
    """Open the page in the browser."""
    allow_host: tuple[str, ...] = ()
    """Addresses HOST or HOST:PORT under which a tunnel to this machine is opened, such as localhost:9000; without
    any, the studio answers only under its own address."""

    def check(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UserError(f"--port must be a number from 0 to 65535, not {self.port}.")
        if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
            raise UserError("The studio needs the extra 'web': pip install 'logosphere[web]'")


@dataclass(frozen=True)
class Serve(Arguments):
    """Answer requests of OpenAI's API: completions, infilling and chats, from this machine unless --host is given."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Folders of runs, or pretrained:NAME; without any, the bundled checkpoints for new texts and for gaps."""
    host: str = "127.0.0.1"
    """Address to listen at. Others than that of this machine alone, such as 0.0.0.0, need an API key."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    api_key: str = ""
    """Key that every request must have (Authorization: Bearer KEY). Programs of this machine can read it here; in the
    variable LOGOSPHERE_API_KEY only those of the same user can."""
    allow_host: tuple[str, ...] = ()
    """Addresses HOST or HOST:PORT under which clients reach the server through a tunnel or a proxy."""
    queue: int = 256
    """Texts that may wait; further requests are refused with 429."""
    batch: int = 32
    """Texts that are sampled together, at most."""
    timeout: float = 600.0
    """Seconds that a request may take, in the queue and in work."""
    precision: Precision = "float32"
    """Precision of the network. auto is bfloat16 where the processor has instructions for it: faster, but the text of a
    seed then depends a little on the texts that are sampled with it."""

    def check(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UserError(f"--port must be a number from 0 to 65535, not {self.port}.")
        if self.queue < 1 or self.batch < 1:
            raise UserError(f"--queue and --batch must be at least 1, not {self.queue} and {self.batch}.")
        if not 0 < self.timeout < float("inf"):
            raise UserError(f"--timeout must be a number of seconds above 0, not {self.timeout}.")
        if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
            raise UserError("The server needs the extra 'web': pip install 'logosphere[web]'")


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
    """Train the remasker of a g-star run: it predicts which tokens are wrong; the model itself is frozen."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    config: Annotated[AuxiliaryConfig, Flat] = AuxiliaryConfig()
    json: bool = False
    """Print the result as JSON."""

    def check(self) -> None:
        self.config.check()


@dataclass(frozen=True)
class TrainClassifier(Arguments):
    """Train a classifier of noisy texts, for guidance of a trained model, which is frozen.

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
    """Speed and memory of training and sampling, compared with the bare network. Seconds are processor seconds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs, or pretrained:NAME."""
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
    out: Path = Path("exported")
    """Folder to write."""
    layout: Literal["package", "merged", "ddit"] = "package"
    """package: as above; merged: the model in full precision with its adapters merged, of any size; ddit: config.json
    and float32 weights under the names of published masked models, for other tools (models with body=ddit). Of the
    last two nothing is measured."""
    measure: Annotated[EvaluateConfig, Flat] = field(default_factory=lambda: EvaluateConfig(sequences=2000))
    with_samples: bool = False
    """Also write samples on the card and held-out text into the record; without it the folder holds no text."""
    samples: int = 3
    """Texts on the card, with --with-samples."""
    steps: int = 128
    """Steps to sample them with."""
    json: bool = False
    """Print the record as JSON."""


@dataclass(frozen=True)
class Publish(Arguments):
    """Publish a run on the hub: weights, recipe, tokenizer and a card, without text of yours."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    target: Annotated[str, tyro.conf.Positional]
    """hf:OWNER/NAME"""
    license: str = ""
    """Short name of the licence, such as mit or apache-2.0; the card states none unless it is given."""
    weights: Weights = "ema"
    """Averaged weights, the best of them, or the live ones."""
    with_samples: bool = False
    """Show samples on the card, which may repeat passages of the training text."""
    samples: int = 3
    """Texts on the card, with --with-samples."""
    steps: int = 128
    """Steps to sample them with."""
    private: bool = False
    """Make the repository private, where it does not exist yet."""
    dry_run: bool = False
    """Show what would be uploaded, and upload nothing; this needs neither a token nor a network."""
    json: bool = False
    """Print as JSON."""


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
    """List corpora, where they are and what they cost, or fetch one now so that training needs no network."""

    action: Annotated[Literal["list", "get"], tyro.conf.Positional] = "list"
    """list or get"""
    name: Annotated[str, tyro.conf.Positional] = ""
    """With get: a corpus by name, a file or folder, or hf:owner/name."""
    column: str = ""
    """With get: the column of a table that holds its text."""
    tokenizer: str = "auto"
    """auto, text8, characters, byte, bpe:SIZE, wordpiece:SIZE, minilm:SIZE, or a tokenizer.json."""
    json: bool = False
    """Print as JSON."""

    def check(self) -> None:
        if self.action == "get" and not self.name:
            raise UserError("The name of a corpus is missing, for example: logosphere data get text8")


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


def parse_command(command: str, kind: type[Arguments], argv: list[str]) -> Arguments:
    """The arguments of a command, checked."""
    if kind is Train:
        return parse_train(argv)
    if kind is Adapt:
        return parse_adapt(argv)
    if kind is Compare:
        return parse_compare(argv)
    if kind is Launch:  # what follows -- is for train
        argv = argv[: argv.index("--")] if "--" in argv else argv
    arguments = parse(kind, argv, command)
    arguments.check()
    return arguments
