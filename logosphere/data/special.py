"""Vocabularies around or beside text: one with an end token, and one of plain numbers."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from logosphere.data.tokenizers import Ids, Tokenizer, from_description
from logosphere.errors import UserError


@final
class Ended(Tokenizer):
    """Another tokenizer with one token more, the last, which ends a text."""

    def __init__(self, inner: Tokenizer):
        self.inner, self.name, self.unit, self.size = inner, inner.name, inner.unit, inner.size + 1
        self.end = inner.size

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        return self.inner.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text up to the first end."""
        numbers = self._checked(ids)
        ends = np.flatnonzero(numbers == self.end)
        return self.inner.decode(numbers[: ends[0]] if len(ends) else numbers)

    def symbol(self, id: int) -> str:
        return "␃" if id == self.end else self.inner.symbol(id)

    def describe(self) -> dict[str, Any]:
        return {"kind": "ended", "name": self.name, "inner": self.inner.describe()}


@final
class Levels(Tokenizer):
    """Numbers 0 … size - 1 that are no text, such as the brightness of a pixel; written with spaces between.

    Digits may also be given without spaces, as sudokus are.
    """

    name = "levels"
    unit = "dimension"

    def __init__(self, size: int):
        self.size = size

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        words = text.split() if self.size > 10 else list("".join(text.split()))
        if not all(word.isdecimal() and int(word) < self.size for word in words):
            raise UserError(f"This data is written as numbers from 0 to {self.size - 1} with spaces between.")
        return np.array([int(word) for word in words], dtype=np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        return " ".join(map(str, self._checked(ids)))

    def describe(self) -> dict[str, Any]:
        return {"kind": "levels", "name": self.name, "size": self.size}


def described(description: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of this file that described itself so."""
    if description["kind"] == "ended":
        return Ended(from_description(description["inner"]))
    size = description["size"]
    if type(size) is not int or not 1 <= size <= 1 << 24:
        raise ValueError("the number of levels must be a positive whole number")
    return Levels(size)
