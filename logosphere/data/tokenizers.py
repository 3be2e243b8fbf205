"""Tokenizers of characters, bytes and integers, any of them with an EOS token; prompts with gaps."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import numpy.typing as npt

from logosphere.errors import UserError

if TYPE_CHECKING:
    import torch

    from logosphere.types import TextTokenizer

Unit = Literal["character", "byte", "token", "dimension"]
TokenIds = npt.NDArray[np.integer[Any]]
TEXT8_ALPHABET = " abcdefghijklmnopqrstuvwxyz"
_VISIBLE = {"\n": "⏎", "\t": "⇥"}


class Tokenizer(ABC):
    """A vocabulary of `size` tokens; its description is all that is needed to make it again."""

    name: str
    unit: Unit
    size: int
    eos: int | None = None
    """The token that ends a text, where there is one."""

    @abstractmethod
    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The token ids of a text, [L]."""

    def encode_chunk(self, text: str) -> TokenIds:
        """The ids of `encode` for a long text, in any type of integers that holds them."""
        return self.encode(text)

    @abstractmethod
    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """The text of token ids."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything about this tokenizer, as JSON; `tokenizer_from_description` reads it back."""

    def symbol(self, id: int) -> str:
        """One token as shown on a screen, without line breaks or control characters."""
        return "".join(_VISIBLE.get(c, c if c.isprintable() else "�") for c in self.decode([id]))

    @cached_property
    def fingerprint(self) -> str:
        canonical = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _check_ids(self, ids: Sequence[int] | TokenIds) -> npt.NDArray[np.int64]:
        # Without this a negative id would silently index from the end of the vocabulary.
        checked = np.asarray(ids, dtype=np.int64).reshape(-1)
        if checked.size and not 0 <= checked.min() <= checked.max() < self.size:
            raise ValueError(f"token numbers must lie in 0…{self.size - 1}")
        return checked


@final
class CharacterTokenizer(Tokenizer):
    """One token per character of a fixed alphabet."""

    unit = "character"

    def __init__(self, alphabet: str, name: str = "characters"):
        if not alphabet or len(set(alphabet)) < len(alphabet):
            raise ValueError("an alphabet needs at least one character, and each only once")
        self.alphabet = alphabet
        self.name = name
        self.size = len(alphabet)
        self._points = _code_points(alphabet)
        # One entry beyond the largest code point is for every character outside the alphabet.
        self._ids = np.full(int(self._points.max()) + 2, -1, dtype=np.int64)
        self._ids[self._points] = np.arange(self.size)
        # The same for bytes of ASCII; 255 is for bytes outside the alphabet.
        self._ascii = bytes(alphabet.find(chr(byte)) % 256 if byte < 128 else 255 for byte in range(256))

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        ids = self._ids[np.minimum(_code_points(text), len(self._ids) - 1)]
        if ids.size and ids.min() < 0:
            position = int(np.argmin(ids))
            cleaned = ", read a text by --data letters:TEXT" if self.alphabet == TEXT8_ALPHABET else ""
            raise UserError(
                f"The character {text[position]!r} at position {position} is not in the alphabet of this '{self.name}' "
                f"tokenizer; remove it{cleaned}, or train with --tokenizer byte or --tokenizer characters."
            )
        return ids

    def encode_chunk(self, text: str) -> TokenIds:
        if not text.isascii() or self.size > 255:
            return self.encode(text)
        ids = np.frombuffer(text.encode("ascii").translate(self._ascii), dtype=np.uint8)
        return ids if not ids.size or ids.max() < self.size else self.encode(text)  # which names the character

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        return self._points[self._check_ids(ids)].tobytes().decode("utf-32-le", "surrogatepass")

    def describe(self) -> dict[str, Any]:
        return {"kind": "characters", "name": self.name, "alphabet": self.alphabet}


@final
class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8; encodes any text."""

    name = "bytes"
    unit = "byte"
    size = 256

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        return self.encode_chunk(text).astype(np.int64)

    def encode_chunk(self, text: str) -> TokenIds:
        return np.frombuffer(encode_utf8(text), dtype=np.uint8)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        return self._check_ids(ids).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def describe(self) -> dict[str, Any]:
        return {"kind": "bytes", "name": self.name}


@final
class IntegerTokenizer(Tokenizer):
    """Integers 0 … size - 1 that are no text, such as the brightness of a pixel; as text they are separated by spaces.

    Up to size 10 the digits may be given without spaces, as sudokus are.
    """

    name = "levels"

    def __init__(self, size: int, unit: Unit = "dimension"):
        """The unit is "token" where the numbers stand for tokens whose texts are not known."""
        self.size, self.unit = size, unit

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        words = text.split() if self.size > 10 else list("".join(text.split()))
        if not all(word.isdecimal() and int(word) < self.size for word in words):
            raise UserError(f"This data must be numbers from 0 to {self.size - 1} separated by spaces.")
        return np.array([int(word) for word in words], dtype=np.int64)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        return " ".join(map(str, self._check_ids(ids)))

    def describe(self) -> dict[str, Any]:
        described = {"kind": "levels", "name": self.name, "size": self.size}
        return described if self.unit == "dimension" else described | {"unit": self.unit}


@final
class WithEOS(Tokenizer):
    """Another tokenizer with one more token, the last, which ends a text."""

    eos: int

    def __init__(self, inner: Tokenizer):
        self.inner, self.name, self.unit, self.size = inner, inner.name, inner.unit, inner.size + 1
        self.eos = inner.size

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The token ids of a text, without EOS."""
        return self.inner.encode(text)

    def encode_chunk(self, text: str) -> TokenIds:
        return self.inner.encode_chunk(text)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """The text up to the first EOS."""
        checked = self._check_ids(ids)
        ends = np.flatnonzero(checked == self.eos)
        return self.inner.decode(checked[: ends[0]] if len(ends) else checked)

    def symbol(self, id: int) -> str:
        return "␃" if id == self.eos else self.inner.symbol(id)

    def describe(self) -> dict[str, Any]:
        return {"kind": "ended", "name": self.name, "inner": self.inner.describe()}


