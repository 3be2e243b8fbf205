"""logosphere train"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from logosphere.cli.console import Bar, bar, corpus_with_progress, parse, print_json, say
from logosphere.errors import UserError
from logosphere.parallel.launch import abandoned, launch, must_launch
from logosphere.presets import DEFAULT
from logosphere.recipes.catalogue import RECIPES, recipe
from logosphere.recipes.recipe import Recipe
from logosphere.systems import system

if TYPE_CHECKING:
    from logosphere.data.corpus import Corpus
    from logosphere.evaluation.report import Report
    from logosphere.parallel.team import Team
    from logosphere.runs.folder import RunFolder
    from logosphere.runs.train import Event


@dataclass(frozen=True)
class Arguments:
    """What to train, where to keep it, and how to go about it."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
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


ABOUT = f"""Train a model. RECIPE is a name or a .json/.yaml file; every option below changes it.

Names: {", ".join(RECIPES)}. Without one it is demo: two minutes on text that every machine has.

Stop with Ctrl-C at any time: the run is saved and --resume continues it to the last bit."""


def arguments_of(words: list[str]) -> Arguments:
    """What the words of the command ask for."""
    name, rest = _named(words)
    default = recipe(name or "demo")
    arguments = _parsed(rest, default)
    if not name and arguments.recipe.begin is not None and not arguments.resume:
        from logosphere.runs.beginning import as_parent

        default = as_parent(arguments.recipe.begin)
        arguments = _parsed(rest, default)
    if arguments.recipe.preset != default.preset:  # its settings become the defaults of all other options
        default = replace(default, system=arguments.recipe.system).with_preset(arguments.recipe.preset)
        arguments = _parsed(rest, default)
    chosen = _one_budget(arguments.recipe, rest)
    system(chosen.system)
    return replace(arguments, recipe=chosen)


def _parsed(words: list[str], default: Recipe) -> Arguments:
    return parse(Arguments, words, "train [RECIPE]", default=Arguments(recipe=default), about=ABOUT)


def _named(words: list[str]) -> tuple[str, list[str]]:
    """The name of the recipe, empty where there is none, and the words after it."""
    named = bool(words) and not words[0].startswith("-")
    return (words[0], words[1:]) if named else ("", words)


def run(words: list[str]) -> int:
    arguments = arguments_of(words)
    chosen = arguments.recipe
    if arguments.dry_run:
        from logosphere.cli.dryrun import dry_run

        return dry_run(chosen, arguments.nproc, json=arguments.json)
    if must_launch(arguments.nproc):
        return launch(["train", *words], arguments.nproc)

    from logosphere.parallel.team import assembled
    from logosphere.runs.folder import RunFolder

    with assembled() as team:
        # The first process sets up the folder and the tokens; the others find both.
        prepared = team.first(lambda: _prepared(chosen, arguments, words))
        path = team.told("" if prepared is None else str(prepared[0].path))
        folder, corpus = prepared or (RunFolder(path), _opened(RunFolder(path), chosen, arguments))
        return _carry_out(folder, corpus, arguments, team)


def _prepared(chosen: Recipe, arguments: Arguments, words: list[str]) -> "tuple[RunFolder, Corpus]":
    """The folder of a new run, or of one to be resumed, and its text."""
    from logosphere.runs.folder import free_name
    from logosphere.runs.train import start

    if arguments.resume:
        folder = _resumed(arguments, words)
        return folder, _opened(folder, chosen, arguments)
    if arguments.out is not None and arguments.out.exists() and any(arguments.out.iterdir()):
        raise UserError(
            f"{arguments.out} exists already; choose another --out, or continue the run in it with --resume."
        )
    corpus = _opened(None, chosen, arguments)
    return start(chosen, corpus, arguments.out or free_name(chosen.system, chosen.data)), corpus


def _resumed(arguments: Arguments, words: list[str]) -> "RunFolder":
    """The run in --out, or the last one that is as the other options say; a run goes on as it was begun."""
    from logosphere.runs.folder import RunFolder, all_runs, newest

    places = [arguments.out] if arguments.out is not None else all_runs() or [newest()]
    other = ""
    for place in places:
        folder = RunFolder(place)
        if not (found := _otherwise(words, folder.recipe)):
            return folder
        other = other or f"The run in {place} was begun with {found}"
    raise UserError(
        f"{other}; leave that out to go on as it was begun, or begin another run with its weights: "
        f"logosphere train --begin {places[0]}"
    )


def _otherwise(words: list[str], begun: Recipe) -> str:
    """What words ask for otherwise than a run was begun, empty if nothing."""
    name, rest = _named(words)
    named = recipe(name) if name else begun
    asked = _one_budget(_parsed(rest, replace(begun, system=named.system, data=named.data)).recipe, rest)
    now, then = _settings(asked), _settings(begun)
    changed = [key for key in then if now[key] != then[key]]
    return ", ".join(f"--{key.replace('_', '-')} {_spelt(then[key])}, not {_spelt(now[key])}" for key in changed[:3])


def _settings(chosen: Recipe) -> dict[str, object]:
    """All settings of a recipe by the names of their options."""
    flat: dict[str, object] = {}
    for name, value in vars(chosen).items():
        flat |= {f"{name}.{key}": inner for key, inner in vars(value).items()} if is_dataclass(value) else {name: value}
    return flat


