"""Tokenizers by name, by description and from files."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logosphere.data.subword_tokenizer import SubwordTokenizer
from logosphere.data.tokenizers import (
    TEXT8_ALPHABET,
    ByteTokenizer,
    CharacterTokenizer,
    IntegerTokenizer,
    Tokenizer,
    WithEOS,
    text8_tokenizer,
)
from logosphere.errors import UserError, suggest
from logosphere.io import write_atomic

FORMAT = "logosphere-tokenizer"
VERSION = 1
TOKENIZERS = ("auto", "text8", "characters", "byte", "bpe:SIZE", "wordpiece:SIZE")
MAX_CHARACTERS = 128
"""The largest alphabet for which 'auto' takes characters rather than bytes."""

_TRAINERS: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "bpe": SubwordTokenizer.train_bpe,
    "wordpiece": SubwordTokenizer.train_wordpiece,
}


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer to be made: `key` names it in the cache, and `make` may train it on the train split."""

    key: str
    make: Callable[[Iterable[str]], Tokenizer]


def choose_tokenizer(tokenizer: str | Tokenizer, alphabet: str) -> TokenizerChoice:
    """A tokenizer as it is, or the one of this name for a text of this alphabet."""
    return _existing(tokenizer) if isinstance(tokenizer, Tokenizer) else _named(tokenizer, alphabet)


def _existing(tokenizer: Tokenizer) -> TokenizerChoice:
    return TokenizerChoice(f"given-{tokenizer.fingerprint}", lambda texts: tokenizer)


def _named(name: str, alphabet: str) -> TokenizerChoice:
    if name == "auto":
        name = _default_name(alphabet)
    if name == "text8":
        foreign = set(alphabet) - set(TEXT8_ALPHABET)
        if foreign:
            raise UserError(
                f"The text holds {min(foreign)!r}, which is not in the alphabet of text8; "
                f"read it as letters:TEXT, or use --tokenizer characters or --tokenizer byte."
            )
        return TokenizerChoice(name, lambda texts: text8_tokenizer())
    if name == "characters":
        return TokenizerChoice(name, lambda texts: CharacterTokenizer(alphabet))
    if name == "byte":
        return TokenizerChoice(name, lambda texts: ByteTokenizer())
    kind, _, size = name.partition(":")
    if kind in _TRAINERS:
        if not re.fullmatch(r"[0-9]{1,9}", size):
            raise UserError(f"The tokenizer '{name}' lacks a size; write {kind}:8000, say.")
        return TokenizerChoice(f"{kind}:{int(size)}", lambda texts: _TRAINERS[kind](texts, int(size)))
    path = Path(name).expanduser()
    if path.is_file():
        return _existing(SubwordTokenizer.from_file(path))
    raise UserError(f"There is no tokenizer or tokenizer file '{name}'.{suggest(name, TOKENIZERS)}")


def _default_name(alphabet: str) -> str:
    if set(alphabet) <= set(TEXT8_ALPHABET):
        return "text8"
    return "characters" if len(alphabet) <= MAX_CHARACTERS else "byte"


def tokenizer_from_description(description: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer with this `describe()`; ValueError when there is none."""
    try:
        if not isinstance(description["name"], str):
            raise TypeError("the name must be a string")
        return _KINDS[description["kind"]](description)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the description of a tokenizer: {error!r}") from error


def _integers(description: Mapping[str, Any]) -> IntegerTokenizer:
    size = description["size"]
    if type(size) is not int or not 1 <= size <= 1 << 24:
        raise ValueError("the number of levels must be a positive whole number")
    return IntegerTokenizer(size)


_KINDS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    "characters": lambda description: CharacterTokenizer(description["alphabet"], description["name"]),
    "bytes": lambda description: ByteTokenizer(),
    "subwords": lambda description: SubwordTokenizer.from_json(description["json"], description["name"]),
    "ended": lambda description: WithEOS(tokenizer_from_description(description["inner"])),
    "levels": _integers,
}


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    content = {"format": FORMAT, "version": VERSION, **tokenizer.describe()}
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"it does not say {FORMAT} {VERSION}")
        return tokenizer_from_description(content)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a saved tokenizer ({error}); restore it from where it was saved."
        ) from error
