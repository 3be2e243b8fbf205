"""Subword tokenizers, and tokenizers by name, by description and from files."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from logosphere.data.tokenizer_limits import LimitedCalls, TokenizerFailure, call_library, has_patterns
from logosphere.data.tokenizers import (
    TEXT8_ALPHABET,
    ByteTokenizer,
    CharacterTokenizer,
    IntegerTokenizer,
    TokenIds,
    Tokenizer,
    Unit,
    WithEOS,
    encode_utf8,
    merge_alphabet,
    text8_tokenizer,
)
from logosphere.errors import UserError, shorten, suggest
from logosphere.io import TOKENIZER_FORMAT, TOKENIZER_VERSION, write_tokenizer
from logosphere.untrusted import read_object, read_regular

if TYPE_CHECKING:
    from tokenizers import Tokenizer as SubwordModel

MAX_VOCABULARY = 1_000_000
UNKNOWN = "[UNK]"


@final
class SubwordTokenizer(Tokenizer):
    """A trained vocabulary of subwords."""

    unit = "token"

    def __init__(self, model: "SubwordModel", name: str, size: int | None = None):
        """`size` is the number of tokens of a model whose table is larger or smaller than the vocabulary.

        Tokens beyond the vocabulary have no text; those from `size` on, such as a mask, are refused in texts.
        """
        # A file may set both; a corpus needs every token and no padding.
        model.no_truncation()
        model.no_padding()
        numbers = model.get_vocab(with_added_tokens=True).values()
        if not numbers:
            raise ValueError("a vocabulary needs at least one token")
        self.name = name
        # Some published vocabularies have gaps, so the number of tokens is not the size.
        self.own_size = max(numbers) + 1
        self.size = self.own_size if size is None else size
        self._model = model
        self._calls = LimitedCalls() if has_patterns(model) else None

    @staticmethod
    def train_bpe(texts: Iterable[str], size: int) -> "SubwordTokenizer":
        """Train byte-level BPE, which encodes every text and decodes it exactly."""
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        _check_size("bpe", size, 256)
        model = Model(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        model.train_from_iterator(texts, trainer)
        return SubwordTokenizer(model, "bpe")

    @staticmethod
    def train_wordpiece(texts: Iterable[str], size: int) -> "SubwordTokenizer":
        """Train WordPiece, which does not keep spaces and encodes rare characters as [UNK]."""
        from tokenizers import Tokenizer as Model
        from tokenizers import decoders, models, pre_tokenizers, trainers

        _check_size("wordpiece", size, 64)
        model = Model(models.WordPiece(unk_token=UNKNOWN))
        model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        model.decoder = decoders.WordPiece()
        # Each character may occur twice, as a beginning and as a continuation; together they must fit.
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, limit_alphabet=(size - 1) // 2, special_tokens=[UNKNOWN], show_progress=False
        )
        model.train_from_iterator(texts, trainer)
        return SubwordTokenizer(model, "wordpiece")

    @staticmethod
    def from_file(path: Path) -> "SubwordTokenizer":
        """Read a tokenizer.json."""
        try:
            return SubwordTokenizer.from_json(read_regular(path).decode(), path.stem)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a readable tokenizer.json ({error}); give another file.") from error

    @staticmethod
    def from_json(text: str, name: str, size: int | None = None) -> "SubwordTokenizer":
        from tokenizers import Tokenizer as Model

        try:
            model = call_library(lambda: Model.from_str(text))
        except TokenizerFailure as error:
            raise ValueError(str(error)) from error
        return SubwordTokenizer(model, name, size)

    def resized(self, size: int) -> "SubwordTokenizer":
        """The same vocabulary for a model of this number of tokens."""
        return SubwordTokenizer.from_json(self._model.to_str(), self.name, size)

    def find_id(self, token: str) -> int | None:
        """The id of a token by its text, where there is one."""
        found: int | None = self._model.token_to_id(token)
        return found

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        encode_utf8(text)  # raises where the library would fail less clearly
        try:
            if self._calls is None:
                ids = call_library(lambda: self._model.encode(text, add_special_tokens=False)).ids
            else:  # functions for several texts release the interpreter
                ids = self._calls(lambda: self._model.encode_batch([text], add_special_tokens=False), len(text))[0].ids
        except TokenizerFailure as error:  # also where a vocabulary has no unknown token
            raise UserError(f"The tokenizer '{self.name}' cannot encode this text ({error}); use another.") from error
        return np.array(self._refuse_unused(ids), dtype=np.int64)

    def encode_chunk(self, text: str) -> TokenIds:
        encode_utf8(text)
        try:
            # The same ids without their positions in the text, in half the time.
            ids = call_library(lambda: self._model.encode_batch_fast([text], add_special_tokens=False))[0].ids
        except TokenizerFailure as error:
            raise UserError(f"The tokenizer '{self.name}' cannot encode this text ({error}); use another.") from error
        return np.array(self._refuse_unused(ids), dtype=np.uint32)

    def _refuse_unused(self, ids: list[int]) -> list[int]:
        if self.size < self.own_size and ids and max(ids) >= self.size:
            token = self._model.id_to_token(max(ids))
            raise UserError(f"The text holds {token!r}, which is no token of this model; remove it from the text.")
        return ids

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        row = self._check_ids(ids).tolist()
        try:
            if self._calls is None:
                return call_library(lambda: self._model.decode(row, skip_special_tokens=False))
            return self._calls(lambda: self._model.decode_batch([row], skip_special_tokens=False), len(row))[0]
        except TokenizerFailure as error:
            raise UserError(f"The tokenizer '{self.name}' cannot decode tokens ({error}); use another.") from error

    def id_of(self, token: str) -> int | None:
        """The id of a token by its name, such as <|endoftext|>; None if there is none."""
        found: int | None = self._model.token_to_id(token)
        return found

    def describe(self) -> dict[str, Any]:
        described = {"kind": "subwords", "name": self.name, "json": self._model.to_str()}
        return described if self.size == self.own_size else described | {"size": self.size}


def _check_size(kind: str, size: int, least: int) -> None:
    if not least <= size <= MAX_VOCABULARY:
        raise UserError(f"A {kind} vocabulary has {least} to {MAX_VOCABULARY} tokens, not {size}; write {kind}:8000.")


def _frequent_pieces(encoder: str) -> Callable[[Iterable[str], int], Tokenizer]:
    """Tokenizers of the word pieces of a pretrained encoder that are most frequent in some texts."""

    def make(texts: Iterable[str], size: int) -> Tokenizer:
        from logosphere.autoencoders.pretrained import encoder_tokenizer, reduce_vocabulary  # needs torch

        reduced = reduce_vocabulary(encoder_tokenizer(encoder), texts, size)
        return SubwordTokenizer.from_json(reduced.tokenizer, encoder)

    return make


TOKENIZERS = ("auto", "text8", "characters", "byte", "bpe:SIZE", "wordpiece:SIZE", "minilm:SIZE", "mpnet:SIZE")
MAX_CHARACTERS = 128
"""The largest alphabet for which 'auto' takes characters rather than bytes."""
_TRAINERS: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "bpe": SubwordTokenizer.train_bpe,
    "wordpiece": SubwordTokenizer.train_wordpiece,
    "minilm": _frequent_pieces("minilm"),
    "mpnet": _frequent_pieces("mpnet"),
}


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer to be made: `key` names it in the cache, and `make` may train it on the train split."""

    key: str
    make: Callable[[Iterable[str]], Tokenizer]


