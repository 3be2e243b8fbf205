"""Text that is read while it is trained on: a streamed dataset, with a position that can be saved and taken up again.

table = datasets.load_dataset("HuggingFaceFW/fineweb", "sample-10BT", split="train", streaming=True)
stream = Stream(table, tokenizer, length=1024, batch=32)
for progress in ls.fit(model, stream, steps=…): …          # stream.state() between steps, stream.restore(…) after

On the command line a streamed dataset is named stream:OWNER/NAME (hubstream.py); checkpoints hold its position.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from logosphere.data.examples.collection import EVERYTHING
from logosphere.data.readers import BLANK_LINE, FIELD, row_text
from logosphere.data.tokenizers import Ids, Tokenizer
from logosphere.errors import UserError
from logosphere.types import Batch


@runtime_checkable
class Table(Protocol):
    """What is asked of a streamed dataset; `datasets.IterableDataset` has it."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Stream:
    """Batch after batch of consecutive windows of a streamed text, documents parted by a blank line.

    One document and less than one batch of tokens are held in memory. A process of a team reads the whole stream and
    keeps its `rows` of each batch.
    """

    table: Table
    tokenizer: Tokenizer
    length: int
    batch: int
    rows: slice = field(default_factory=lambda: EVERYTHING)
    samples: int = 0
    """Samples that were given out."""
    waiting: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    """Tokens that were read and not yet given out; cut off in views, for a document may have millions of batches."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.batch < 1:
            raise UserError("The length and the batch of a stream must be at least 1.")

    def __iter__(self) -> Iterator[Batch]:
        size = self.batch * self.length
        for row in self.table:
            if FIELD not in row:
                raise UserError(f"The stream has no column '{FIELD}', only {', '.join(row)}; rename the one with text.")
            text = row_text(row[FIELD], "the stream")
            if text:
                self.waiting = np.concatenate([self.waiting, self.tokenizer.encode(text + BLANK_LINE)], dtype=np.int64)
            while len(self.waiting) >= size:
                tokens, self.waiting = self.waiting[:size], self.waiting[size:]
                self.samples += self.batch
                yield self._batch(tokens)

    @property
    def step(self) -> int:
        """Batches that were given out."""
        return self.samples // self.batch

    def _batch(self, tokens: Ids) -> Batch:
        windows = torch.from_numpy(tokens.copy()).view(self.batch, self.length)
        return Batch.of(windows, first=self.samples - self.batch).part(self.rows)

    def state(self) -> dict[str, Any]:
        """Where the stream stands, as plain data: after the batch that was given out last."""
        return {"table": self.table.state_dict(), "waiting": self.waiting.tolist(), "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; to be called before reading."""
        try:
            waiting = np.array([int(token) for token in state["waiting"]], dtype=np.int64)
            samples = int(state["samples"])
            self.table.load_state_dict(state["table"])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as problem:
            raise UserError(f"This is no position in a stream ({problem!r}).") from None
        self.waiting, self.samples = waiting, samples


@dataclass(frozen=True)
class Streamed:
    """A split that is never here as a whole."""

    name: str
    tokenizer: Tokenizer
    open: Callable[[], Table]
    """The stream from its beginning."""


class Arrivals:
    """The batches of a streamed split, to be taken in turn; after the end it begins anew."""

    def __init__(self, split: Streamed, length: int, batch: int):
        self.split = split
        self.stream = Stream(split.open(), split.tokenizer, length, batch)
        self._batches = self._endless()
        self._last: list[int] = []

    def at(self, step: int, rows: slice = EVERYTHING) -> Batch:
        """The batch of a step, or some of its rows."""
        if step * self.stream.batch != self.stream.samples:
            raise UserError(f"The stream {self.split.name} stands before step {self.stream.step}, not before {step}.")
        batch = next(self._batches)
        self._last = batch.tokens.flatten().tolist()
        return batch.part(rows)

    def _endless(self) -> Iterator[Batch]:
        barren = 0
        while barren < 2:  # a pass that began close to the end may bring nothing, a whole one must not
            before = self.stream.samples
            yield from self.stream
            barren = barren + 1 if self.stream.samples == before else 0
            self.stream.table = self.split.open()
        raise UserError(
            f"The stream {self.split.name} has less text than one batch; use a smaller --batch or --length."
        )

    def position(self, step: int) -> dict[str, Any]:
        """Where the stream stands before the batch of a step: the next one, or the one that was given out last."""
        state = self.stream.state()
        if step == self.stream.step:
            return state
        return state | {"waiting": self._last + state["waiting"], "samples": step * self.stream.batch}

    def go_to(self, position: dict[str, Any] | None) -> None:
        """Go on from a position that was saved."""
        if position is None:
            raise UserError(f"The checkpoint does not say where the stream {self.split.name} stood; begin anew.")
        self.stream.restore(position)
