"""Errors that users cause and can mend: one sentence that says what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the input. Its message is shown as it is, without a traceback."""


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for a misspelt word, or the list of all words when nothing is close."""
    words = sorted(known)
    match = get_close_matches(word, words, n=1, cutoff=0.5)
    return f" Did you mean '{match[0]}'?" if match else f" Choose from: {', '.join(words)}."
