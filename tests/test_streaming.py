"""A stream gives every token once, and goes on from where it was left."""

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
    """A stand-in for datasets.IterableDataset: rows that are made when asked for, and a position."""

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
def test_a_stream_goes_on_where_it_was_left(taken: int) -> None:
    whole = list(stream())
    begun = stream()
    reader = iter(begun)
    for _ in range(taken):
        next(reader)
    position = json.loads(json.dumps(begun.state()))
    again = stream()
    again.restore(position)
    rest = list(again)
    assert len(rest) == len(whole) - taken
    assert all(
        torch.equal(a.tokens, b.tokens) and torch.equal(a.ids, b.ids) for a, b in zip(whole[taken:], rest, strict=True)
    )
    assert again.table.read < 60, "what was read before is not read again"


def test_what_waits_is_not_copied_for_every_batch() -> None:
    """Else a document of n tokens would take n² time, which for a book is minutes."""

    class Book(Rows):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield {"text": "x" * 4000}

    begun = Stream(Book(1), ByteTokenizer(), length=10, batch=4)
    reader = iter(begun)
    next(reader)
    before = begun.buffer
    next(reader)
    assert np.shares_memory(before, begun.buffer) and len(before) - len(begun.buffer) == 40


def test_a_stream_can_be_trained_on() -> None:
    model = ls.build("mdlm", vocab_size=256, length=10, width=16, depth=1, heads=2)
    assert len(list(ls.fit(model, stream(), steps=3))) == 3


def test_mistakes_are_told() -> None:
    with pytest.raises(UserError, match="no column 'text'"):
        next(iter(Stream(Rows(3, "words"), ByteTokenizer(), length=4, batch=1)))
    with pytest.raises(UserError, match="at least 1"):
        Stream(Rows(3), ByteTokenizer(), length=0, batch=1)
    empty: list[dict[str, Any]] = [{}, {"waiting": 3, "samples": 1, "table": {}}]
    huge = {"waiting": [2**70], "samples": 1, "table": {"position": 0}}
    for state in (*empty, {"waiting": [], "samples": 1, "table": {}}, huge):
        with pytest.raises(UserError, match="no position"):
            stream().restore(state)
