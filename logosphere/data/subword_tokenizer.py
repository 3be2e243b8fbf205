"""Subword vocabularies: BPE and WordPiece, trained or read from a tokenizer.json."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from logosphere.data.tokenizers import TokenIds, Tokenizer, encode_utf8
from logosphere.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as SubwordModel

MAX_VOCABULARY = 1_000_000
UNKNOWN = "[UNK]"


@final
class SubwordTokenizer(Tokenizer):
    """A trained vocabulary of subwords."""

    unit = "token"

    def __init__(self, model: "SubwordModel", name: str):
        # A file may set both; a corpus needs every token and no padding.
        model.no_truncation()
        model.no_padding()
        numbers = model.get_vocab(with_added_tokens=True).values()
        if not numbers:
            raise ValueError("a vocabulary needs at least one token")
        self.name = name
        # Some published vocabularies have gaps, so the number of tokens is not the size.
        self.size = max(numbers) + 1
        self._model = model

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
            return SubwordTokenizer.from_json(path.read_text(encoding="utf-8"), path.stem)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a readable tokenizer.json ({error}); give another file.") from error

    @staticmethod
    def from_json(text: str, name: str) -> "SubwordTokenizer":
        from tokenizers import Tokenizer as Model

        try:
            model = Model.from_str(text)
        except Exception as error:  # the library raises no more specific class
            raise ValueError(str(error)) from error
        return SubwordTokenizer(model, name)

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        encode_utf8(text)  # raises where the library would fail less clearly
        try:
            ids = self._model.encode(text, add_special_tokens=False).ids
        except Exception as error:  # some vocabularies have no unknown token
            raise UserError(f"The tokenizer '{self.name}' cannot encode this text ({error}); use another.") from error
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        return self._model.decode(self._check_ids(ids).tolist(), skip_special_tokens=False)

    def describe(self) -> dict[str, Any]:
        return {"kind": "subwords", "name": self.name, "json": self._model.to_str()}


def _check_size(kind: str, size: int, least: int) -> None:
    if not least <= size <= MAX_VOCABULARY:
        raise UserError(f"A {kind} vocabulary has {least} to {MAX_VOCABULARY} tokens, not {size}; write {kind}:8000.")
