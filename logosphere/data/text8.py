"""The cleaning that made text8 of Wikipedia: 26 letters, single spaces, digits spelled out."""

import re
from string import ascii_lowercase, ascii_uppercase

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_SPELLED = {ord(str(digit)): f" {word} " for digit, word in enumerate(DIGITS)}
# Only A–Z are lowered: str.lower would turn a few signs beyond ASCII into plain letters.
_LOWERED = {ord(upper): lower for upper, lower in zip(ascii_uppercase, ascii_lowercase, strict=True)}
_TABLE = _SPELLED | _LOWERED
_OTHERS = re.compile(r"[^a-z]+")


def text8_filter(text: str) -> str:
    """Any text in the alphabet of text8; a run of all that is not a letter or digit becomes one space."""
    return _OTHERS.sub(" ", text.translate(_TABLE))
