"""Which tokenizer a user means, for a text of a known alphabet."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from logosphere.data.tokenizers import TEXT8_ALPHABET, Bytes, Characters, Subwords, Tokenizer, text8
from logosphere.errors import UserError, nearest

TOKENIZERS = ("auto", "text8", "characters", "byte", "bpe:SIZE", "wordpiece:SIZE")
MOST_CHARACTERS = 128
"""The largest alphabet for which 'auto' takes characters rather than bytes."""


@dataclass(frozen=True)
class Choice:
    """A tokenizer to be made: `key` names it in the cache, and `make` may train it on the train split."""

    key: str
    make: Callable[[Iterable[str]], Tokenizer]


def _given(tokenizer: Tokenizer) -> Choice:
    return Choice(f"given-{tokenizer.fingerprint}", lambda texts: tokenizer)


def choose(tokenizer: str | Tokenizer, alphabet: str) -> Choice:
    """A tokenizer as it is, or the one of this name for a text of this alphabet."""
    return _given(tokenizer) if isinstance(tokenizer, Tokenizer) else _named(tokenizer, alphabet)


def _named(name: str, alphabet: str) -> Choice:
    if name == "auto":
        name = _suited(alphabet)
    if name == "text8":
        strange = set(alphabet) - set(TEXT8_ALPHABET)
        if strange:
            raise UserError(
                f"The text holds {min(strange)!r}, which is not in the alphabet of text8; "
                f"read it as letters:TEXT, or use --tokenizer characters or --tokenizer byte."
            )
        return Choice(name, lambda texts: text8())
    if name == "characters":
        return Choice(name, lambda texts: Characters(alphabet))
    if name == "byte":
        return Choice(name, lambda texts: Bytes())
    kind, _, size = name.partition(":")
    if kind in _TRAINERS:
        if not re.fullmatch(r"[0-9]{1,9}", size):
            raise UserError(f"The tokenizer '{name}' lacks a size; write {kind}:8000, say.")
        return Choice(f"{kind}:{int(size)}", lambda texts: _TRAINERS[kind](texts, int(size)))
    path = Path(name).expanduser()
    if path.is_file():
        return _given(Subwords.from_file(path))
    raise UserError(f"There is no tokenizer or tokenizer file '{name}'.{nearest(name, TOKENIZERS)}")


_TRAINERS: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "bpe": Subwords.train_bpe,
    "wordpiece": Subwords.train_wordpiece,
}


def _suited(alphabet: str) -> str:
    if set(alphabet) <= set(TEXT8_ALPHABET):
        return "text8"
    return "characters" if len(alphabet) <= MOST_CHARACTERS else "byte"
