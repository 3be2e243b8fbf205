"""The error for mistakes in user input, suggestions for misspelt names, and libraries that may be missing."""

import math
import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType


class UserError(Exception):
    """A mistake in the input. Its message is shown without a traceback: what is wrong, and what is allowed."""


def suggest(word: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for a misspelt word, or the list of all known words when none is close."""
    words = sorted(known)
    match = get_close_matches(word, words, n=1, cutoff=0.5)
    return f" Did you mean '{match[0]}'?" if match else f" Choose from: {', '.join(words)}."


def plural(count: int | float, noun: str) -> str:
    """'1 step', '2 steps', '1,000 steps', '0.5 minutes'."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def check_count(name: str, value: object, least: int = 1) -> int:
    """A whole number of at least `least`; raises UserError for anything else, 8.5 and True among it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UserError(f"{name} must be a whole number of at least {least}, not {shorten(value)}.")
    return int(value)


def check_number(name: str, value: object) -> None:
    """Raise UserError for anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(float(value)):
        raise UserError(f"{name} must be a finite number, not {shorten(value)}.")


def shorten(value: object) -> str:
    """A value as errors show it, in at most about 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def import_optional(module: str) -> ModuleType:
    """Import a library that only some sources of data need."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"This source needs the package '{package}'; install it with: pip install 'logosphere[data]'."
        ) from error


def quote_path(path: str | Path) -> str:
    """A path as it must be typed in a command, with quotes where it has spaces."""
    return shlex.quote(str(path))
