"""Streamed datasets: text that is read while it is trained on, with a position that can be saved and restored.

table = datasets.load_dataset("HuggingFaceFW/fineweb", "sample-10BT", split="train", streaming=True)
stream = Stream(table, tokenizer, length=1024, batch=32)
for progress in ls.fit(model, stream, steps=…): …          # stream.state() between steps, stream.restore(…) after

On the command line a streamed dataset of the hub is named stream:OWNER/NAME[:CONFIG], or a folder in place of a name;
checkpoints hold its position. Splits for validation and test come from the dataset if it has them, else from its first
documents; the training split begins after these. A tokenizer is trained on the first documents of the training split.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from logosphere.data.columns import TEXT_COLUMN, check_cell, check_column
from logosphere.data.corpus import ALL_ROWS, Corpus, StreamedSplit, Table
from logosphere.data.readers import BLANK_LINE, Notify
from logosphere.data.sources import HUB_PREFIX, ReportProgress, choose_hub_column
from logosphere.data.tokenizer_registry import choose_tokenizer
from logosphere.data.tokenizers import TokenIds, Tokenizer, merge_alphabet
from logosphere.errors import UserError, import_optional
from logosphere.types import Batch

STREAM_PREFIX = "stream:"
HELD_OUT_CHARACTERS = 1 << 20
"""Characters of each of the splits for validation and test."""
TOKENIZER_CHARACTERS = 1 << 24
"""Characters that a tokenizer is trained on."""
HUB_SPLITS = {"valid": "validation", "test": "test"}
"""Names of the held-out splits on the hub."""


@dataclass
class Stream:
    """Batches of consecutive windows of a streamed text, documents separated by a blank line.

    One document and less than one batch of tokens are held in memory. Each process of a distributed run reads the
    whole stream and keeps its `rows` of each batch.
    """

    table: Table
    tokenizer: Tokenizer
    length: int
    batch: int
    rows: slice = field(default_factory=lambda: ALL_ROWS)
    samples: int = 0
    """Number of samples returned so far."""
    buffer: TokenIds = field(default_factory=lambda: np.empty(0, np.int64))
    """Tokens read and not yet returned; a view, because one document may have millions of batches."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.batch < 1:
            raise UserError("The length and the batch of a stream must be at least 1.")

    def __iter__(self) -> Iterator[Batch]:
        size = self.batch * self.length
        for row in self.table:
            if TEXT_COLUMN not in row:
                raise UserError(
                    f"The stream has no column '{TEXT_COLUMN}', only {', '.join(row)}; rename the one with text."
                )
            text = check_cell(row[TEXT_COLUMN], "the stream")
            if text:
                self.buffer = np.concatenate([self.buffer, self.tokenizer.encode(text + BLANK_LINE)], dtype=np.int64)
            while len(self.buffer) >= size:
                tokens, self.buffer = self.buffer[:size], self.buffer[size:]
                self.samples += self.batch
                yield self._batch(tokens)

    @property
    def step(self) -> int:
        """Number of batches returned so far."""
        return self.samples // self.batch

    def _batch(self, tokens: TokenIds) -> Batch:
        windows = torch.from_numpy(tokens.copy()).view(self.batch, self.length)
        return Batch.of(windows, first=self.samples - self.batch).select(self.rows)

    def state(self) -> dict[str, Any]:
        """The position after the batch returned last, as JSON."""
        return {"table": self.table.state_dict(), "waiting": self.buffer.tolist(), "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; call it before reading."""
        try:
            buffer = np.array([int(token) for token in state["waiting"]], dtype=np.int64)
            samples = int(state["samples"])
            self.table.load_state_dict(state["table"])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as problem:
            raise UserError(f"This is no position in a stream ({problem!r}).") from None
        self.buffer, self.samples = buffer, samples


class StreamBatches:
    """The batches of a streamed split in order; after its end the stream is read again."""

    def __init__(self, split: StreamedSplit, length: int, batch: int):
        self.split = split
        self.stream = Stream(split.open(), split.tokenizer, length, batch)
        self._batches = self._endless()
        self._last: list[int] = []

    def at(self, step: int, rows: slice = ALL_ROWS) -> Batch:
        """The batch of a step, or some of its rows."""
        if step * self.stream.batch != self.stream.samples:
            raise UserError(
                f"The next batch of the stream {self.split.name} is of step {self.stream.step}, not {step}."
            )
        batch = next(self._batches)
        self._last = batch.tokens.flatten().tolist()
        return batch.select(rows)

    def _endless(self) -> Iterator[Batch]:
        empty_passes = 0
        while empty_passes < 2:  # a pass resumed near the end may have no batch, a whole pass must have one
            before = self.stream.samples
            yield from self.stream
            empty_passes = empty_passes + 1 if self.stream.samples == before else 0
            self.stream.table = self.split.open()
        raise UserError(
            f"The stream {self.split.name} has less text than one batch; use a smaller --batch or --length."
        )

    def position(self, step: int) -> dict[str, Any]:
        """The position before the batch of a step, which is the next one or the one returned last."""
        state = self.stream.state()
        if step == self.stream.step:
            return state
        return state | {"waiting": self._last + state["waiting"], "samples": step * self.stream.batch}

    def seek(self, position: dict[str, Any] | None) -> None:
        """Continue from a saved position."""
        if position is None:
            raise UserError(f"The checkpoint has no position of the stream {self.split.name}; start a new run.")
        self.stream.restore(position)


def is_stream(source: str) -> bool:
    return source.startswith(STREAM_PREFIX)


def open_stream(source: str, tokenizer: str | Tokenizer, report: ReportProgress, column: str, notify: Notify) -> Corpus:
    """A streamed dataset as a corpus."""
    report("reading the first documents", 0, 0)
    name, _, config = source.removeprefix(STREAM_PREFIX).removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise UserError(f"'{source}' names no dataset; write stream:OWNER/NAME or stream:OWNER/NAME:CONFIG.")
    parts = _load_splits(name, config)
    chosen = choose_hub_column(_rows(parts["train"], source), column, source, notify)
    texts, skipped = _hold_out(parts, source, chosen)

    def open_train() -> _CheckedTable:
        # Skipping makes a copy, so that readers have positions of their own.
        return _CheckedTable(parts["train"].skip(skipped), source, chosen)

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
        column=chosen,
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


def _rows(table: Any, source: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a table; its errors are raised as UserError."""
    rows = iter(table)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # as above
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            raise UserError(f"{source} broke off ({reason}); continue with --resume.") from error
        yield row


@dataclass(frozen=True)
class _CheckedTable:
    """The column of text of a table under the name of TEXT_COLUMN, with errors raised as UserError."""

    table: Any
    source: str
    column: str

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in _rows(self.table, self.source):
            check_column(row, self.source, self.column)
            yield {TEXT_COLUMN: check_cell(row[self.column], self.source, self.column)}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.table.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table.load_state_dict(state)


def _hold_out(parts: Any, source: str, column: str) -> tuple[dict[str, str], int]:
    """Texts for validation and test, and the number of documents they took from the training split."""
    texts, train, skipped = {}, _documents(_CheckedTable(parts["train"], source, column)), 0
    for split, hub_split in HUB_SPLITS.items():
        documents = _documents(_CheckedTable(parts[hub_split], source, column)) if hub_split in parts else train
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


def _documents(table: _CheckedTable) -> Iterator[str]:
    return (row[TEXT_COLUMN] for row in table)


def _make_tokenizer(
    name: str, open_train: Callable[[], _CheckedTable], held_out: dict[str, str], source: str
) -> Tokenizer:
    """The tokenizer of this name, made from the first documents of the training split."""

    def first_documents() -> Iterator[str]:
        seen = 0
        for text in _documents(open_train()):
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
