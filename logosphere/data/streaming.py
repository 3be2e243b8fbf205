"""Streamed datasets: text that is read while it is trained on, with a position that can be saved and restored.

table = datasets.load_dataset("HuggingFaceFW/fineweb", "sample-10BT", split="train", streaming=True)
stream = Stream(table, tokenizer, length=1024, batch=32)
for progress in ls.fit(model, stream, steps=…): …          # stream.state() between steps, stream.restore(…) after

On the command line a streamed dataset is named stream:OWNER/NAME (hub_stream.py); checkpoints hold its position.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from logosphere.data.datasets.examples import ALL_ROWS
from logosphere.data.readers import BLANK_LINE, TEXT_COLUMN, check_cell
from logosphere.data.tokenizers import TokenIds, Tokenizer
from logosphere.errors import UserError
from logosphere.types import Batch


@runtime_checkable
class Table(Protocol):
    """The interface of a streamed dataset; `datasets.IterableDataset` has it."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


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


@dataclass(frozen=True)
class StreamedSplit:
    """A split of unknown size that is read from a stream."""

    name: str
    tokenizer: Tokenizer
    open: Callable[[], Table]
    """Opens the stream at its beginning."""


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
            raise UserError(f"The stream {self.split.name} stands before step {self.stream.step}, not before {step}.")
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
            raise UserError(f"The checkpoint does not say where the stream {self.split.name} stood; start a new run.")
        self.stream.restore(position)
