"""The error for mistakes in user input, and suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches


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
