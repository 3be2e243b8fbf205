"""Usage errors in one sentence, from the events that tyro reports when it rejects arguments."""

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_type_hints

from tyro import _errors as tyro_errors

from logosphere.errors import UserError

TYPES = {"INT": "a whole number", "FLOAT": "a number", "BOOL": "True or False", "PATH": "a path", "STR": "a word"}


class UsageError(UserError):
    """Arguments that are no valid command line; what a command itself refuses is another kind of error."""


def explain(event: tyro_errors.ParseErrorEvent, arguments: type, argv: Sequence[str], command: str) -> str:
    """What is wrong with the arguments, what is allowed, and where to read more."""
    return f"{_sentence(event, arguments, argv)} See: logosphere {command.split(' [')[0]} --help"


def _sentence(event: tyro_errors.ParseErrorEvent, arguments: type, argv: Sequence[str]) -> str:
    match event:
        case tyro_errors.MissingArgs(missing_arguments=[first, *_]):
            text = first.arg.field.helptext  # documentation is looked up when it is needed
            about = str((text() if callable(text) else text) or "").strip().split("\n")[0].rstrip(".")
            return f"{_name(first.arg)} is missing: {about[:1].lower()}{about[1:]}."
        case tyro_errors.BadValue(argument=argument):
            return f"{_name(argument)} needs a value."
        case tyro_errors.InvalidChoice(argument=argument, value=value, choices=choices):
            return f"{_name(argument)} must be one of {', '.join(choices)}, not '{value}'."
        case tyro_errors.UnrecognizedArgs(tokens=tokens):
            options = [token for token in tokens if token.startswith("-")] or list(tokens)
            close = difflib.get_close_matches(options[0].split("=")[0], list(_options(arguments)), n=1, cutoff=0.75)
            hint = f" Did you mean {close[0]}?" if close else ""
            return f"There is no option {', '.join(options)}.{hint}"
        case tyro_errors.InstantiationFailure(argument=argument) if argument is not None:
            name, kinds = _name(argument), str(argument.lowered.metavar or "STR").split("|")
            allowed = " or ".join(TYPES.get(kind, kind.strip("{}")) for kind in kinds)
            return f"{name} must be {allowed}, not {_given(name, argv)}."
        case tyro_errors.InstantiationFailure(message=message):
            return message if message.endswith(".") else f"{message}."
        case _:
            return "These options cannot be read."


def _name(argument: Any) -> str:
    """--steps, or RUN for a positional argument."""
    name = str(argument.lowered.name_or_flags[-1])
    return name if name.startswith("--") else str(argument.lowered.metavar or name).strip("[]{} ").split("|")[-1]


def _given(name: str, argv: Sequence[str]) -> str:
    """The value that an option was given, as it was written."""
    for place, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") == name:
            return repr(value) if equals else repr(argv[place + 1]) if place + 1 < len(argv) else "nothing"
    return "this value"


def _options(arguments: type, prefix: str = "--") -> Iterator[str]:
    """The options of a dataclass of arguments, those of dataclasses within it included."""
    hints = get_type_hints(arguments)
    for field in dataclasses.fields(arguments):
        kind = hints[field.name]
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _options(kind, f"{name}.")
            yield from _options(kind, prefix)  # settings that stand without a prefix
        else:
            yield name
