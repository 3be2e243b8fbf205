"""What commands share: parsing arguments with usage errors of one sentence, printing results, and progress bars."""

import dataclasses
import difflib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, get_args, get_type_hints

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text
from tyro import _errors as tyro_errors

from logosphere.cli import UsageError
from logosphere.cli.encoding import encodes_everything
from logosphere.io import json_safe
from logosphere.parallel.launch import rank
from logosphere.runs.settings import Display
from logosphere.terminal import neutralise, show_json

T = TypeVar("T")

Flat = tyro.conf.arg(name="")
"""Settings whose options have no prefix."""

POSITIONAL = get_args(tyro.conf.Positional[int])[1:]
"""The mark of fields that are given without an option."""

messages = Console(stderr=True, highlight=False, quiet=rank() > 0)
"""Progress and remarks go here, so that results on standard output can be piped. Only the main process prints."""


def log(remark: str, style: str = "") -> None:
    """A remark on one line, however long, as it is: names in it may look like markup."""
    messages.print(Text(neutralise(remark), style=style), soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table to standard output."""
    Console(highlight=False).print(table)


class Arguments:
    """Arguments of a command."""

    @property
    def processes(self) -> int:
        """Processes that the command runs in."""
        return 1

    def check(self) -> None:
        """Raise for values that contradict each other or are unknown."""


def parse(kind: type[T], argv: list[str], command: str, default: T | None = None, about: str | None = None) -> T:
    """The arguments of a command; --help is answered here, and usage errors are raised as one sentence."""

    def refuse(event: tyro_errors.ParseErrorEvent) -> None:
        raise UsageError(explain(event, kind, argv, command))

    config = [tyro.conf.AvoidSubcommands, tyro.conf.PositionalMetavarFromFieldName]
    settings: dict[str, Any] = {"args": argv, "prog": f"logosphere {command}"}
    if default is not None:
        settings["default"] = default
    if about is None:  # without a recipe of all settings there is nothing that None or --no-… could take back
        settings["config"] = [*config, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone]
    else:
        settings |= {"config": config, "description": about}
    with tyro_errors.on_parse_error(refuse):
        return tyro.cli(kind, **settings)


def named_settings(argv: Sequence[str], prefix: str) -> tuple[str, ...]:
    """The settings that arguments name by options with this prefix: width for --network.width."""
    words = [word.split("=")[0].removeprefix(prefix) for word in argv if word.startswith(prefix)]
    return tuple(word.removeprefix("no-").replace("-", "_") for word in words)


def print_json(content: dict[str, Any]) -> None:
    ascii_only = not encodes_everything(sys.stdout)  # escapes lose nothing
    show_json(json_safe(content), ascii_only=ascii_only)


def format_time(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Bar:
    """A live bar with a line of figures; silent where output is not a terminal."""

    def __init__(self, progress: Progress, task: TaskID):
        self.progress, self.task, self.started, self.first = progress, task, time.monotonic(), 0.0

    def update(self, done: float, figures: str) -> None:
        """Show the fraction done, figures, and the time left at the speed so far."""
        if not self.first:
            self.first = done
        elapsed = time.monotonic() - self.started
        left = elapsed * (1 - done) / (done - self.first) if done > self.first else float("nan")
        ending = f"{format_time(left)} left" if left == left else ""
        self.progress.update(self.task, completed=done, figures=neutralise(figures), left=ending)


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """A progress bar on the terminal."""
    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}", markup=False),
        TextColumn("{task.fields[left]}", style="dim", markup=False),
    )
    with Progress(*columns, console=messages, disable=not messages.is_terminal, transient=True) as progress:
        yield Bar(progress, progress.add_task(neutralise(title), total=1.0, figures="", left=""))


DISPLAY = Display(bar=bar, log=log)
"""Progress and remarks of the verbs, on the terminal."""


# ---- usage errors, from the events that tyro reports when it rejects arguments -------------------------------

TYPES = {"INT": "a whole number", "FLOAT": "a number", "BOOL": "True or False", "PATH": "a path", "STR": "a word"}


def explain(event: tyro_errors.ParseErrorEvent, arguments: type, argv: Sequence[str], command: str) -> str:
    """What is wrong with the arguments, what is allowed, and where to read more."""
    return f"{_sentence(event, arguments, argv)} See: logosphere {command.split(' [')[0]} --help"


def _sentence(event: tyro_errors.ParseErrorEvent, arguments: type, argv: Sequence[str]) -> str:
    if named := _named_positional(arguments, argv):
        return f"There is no option {named}. Give {named.removeprefix('--').upper()} as it is, without an option."
    match event:
        case tyro_errors.MissingArgs(missing_arguments=[first, *_]):
            text = first.arg.field.helptext  # a function in some versions of tyro
            about = str((text() if callable(text) else text) or "").strip().split("\n")[0].rstrip(".")
            return f"{_name(first.arg)} is missing: {about[:1].lower()}{about[1:]}."
        case tyro_errors.BadValue(argument=argument):
            return f"{_name(argument)} needs a value."
        case tyro_errors.InvalidChoice(argument=argument, value=value, choices=choices):
            return f"{_name(argument)} must be one of {', '.join(choices)}, not '{value}'."
        case tyro_errors.UnrecognizedArgs(tokens=tokens):
            options = [token for token in tokens if token.startswith("-")]
            if not options:
                return f"'{tokens[0]}' is one argument too many."
            close = difflib.get_close_matches(options[0].split("=")[0], list(_options(arguments)), n=1, cutoff=0.75)
            hint = f" Did you mean {close[0]}?" if close else ""
            return f"There is no option {', '.join(options)}.{hint}"
        case tyro_errors.InstantiationFailure(argument=argument) if argument is not None:
            name, kinds = _name(argument), str(argument.lowered.metavar or "STR").split("|")
            allowed = " or ".join(TYPES.get(kind, kind.strip("{}")) for kind in kinds)
            return f"{name} must be {allowed}, not {_given(argument.lowered.name_or_flags, argv)}."
        case tyro_errors.InstantiationFailure(message=message):
            return message if message.endswith(".") else f"{message}."
        case _:
            return "These options cannot be read."


def _name(argument: Any) -> str:
    """--steps, or RUN for a positional argument."""
    name = str(argument.lowered.name_or_flags[-1])
    return name if name.startswith("--") else str(argument.lowered.metavar or name).strip("[]{} ").split("|")[-1]


def _given(names: Sequence[str], argv: Sequence[str]) -> str:
    """The value of an option, as it was typed; the last one where it is repeated, which is the one that counts."""
    for place, word in reversed(list(enumerate(argv))):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") in names:
            return repr(value) if equals else repr(argv[place + 1]) if place + 1 < len(argv) else "nothing"
    return "this value"


def _options(arguments: type, prefix: str = "--") -> Iterator[str]:
    """The options of a dataclass of arguments, those of dataclasses within it included."""
    hints, positionals = get_type_hints(arguments), _positionals(arguments)
    for field in dataclasses.fields(arguments):
        if field.name in positionals:
            continue
        kind = hints[field.name]
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _options(kind, f"{name}.")
            yield from _options(kind, prefix)  # settings that stand without a prefix
        else:
            yield name


def _named_positional(arguments: type, argv: Sequence[str]) -> str:
    """The option among the arguments that has the name of a field given without one; empty if there is none."""
    positionals = {f"--{name}".rstrip("s") for name in _positionals(arguments)}
    options = (word.split("=")[0] for word in argv)
    return next((option for option in options if option.rstrip("s") in positionals), "")


def _positionals(arguments: type) -> list[str]:
    """The fields of a dataclass of arguments that are given without an option."""
    hints = get_type_hints(arguments, include_extras=True)
    marked = {name: getattr(kind, "__metadata__", ()) for name, kind in hints.items()}
    return [name for name, marks in marked.items() if any(mark in POSITIONAL for mark in marks)]