def _spelt(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _opened(folder: "RunFolder | None", chosen: Recipe, arguments: Arguments) -> "Corpus":
    """The text of a run: of the one in the folder, where one is resumed."""
    from logosphere.data.hub_stream import is_stream

    if folder is not None and (arguments.resume or is_stream(chosen.data)):  # a stream has no cache to share
        return corpus_with_progress(folder.recipe.data, folder.tokenizer)
    from logosphere.runs.beginning import tokenizer_of

    return corpus_with_progress(chosen.data, tokenizer_of(chosen))


def _one_budget(chosen: Recipe, words: list[str]) -> Recipe:
    """A budget given on the command line takes the place of the recipe's own."""

    def given(option: str) -> bool:
        return any(word.split("=")[0].replace("_", "-") == option for word in words)

    steps, minutes, cpu_minutes = given("--steps"), given("--minutes"), given("--cpu-minutes")
    if not (steps or minutes or cpu_minutes):
        return chosen
    return replace(
        chosen,
        steps=chosen.steps if steps else None,
        minutes=chosen.minutes if minutes else None,
        cpu_minutes=chosen.cpu_minutes if cpu_minutes else None,
    )


def _carry_out(folder: "RunFolder", corpus: "Corpus", arguments: Arguments, team: "Team") -> int:
    with _board(folder, arguments, team) as board:
        outcome = followed(folder, corpus, board.note, team)
    if outcome.stopped:
        say(f"Stopped at step {outcome.step:,} and saved. Go on with: logosphere train --out {folder.path} --resume")
        return 130
    assert outcome.report is not None  # the last step of a run is always validated
    return 0 if not team.leads else _finish(folder, corpus, outcome.step, outcome.report, arguments)


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at its last step or because somebody stopped it."""

    step: int
    report: "Report | None"
    stopped: bool
    asked: bool
    """Did somebody ask to stop, even if there was nothing left to do?"""


def followed(
    folder: "RunFolder", corpus: "Corpus", note: "Callable[[Event], None]", team: "Team | None" = None
) -> Outcome:
    """Train, with a bar for those who watch."""
    from logosphere.data.splits import describe_size
    from logosphere.parallel.team import ALONE
    from logosphere.runs.interrupts import Interrupts
    from logosphere.runs.train import Advanced, Event, Saved, Validated, train

    team, settings = team or ALONE, folder.recipe
    preset = folder.spec.preset_label
    name = f"[bold]{settings.system}[/]" + ("" if preset == DEFAULT else f" (preset {preset})")
    say(f"{name} on {corpus.name} ({describe_size(corpus.train)}) in {folder.path}")
    report: Report | None = None
    done, step = 0.0, 0
    event: Event | None = None
    interrupts = Interrupts()
    with interrupts.heard(), ExitStack() as stack, bar(settings.system) as shown:
        team.first(lambda: stack.enter_context(folder.lock()))
        for event in train(folder, corpus, lambda: interrupts.requested or abandoned(), team):
            note(event)
            match event:
                case Advanced():
                    done, step = event.done, event.progress.step
                    _show(shown, event, corpus.tokenizer.unit)
                case Validated():
                    report, step = event.report, event.step
                    say(f"step {event.step:>7,}  validation {report}")
                case Saved():
                    step = event.step
    return Outcome(step, report, stopped=isinstance(event, Saved) and done < 1, asked=interrupts.requested)


def _show(shown: Bar, event: "Event", unit: str) -> None:
    from logosphere.runs.folder import SHORT
    from logosphere.runs.train import Advanced

    assert isinstance(event, Advanced)
    progress = event.progress
    step = f"{progress.step:,}" + (f"/{progress.steps:,}" if progress.steps else "")
    speed = progress.tokens_per_step / progress.seconds
    bits = f"{progress.nats / math.log(2):.3f} {SHORT[unit]}"
    shown.update(event.done, f"step {step}  loss {progress.loss:.3f}  {bits}  {speed:,.0f} tokens/s")


def _finish(folder: "RunFolder", corpus: "Corpus", step: int, report: "Report", arguments: Arguments) -> int:
    """The bound of the finished run, some samples, and what to do next."""
    from logosphere.atomic import write_whole
    from logosphere.sampling.generate import generate

    report.save(folder.path / "eval" / "valid.json")
    drawn = generate(folder.model(), n=4, steps=min(128, folder.recipe.length))
    texts = [corpus.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    write_whole(folder.path / "samples" / f"step-{step:08d}.txt", "\n\n".join(texts).encode() + b"\n")
    if arguments.json:
        content = report.summary()
        print_json({"run": str(folder.path), "step": step, "validation": content})
    else:
        print(f"{folder.recipe.system} on {report.data}: {report}")
        say(f"Run: {folder.path}   Next: logosphere sample {folder.path} --watch")
    return 0


def _board(folder: "RunFolder", arguments: Arguments, team: "Team") -> "Board":
    return Board(folder.path / "tensorboard" if arguments.tensorboard and team.leads else None)


class Board:
    """Copies metrics to tensorboard, when asked to."""

    def __init__(self, path: Path | None):
        self.path = path

    def __enter__(self) -> "Board":
        self.writer = None
        if self.path is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError("tensorboard is not installed; get it with: pip install 'logosphere[track]'") from None
            self.writer = SummaryWriter(str(self.path))
        return self

    def note(self, event: "Event") -> None:
        from logosphere.runs.train import Advanced, Validated

        if self.writer is None:
            return
        match event:
            case Advanced(progress=progress):
                self.writer.add_scalar("train/loss", progress.loss, progress.step)
            case Validated(step=step, report=report):
                self.writer.add_scalar(f"val/bits per {report.unit}", report.bits, step)

    def __exit__(self, *problem: object) -> None:
        if self.writer is not None:
            self.writer.close()
