"""Streamed datasets of the hub: stream:OWNER/NAME[:CONFIG], or a folder in place of a name.

Splits for validation and test come from the dataset if it has them, else from its first documents; the training split
begins after these. A tokenizer is trained on the first documents of the training split.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logosphere.data.corpus import Corpus
from logosphere.data.readers import BLANK_LINE, TEXT_COLUMN, check_cell, check_column, import_optional
from logosphere.data.sources import HUB_PREFIX, ReportProgress
from logosphere.data.streaming import StreamedSplit
from logosphere.data.tokenizer_registry import choose_tokenizer
from logosphere.data.tokenizers import TokenIds, Tokenizer, merge_alphabet
from logosphere.errors import UserError

STREAM_PREFIX = "stream:"
HELD_OUT_CHARACTERS = 1 << 20
"""Characters of each of the splits for validation and test."""
TOKENIZER_CHARACTERS = 1 << 24
"""Characters that a tokenizer is trained on."""
HUB_SPLITS = {"valid": "validation", "test": "test"}
"""Names of the held-out splits on the hub."""


def is_stream(source: str) -> bool:
    return source.startswith(STREAM_PREFIX)


def open_stream(source: str, tokenizer: str | Tokenizer, report: ReportProgress) -> Corpus:
    """A streamed dataset as a corpus."""
    report("reading the first documents", 0, 0)
    name, _, config = source.removeprefix(STREAM_PREFIX).removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise UserError(f"'{source}' names no dataset; write stream:OWNER/NAME or stream:OWNER/NAME:CONFIG.")
    parts = _load_splits(name, config)
    texts, skipped = _hold_out(parts, source)

    def open_train() -> _CheckedTable:
        # Skipping makes a copy, so that readers have positions of their own.
        return _CheckedTable(parts["train"].skip(skipped), source)

    made = tokenizer if isinstance(tokenizer, Tokenizer) else _make_tokenizer(tokenizer, open_train, texts, source)
    dtype = np.min_scalar_type(made.size - 1)
    held_out: dict[str, TokenIds] = {split: made.encode(text).astype(dtype) for split, text in texts.items()}
    return Corpus(
        name=source,
        tokenizer=made,
        train=StreamedSplit(source, made, open_train),
        valid=held_out["valid"],
        test=held_out["test"],
        characters={"train": 0} | {split: len(text) for split, text in texts.items()},
        bytes={"train": 0} | {split: len(text.encode()) for split, text in texts.items()},
        sha256=hashlib.sha256("\0".join([str(skipped), *texts.values()]).encode()).hexdigest(),
        folder=None,
    )


def _load_splits(name: str, config: str) -> Any:
    try:
        parts = import_optional("datasets").load_dataset(name, config or None, streaming=True)
    except UserError:
        raise
    except Exception as error:  # the library passes on errors of files and of the network, of any class
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        raise UserError(f"The dataset {name} cannot be streamed ({reason}); check its name and config.") from error
    if "train" not in parts:
        raise UserError(f"The dataset {name} has no split 'train', only {', '.join(parts)}; choose another.")
    return parts


@dataclass(frozen=True)
class _CheckedTable:
    """A table whose errors are raised as UserError."""

    table: Any
    source: str

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        rows = iter(self.table)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except Exception as error:  # as above
                reason = (str(error) or type(error).__name__).partition("\n")[0]
                raise UserError(f"{self.source} broke off ({reason}); go on with --resume.") from error
            yield row

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.table.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table.load_state_dict(state)


def _hold_out(parts: Any, source: str) -> tuple[dict[str, str], int]:
    """Texts for validation and test, and the number of documents they took from the training split."""
    texts, train, skipped = {}, _documents(parts["train"], source), 0
    for split, hub_split in HUB_SPLITS.items():
        documents = _documents(parts[hub_split], source) if hub_split in parts else train
        taken: list[str] = []
        size = 0
        while size < HELD_OUT_CHARACTERS and (text := next(documents, None)) is not None:
            taken.append(text)
            size += len(text)
        if documents is train:
            skipped += len(taken)
        texts[split] = BLANK_LINE.join(text for text in taken if text)
        if len(texts[split]) < 2:
            raise UserError(f"{source} has too little text to hold some out for {split}; give one that has more.")
    return texts, skipped


def _documents(table: Any, source: str) -> Iterator[str]:
    for row in _CheckedTable(table, source):
        check_column(row, source)
        yield check_cell(row[TEXT_COLUMN], source)


def _make_tokenizer(
    name: str, open_train: Callable[[], _CheckedTable], held_out: dict[str, str], source: str
) -> Tokenizer:
    """The tokenizer of this name, made from the first documents of the training split."""

    def first_documents() -> Iterator[str]:
        seen = 0
        for text in _documents(open_train().table, source):
            yield text + BLANK_LINE
            seen += len(text)
            if seen >= TOKENIZER_CHARACTERS:
                return

    if name == "auto":
        name = "byte"  # later documents may have characters that the first ones lack
    alphabet = ""
    if name in ("characters", "text8"):
        for text in [*first_documents(), *held_out.values()]:
            alphabet = merge_alphabet(text, alphabet)
    return choose_tokenizer(name, alphabet).make(first_documents())
