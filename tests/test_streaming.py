"""Streams give every token once and resume at a saved position."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import logosphere as ls
from logosphere.data.streaming import Stream
from logosphere.data.tokenizers import ByteTokenizer
from logosphere.errors import UserError


class Rows:
    """A stub of datasets.IterableDataset: lazily generated rows and a position."""

    def __init__(self, count: int, column: str = "text"):
        self.count, self.column, self.position, self.read = count, column, 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.position, self.count):
            self.position, self.read = number + 1, self.read + 1
            yield {self.column: None if number % 7 == 3 else f"row {number} " * (number % 5)}
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def stream(count: int = 60, **more: Any) -> Stream:
    return Stream(Rows(count), ByteTokenizer(), length=10, batch=4, **more)


def test_a_stream_is_the_text_in_windows() -> None:
    text = "".join(row["text"] + "\n\n" for row in Rows(60) if row["text"])
    read = torch.cat([batch.tokens for batch in stream()]).flatten()
    assert bytes(read.tolist()) == text.encode()[: len(read)] and len(text) - len(read) < 40
    batches = list(stream())
    assert [int(batch.ids[0]) for batch in batches] == [4 * n for n in range(len(batches))]
    parts = list(stream(rows=slice(1, 3)))
    assert all(torch.equal(whole.tokens[1:3], part.tokens) for whole, part in zip(batches, parts, strict=True))
    assert all(torch.equal(whole.ids[1:3], part.ids) for whole, part in zip(batches, parts, strict=True))


@pytest.mark.parametrize("taken", [1, 5, 11])
def test_a_stream_resumes_at_its_saved_position(taken: int) -> None:
    whole = list(stream())
    source = stream()
    reader = iter(source)
    for _ in range(taken):
        next(reader)
    position = json.loads(json.dumps(source.state()))
    again = stream()
    again.restore(position)
    rest = list(again)
    assert len(rest) == len(whole) - taken
    assert all(
        torch.equal(a.tokens, b.tokens) and torch.equal(a.ids, b.ids) for a, b in zip(whole[taken:], rest, strict=True)
    )
    assert again.table.read < 60, "rows before the position are not read again"


def test_the_buffer_is_not_copied_for_every_batch() -> None:
    """Copying would take O(n²) time for a document of n tokens, which is minutes for a book."""

    class Book(Rows):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield {"text": "x" * 4000}

    source = Stream(Book(1), ByteTokenizer(), length=10, batch=4)
    reader = iter(source)
    next(reader)
    before = source.buffer
    next(reader)
    assert np.shares_memory(before, source.buffer) and len(before) - len(source.buffer) == 40


def test_a_stream_can_be_trained_on() -> None:
    model = ls.build("mdlm", vocab_size=256, length=10, width=16, depth=1, heads=2)
    assert len(list(ls.fit(model, stream(), steps=3))) == 3


def test_invalid_tables_and_positions_are_refused() -> None:
    with pytest.raises(UserError, match="no column 'text'"):
        next(iter(Stream(Rows(3, "words"), ByteTokenizer(), length=4, batch=1)))
    with pytest.raises(UserError, match="at least 1"):
        Stream(Rows(3), ByteTokenizer(), length=0, batch=1)
    empty: list[dict[str, Any]] = [{}, {"waiting": 3, "samples": 1, "table": {}}]
    huge = {"waiting": [2**70], "samples": 1, "table": {"position": 0}}
    for state in (*empty, {"waiting": [], "samples": 1, "table": {}}, huge):
        with pytest.raises(UserError, match="no position"):
            stream().restore(state)
