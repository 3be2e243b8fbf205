"""Text to token numbers and back: characters, bytes, or subwords."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
import numpy.typing as npt

from logosphere.atomic import write_whole
from logosphere.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as SubwordModel

Unit = Literal["character", "byte", "token", "dimension"]
Ids = npt.NDArray[np.integer[Any]]

TEXT8_ALPHABET = " abcdefghijklmnopqrstuvwxyz"
FORMAT = "logosphere-tokenizer"
VERSION = 1
LARGEST_VOCABULARY = 1_000_000
UNKNOWN = "[UNK]"

_SHOWN = {"\n": "⏎", "\t": "⇥"}


class Tokenizer(ABC):
    """A vocabulary of `size` tokens; its description is all that is needed to make it anew."""

    name: str
    unit: Unit
    size: int

    @abstractmethod
    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """The token numbers of a text, [L]."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text that token numbers spell."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything about this tokenizer, as JSON; `from_description` reads it back."""

    def symbol(self, id: int) -> str:
        """One token as it is shown on a screen, without line breaks or control characters."""
        return "".join(_SHOWN.get(c, c if c.isprintable() else "�") for c in self.decode([id]))

    @cached_property
    def fingerprint(self) -> str:
        canonical = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _checked(self, ids: Sequence[int] | Ids) -> npt.NDArray[np.int64]:
        # Without this a negative number would quietly spell a token from the end of the vocabulary.
        numbers = np.asarray(ids, dtype=np.int64).reshape(-1)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.size:
            raise ValueError(f"token numbers must lie in 0…{self.size - 1}")
        return numbers


@final
class Characters(Tokenizer):
    """One token per character of a fixed alphabet."""

    unit = "character"

    def __init__(self, alphabet: str, name: str = "characters"):
        if not alphabet or len(set(alphabet)) < len(alphabet):
            raise ValueError("an alphabet needs at least one character, and each only once")
        self.alphabet = alphabet
        self.name = name
        self.size = len(alphabet)
        self._points = _code_points(alphabet)
        # One entry beyond the largest code point stands for every character outside the alphabet.
        self._numbers = np.full(int(self._points.max()) + 2, -1, dtype=np.int64)
        self._numbers[self._points] = np.arange(self.size)

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        ids = self._numbers[np.minimum(_code_points(text), len(self._numbers) - 1)]
        if ids.size and ids.min() < 0:
            position = int(np.argmin(ids))
            cleaned = ", read a text by --data letters:TEXT" if self.alphabet == TEXT8_ALPHABET else ""
            raise UserError(
                f"The character {text[position]!r} at position {position} is not in the alphabet of this '{self.name}' "
                f"tokenizer; remove it{cleaned}, or train with --tokenizer byte or --tokenizer characters."
            )
        return ids

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return self._points[self._checked(ids)].tobytes().decode("utf-32-le", "surrogatepass")

    def describe(self) -> dict[str, Any]:
        return {"kind": "characters", "name": self.name, "alphabet": self.alphabet}


@final
class Bytes(Tokenizer):
    """One token per byte of UTF-8: takes any text."""

    name = "bytes"
    unit = "byte"
    size = 256

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        return np.frombuffer(_utf8(text), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return self._checked(ids).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def describe(self) -> dict[str, Any]:
        return {"kind": "bytes", "name": self.name}


@final
class Subwords(Tokenizer):
    """A trained vocabulary of pieces of words."""

    unit = "token"

    def __init__(self, model: "SubwordModel", name: str):
        # A file may ask for both; a corpus wants every token and nothing else.
        model.no_truncation()
        model.no_padding()
        numbers = model.get_vocab(with_added_tokens=True).values()
        if not numbers:
            raise ValueError("a vocabulary needs at least one token")
        self.name = name
        # Some published vocabularies have gaps, so that the count is not the size.
        self.size = max(numbers) + 1
        self._model = model

    @staticmethod
    def train_bpe(texts: Iterable[str], size: int) -> "Subwords":
        """Byte-level BPE: every text can be written, and decoding gives it back exactly."""
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        _check_size("bpe", size, 256)
        model = Model(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        model.train_from_iterator(texts, trainer)
        return Subwords(model, "bpe")

    @staticmethod
    def train_wordpiece(texts: Iterable[str], size: int) -> "Subwords":
        """WordPiece: spaces are not kept, and rare characters become [UNK]."""
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        _check_size("wordpiece", size, 64)
        model = Model(models.WordPiece(unk_token=UNKNOWN))
        model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        model.decoder = decoders.WordPiece()
        # Each character may come twice, as a beginning and as a continuation; together they must fit.
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, limit_alphabet=(size - 1) // 2, special_tokens=[UNKNOWN], show_progress=False
        )
        model.train_from_iterator(texts, trainer)
        return Subwords(model, "wordpiece")

    @staticmethod
    def from_file(path: Path) -> "Subwords":
        """Any tokenizer.json."""
        try:
            return Subwords.from_json(path.read_text(encoding="utf-8"), path.stem)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a readable tokenizer.json ({error}); give another file.") from error

    @staticmethod
    def from_json(text: str, name: str) -> "Subwords":
        from tokenizers import Tokenizer as Model

        try:
            model = Model.from_str(text)
        except Exception as error:  # the library raises nothing more specific
            raise ValueError(str(error)) from error
        return Subwords(model, name)

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        _utf8(text)
        try:
            ids = self._model.encode(text, add_special_tokens=False).ids
        except Exception as error:  # some vocabularies have no token for what they do not know
            raise UserError(f"The tokenizer '{self.name}' cannot write this text ({error}); use another.") from error
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return self._model.decode(self._checked(ids).tolist(), skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        return {"kind": "subwords", "name": self.name, "json": self._model.to_str()}


def text8() -> Characters:
    """The 27 characters of text8, the space first."""
    return Characters(TEXT8_ALPHABET, "text8")


def characters_of(text: str, seen: str = "") -> str:
    """The distinct characters of a text and of what was seen before, sorted; call it chunk by chunk."""
    return "".join(sorted(set(seen).union(text)))


_KINDS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    "characters": lambda description: Characters(description["alphabet"], description["name"]),
    "bytes": lambda description: Bytes(),
    "subwords": lambda description: Subwords.from_json(description["json"], description["name"]),
    "ended": lambda description: _special(description),
    "levels": lambda description: _special(description),
}


def _special(description: Mapping[str, Any]) -> Tokenizer:
    from logosphere.data.special import described  # it is made of the tokenizers of this file

    return described(description)


def from_description(description: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that described itself so; ValueError when none did."""
    try:
        if not isinstance(description["name"], str):
            raise TypeError("the name must be a string")
        return _KINDS[description["kind"]](description)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the description of a tokenizer: {error!r}") from error


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    content = {"format": FORMAT, "version": VERSION, **tokenizer.describe()}
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (
            FORMAT,
            VERSION,
        ):
            raise ValueError(f"it does not say {FORMAT} {VERSION}")
        return from_description(content)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a saved tokenizer ({error}); restore it from where it was saved."
        ) from error


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The character at position {error.start} is half of a surrogate pair; remove it from the text."
        ) from error


def _check_size(kind: str, size: int, least: int) -> None:
    if not least <= size <= LARGEST_VOCABULARY:
        raise UserError(
            f"A {kind} vocabulary has {least} to {LARGEST_VOCABULARY} tokens, not {size}; write {kind}:8000."
        )
