"""A dataset of the hub that is trained on while it is read: stream:OWNER/NAME[:CONFIG], or a folder in place of a name.

Its tokenizer is made, and what is held out is taken, from the first documents; the training split begins after them.
Splits for validation and test that the dataset brings along are used as far as they are wanted.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logosphere.data.choosing import choose
from logosphere.data.readers import BLANK_LINE, FIELD, check_column, optional, row_text
from logosphere.data.sources import HUB, Report
from logosphere.data.streaming import Streamed
from logosphere.data.tokenizers import Ids, Tokenizer, characters_of
from logosphere.errors import UserError

STREAM = "stream:"
HELD_OUT = 1 << 20
"""Characters of each of the splits for validation and test."""
LEARNT_FROM = 1 << 24
"""Characters that a tokenizer is made from."""
THEIRS = {"valid": "validation", "test": "test"}


@dataclass(frozen=True)
class Live:
    """A stream to train on, and what was held out of it."""

    name: str
    tokenizer: Tokenizer
    train: Streamed
    held_out: dict[str, Ids]
    characters: dict[str, int]
    bytes: dict[str, int]
    sha256: str
    """Of what was held out."""


def is_stream(source: str) -> bool:
    return source.startswith(STREAM)


def open_stream(source: str, tokenizer: str | Tokenizer, report: Report) -> Live:
    """A streamed dataset as a corpus."""
    report("reading the first documents", 0, 0)
    name, _, config = source.removeprefix(STREAM).removeprefix(HUB).partition(":")
    if not name:
        raise UserError(f"'{source}' names no dataset; write stream:OWNER/NAME or stream:OWNER/NAME:CONFIG.")
    parts = _loaded(name, config)
    texts, skipped = _held_out(parts, source)

    def open_train() -> _Told:
        # Skipping makes a copy: positions of one reader are no business of another.
        return _Told(parts["train"].skip(skipped), source)

    made = tokenizer if isinstance(tokenizer, Tokenizer) else _made(tokenizer, open_train, texts, source)
    smallest = np.min_scalar_type(made.size - 1)
    held_out: dict[str, Ids] = {split: made.encode(text).astype(smallest) for split, text in texts.items()}
    return Live(
        name=source,
        tokenizer=made,
        train=Streamed(source, made, open_train),
        held_out=held_out,
        characters={"train": 0} | {split: len(text) for split, text in texts.items()},
        bytes={"train": 0} | {split: len(text.encode()) for split, text in texts.items()},
        sha256=hashlib.sha256("\0".join([str(skipped), *texts.values()]).encode()).hexdigest(),
    )


def _loaded(name: str, config: str) -> Any:
    try:
        parts = optional("datasets").load_dataset(name, config or None, streaming=True)
    except UserError:
        raise
    except Exception as error:  # the library raises whatever a dataset's files and the network bring up
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        raise UserError(f"The dataset {name} cannot be streamed ({reason}); check its name and config.") from error
    if "train" not in parts:
        raise UserError(f"The dataset {name} has no split 'train', only {', '.join(parts)}; choose another.")
    return parts


@dataclass(frozen=True)
class _Told:
    """A table whose failures are told in a sentence."""

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


def _held_out(parts: Any, source: str) -> tuple[dict[str, str], int]:
    """Texts for validation and test, and how many documents of the training split they took."""
    texts, train, skipped = {}, _documents(parts["train"], source), 0
    for split, theirs in THEIRS.items():
        documents = _documents(parts[theirs], source) if theirs in parts else train
        taken: list[str] = []
        size = 0
        while size < HELD_OUT and (text := next(documents, None)) is not None:
            taken.append(text)
            size += len(text)
        if documents is train:
            skipped += len(taken)
        texts[split] = BLANK_LINE.join(text for text in taken if text)
        if len(texts[split]) < 2:
            raise UserError(f"{source} has too little text to hold some out for {split}; give one that has more.")
    return texts, skipped


def _documents(table: Any, source: str) -> Iterator[str]:
    for row in _Told(table, source):
        check_column(row, source)
        yield row_text(row[FIELD], source)


def _made(name: str, open_train: Callable[[], _Told], held_out: dict[str, str], source: str) -> Tokenizer:
    """A tokenizer by its name, from the first of the documents that are trained on."""

    def first() -> Iterator[str]:
        seen = 0
        for text in _documents(open_train().table, source):
            yield text + BLANK_LINE
            seen += len(text)
            if seen >= LEARNT_FROM:
                return

    if name == "auto":
        name = "byte"  # later documents may have letters that the first ones lack
    alphabet = ""
    if name in ("characters", "text8"):
        for text in [*first(), *held_out.values()]:
            alphabet = characters_of(text, alphabet)
    return choose(name, alphabet).make(first())