def choose_tokenizer(tokenizer: str | Tokenizer, alphabet: str) -> TokenizerChoice:
    """A tokenizer as it is, or the one of this name for a text of this alphabet."""
    return _existing(tokenizer) if isinstance(tokenizer, Tokenizer) else _named(tokenizer, alphabet)


def make_tokenizer(tokenizer: object, texts: Sequence[str] = (), *, end: bool = False) -> Tokenizer:
    """A tokenizer by its name: text8, byte, the path of a tokenizer.json, or one that is made from `texts`.

    Made from texts are characters (all that occur), auto, bpe:SIZE, wordpiece:SIZE, and minilm:SIZE or mpnet:SIZE,
    the most frequent word pieces of that encoder. Tokenizers of the libraries
    `tokenizers` and `transformers` are converted. With `end` there is one more token, which ends a text and pads it.
    """
    if isinstance(tokenizer, Tokenizer):
        made = tokenizer
    elif isinstance(tokenizer, str | Path):
        name = str(tokenizer)
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise UserError("The texts of a tokenizer must be a list of strings.")
        if not texts and name.partition(":")[0] in (*_TRAINERS, "characters", "auto"):
            raise UserError(f"The tokenizer '{name}' is made from texts; pass a list of them.")
        made = choose_tokenizer(name, merge_alphabet("".join(texts))).make(texts)
    else:
        made = _converted(tokenizer)
    return WithEOS(made) if end and made.eos is None else made


def _converted(tokenizer: object) -> Tokenizer:
    """A tokenizer of another library; a copy, whose truncation and padding can be switched off."""
    model = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of a fast tokenizer of transformers
    write = getattr(model, "to_str", None)
    if write is None:
        raise UserError(
            f"A tokenizer must be a name, a file, or a (fast) tokenizer of tokenizers or transformers, not "
            f"{shorten(tokenizer)}."
        )
    return SubwordTokenizer.from_json(write(), "subwords")


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
            raise UserError(f"The tokenizer '{name}' lacks a size; for example {kind}:8000.")
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
    unit: Unit = "token" if description.get("unit") == "token" else "dimension"
    return IntegerTokenizer(size, unit)


def _subwords(description: Mapping[str, Any]) -> SubwordTokenizer:
    size = description.get("size")
    if size is not None and (type(size) is not int or not 1 <= size <= 1 << 24):
        raise ValueError("the number of tokens must be a positive whole number")
    return SubwordTokenizer.from_json(description["json"], description["name"], size)


_KINDS: dict[str, Callable[[Mapping[str, Any]], Tokenizer]] = {
    "characters": lambda description: CharacterTokenizer(description["alphabet"], description["name"]),
    "bytes": lambda description: ByteTokenizer(),
    "subwords": _subwords,
    "ended": lambda description: WithEOS(tokenizer_from_description(description["inner"])),
    "levels": _integers,
}


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    write_tokenizer(path, tokenizer.describe())


def load_tokenizer(path: Path) -> Tokenizer:
    try:
        content = read_object(path, inside=path.parent)
        written = (TOKENIZER_FORMAT, TOKENIZER_VERSION)
        if (content.get("format"), content.get("version")) != written:
            raise ValueError(f"it does not have the format {TOKENIZER_FORMAT} {TOKENIZER_VERSION}")
        return tokenizer_from_description(content)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as a saved tokenizer ({error}); restore it from where it was saved."
        ) from error
