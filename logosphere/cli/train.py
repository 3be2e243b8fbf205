"""logosphere train, train-remasker, train-classifier"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from pathlib import Path

from logosphere.cli.arguments import TrainClassifier, TrainRemasker
from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.cli.dry_run import dry_run
from logosphere.cli.train_options import Train, parse_train_options, split_recipe, use_one_budget
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.io import REMASKER
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.launch import launcher_died
from logosphere.parallel.process_group import init_distributed
from logosphere.runs.config import TrainConfig
from logosphere.runs.loop import Event, StepTaken, Validated
from logosphere.runs.recipes import recipe
from logosphere.runs.run import Run, latest_run, list_runs
from logosphere.runs.train import (
    OnEvent,
    create,
    finish,
    ignore,
    open_again,
    open_with_display,
    resume_command,
    run_to_end,
    train_classifier_of,
    train_remasker_of,
)


def train(arguments: Train, argv: list[str]) -> int:
    """logosphere train"""
    if arguments.dry_run:
        return dry_run(split_recipe(argv)[0], arguments.config, arguments.nproc, json=arguments.json)
    with init_distributed() as group:
        # The main process creates the folder and the tokens; the others find both.
        created = group.on_main(lambda: _open(arguments, argv))
        path = group.broadcast("" if created is None else str(created[0].path))
        run, corpus = created or _open_created(Run(path), arguments)
        with tensorboard(run.path / "tensorboard" if arguments.tensorboard and group.is_main else None) as on_event:
            outcome = run_to_end(run, corpus, DISPLAY, on_event=on_event, should_stop=launcher_died, group=group)
        if outcome.stopped:
            log(f"Stopped at step {outcome.step:,} and saved. Continue with: {resume_command(run)}")
            return 130
        if not group.is_main:
            return 0
        finish(outcome, corpus)
        assert outcome.report is not None  # the last step of a run is always validated
        if arguments.json:
            print_json({"run": str(run.path), "step": outcome.step, "validation": outcome.report.summary()})
        else:
            print(f"{run.config.system} on {outcome.report.data}: {outcome.report}")
            log(f"Run: {run.path}   Next: logosphere sample {run.path} --watch")
    return 0


def _open(arguments: Train, argv: list[str]) -> tuple[Run, Corpus]:
    """A new run, or the one to be resumed, and its data."""
    if not arguments.resume:
        return create(arguments.config, arguments.out, DISPLAY)[:2]
    found = find_resumed(arguments, argv)
    return found, open_with_display(found.config.data, found.tokenizer, DISPLAY)


def _open_created(run: Run, arguments: Train) -> tuple[Run, Corpus]:
    """The run that the main process has created, and its data."""
    if arguments.resume:
        return run, open_with_display(run.config.data, run.tokenizer, DISPLAY)
    return run, open_again(run, arguments.config, DISPLAY)


def find_resumed(arguments: Train, argv: list[str]) -> Run:
    """The run in --out, or the last one that agrees with the other options; a run keeps its own settings."""
    places = [arguments.out] if arguments.out is not None else list_runs() or [latest_run()]
    other = ""
    for place in places:
        found = Run(place)
        if not (differences := _differences(argv, found.config)):
            return found
        other = other or f"The run in {place} was begun with {differences}"
    raise UserError(
        f"{other}; leave that out to continue it, or begin another run with its weights: "
        f"logosphere train --begin {places[0]}"
    )


def _differences(argv: list[str], begun: TrainConfig) -> str:
    """The settings in which the arguments differ from those of a run, empty if there are none."""
    name, rest = split_recipe(argv)
    named = recipe(name) if name else begun
    default = replace(begun, system=named.system, data=named.data)
    now = _settings(use_one_budget(parse_train_options(rest, default).config, rest))
    then = _settings(begun)
    changed = [key for key in then if now[key] != then[key]]
    return ", ".join(f"--{key.replace('_', '-')} {_format(then[key])}, not {_format(now[key])}" for key in changed[:3])


def _settings(config: TrainConfig) -> dict[str, object]:
    """All settings by the names of their options."""
    flat: dict[str, object] = {}
    for name, value in vars(config).items():
        flat |= {f"{name}.{key}": inner for key, inner in vars(value).items()} if is_dataclass(value) else {name: value}
    return flat


def _format(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


@contextmanager
def tensorboard(folder: Path | None) -> Iterator[OnEvent]:
    """A function that copies events to tensorboard; without a folder it does nothing."""
    if folder is None:
        yield ignore
        return
    try:
        from torch.utils.tensorboard import SummaryWriter  # an extra
    except ImportError:
        raise UserError("tensorboard is not installed; get it with: pip install 'logosphere[track]'") from None

    def on_event(event: Event) -> None:
        match event:
            case StepTaken(progress=progress):
                writer.add_scalar("train/loss", progress.loss, progress.step)
            case Validated(step=step, report=report):
                writer.add_scalar(f"val/bits per {report.unit}", report.bits, step)

    with SummaryWriter(str(folder)) as writer:
        yield on_event


def train_remasker(arguments: TrainRemasker, argv: list[str]) -> int:
    """logosphere train-remasker"""
    trained, steps = Run(arguments.run), arguments.config.steps
    last = train_remasker_of(trained, arguments.config, DISPLAY)
    if arguments.json:
        print_json({"run": str(trained.path), "steps": steps, "loss": last.loss, "wrong": last.wrong})
    else:
        log(f"{last.loss:.3f} nats per token; saved as {trained.path / REMASKER}")
    return 0


def train_classifier(arguments: TrainClassifier, argv: list[str]) -> int:
    """logosphere train-classifier"""
    trained = Run(arguments.run)
    shape = trained.config.network.shape
    network = NetworkConfig(width=arguments.width, depth=arguments.depth, heads=arguments.heads, shape=shape)
    found = train_classifier_of(
        trained, arguments.config, network, out=arguments.out, data=arguments.data, display=DISPLAY
    )
    if arguments.json:
        figures = {"loss": found.loss, "valid_loss": found.valid_loss, "valid_right": found.valid_right}
        about = {"run": str(trained.path), "classifier": str(found.folder), "steps": arguments.config.steps}
        print_json(about | {"labels": list(found.labels)} | figures)
    else:
        log(
            f"Validation, averaged over times: {found.valid_loss:.3f} nats per label "
            f"({math.log(len(found.labels)):.3f} at random), accuracy {found.valid_right:.0%}; saved in {found.folder}"
        )
    return 0