def text8_tokenizer() -> CharacterTokenizer:
    """The 27 characters of text8, the space first."""
    return CharacterTokenizer(TEXT8_ALPHABET, "text8")


def merge_alphabet(text: str, alphabet: str = "") -> str:
    """The distinct characters of a text and of an alphabet, sorted."""
    if text.isascii() and alphabet.isascii():
        # Known characters are deleted first, which is much faster than making a set of all.
        text = text.encode("ascii").translate(None, alphabet.encode("ascii")).decode("ascii")
    return "".join(sorted(set(alphabet).union(text)))


def encode_utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text; raises UserError for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The character at position {error.start} is half of a surrogate pair; remove it from the text."
        ) from error


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


@dataclass(frozen=True)
class Prompt:
    """Known tokens [L] and a mask of their positions [L]; the other positions are generated."""

    tokens: "torch.Tensor"
    known: "torch.Tensor"


def encode_prompt(text: str, tokenizer: "TextTokenizer", length: int, start: int | None = None) -> Prompt:
    """A text at the start of the sequence, after the token `start` if there is one; all later positions are open."""
    tokens = tokenizer.encode(text).tolist()
    if start is not None and tokens[:1] != [start]:
        tokens = [start, *tokens]
    if len(tokens) >= length:
        raise UserError(f"The prompt has {len(tokens)} tokens, but sequences of this model have {length}; shorten it.")
    return _pad(tokens, [True] * len(tokens), length)


def encode_infill(text: str, tokenizer: "TextTokenizer", length: int, start: int | None = None) -> Prompt:
    """A text with gaps such as [....] or [12], after the token `start`; positions after it are open as well."""
    tokens: list[int] = []
    known: list[bool] = []
    for part in re.split(r"(\[\.+\]|\[[0-9]{1,6}\])", text):
        gap = _gap_length(part)
        encoded = tokenizer.encode(part).tolist() if gap is None else [0] * gap
        tokens += encoded
        known += [gap is None] * len(encoded)
    if start is not None and not (known[:1] == [True] and tokens[0] == start):
        tokens, known = [start, *tokens], [True, *known]
    if len(tokens) > length:
        raise UserError(f"The text has {len(tokens)} tokens, but sequences of this model have {length}; shorten it.")
    if len(tokens) == length and all(known):
        raise UserError("The text leaves no position open; shorten it or open a gap like [....].")
    return _pad(tokens, known, length)


def encode_hold(text: str, tokenizer: "TextTokenizer", length: int) -> Prompt:
    """Token numbers at positions, such as '0:17,4 12:33': 17 and 4 from position 0 on, and 33 at position 12."""
    tokens, known = [0] * length, [False] * length
    for part in text.split():
        if not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,9}(,[0-9]{1,9})*", part):
            raise UserError(f"'{part}' is not a position and its tokens; write for example '0:17,4 12:33'.")
        start, ids = int(part.split(":")[0]), [int(id) for id in part.split(":")[1].split(",")]
        if start + len(ids) > length:
            last = start + len(ids) - 1
            raise UserError(f"'{part}' holds position {last}, but sequences of this model end at {length - 1}.")
        if max(ids) >= tokenizer.size:
            raise UserError(f"'{part}' holds token {max(ids)}, but tokens are numbers from 0 to {tokenizer.size - 1}.")
        tokens[start : start + len(ids)], known[start : start + len(ids)] = ids, [True] * len(ids)
    if all(known):
        raise UserError("Every position is held, so there is nothing to generate; leave some out.")
    return _pad(tokens, known, length)


def _gap_length(part: str) -> int | None:
    """The number of positions that '[....]' or '[12]' leaves open; None for plain text."""
    if re.fullmatch(r"\[\.+\]", part):
        return len(part) - 2
    return int(part[1:-1]) if re.fullmatch(r"\[[0-9]{1,6}\]", part) else None


def _pad(tokens: list[int], known: list[bool], length: int) -> Prompt:
    import torch

    rest = length - len(tokens)
    return Prompt(torch.tensor(tokens + [0] * rest), torch.tensor(known + [False] * rest))
