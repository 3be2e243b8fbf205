"""Texts that stand for themselves: one a line, with labels, or as pairs of source and target."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logosphere.data.readers import whole_characters
from logosphere.errors import UserError


@dataclass(frozen=True)
class Record:
    """A text and what it is written from."""

    text: str
    label: str | None = None
    source: str | None = None


def lines(path: Path) -> list[Record]:
    """Every line that is not blank is a text."""
    return [Record(line.strip()) for line in _text(path).split("\n") if line.strip()]


def labelled(path: Path) -> list[Record]:
    """Texts in `text` with a `label` each, from .jsonl, .csv or .tsv."""
    return [Record(row("text"), label=row("label")) for row in _rows(path)]


def pairs(path: Path) -> list[Record]:
    """Texts in `target` (or `text`) to be written from a `source`, from .jsonl, .csv or .tsv."""
    return [Record(row("target", "text"), source=row("source")) for row in _rows(path)]


FORMATS: dict[str, Callable[[Path], list[Record]]] = {"lines": lines, "labelled": labelled, "pairs": pairs}
"""lines:FILE, labelled:FILE, pairs:FILE"""

Row = Callable[..., str]


def table(content: str, delimiter: str = ",") -> list[dict[str, str]]:
    """A table with a heading, as CSV writes it."""
    return list(csv.DictReader(io.StringIO(content), delimiter=delimiter, strict=True))


def _rows(path: Path) -> Iterable[Row]:
    """The rows of a table as functions from the names a field may have to its text."""
    try:
        match path.suffix.lower():
            case ".jsonl":
                rows: list[Any] = [json.loads(line) for line in _text(path).split("\n") if line.strip()]
            case ".csv" | ".tsv" as suffix:
                rows = table(_text(path), "\t" if suffix == ".tsv" else ",")
            case _:
                raise UserError(f"{path} must be a .jsonl, .csv or .tsv file with a name for each field.")
    except (csv.Error, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read as a table ({problem}); correct it.") from None
    for number, row in enumerate(rows, start=1):
        yield _reader(row, f"Row {number} of {path}")


def _reader(row: Any, place: str) -> Row:
    def read(*names: str) -> str:
        for name in names:
            if isinstance(row, dict) and isinstance(row.get(name), str | int):
                return whole_characters(str(row[name]))
        raise UserError(f"{place} has no field '{names[0]}'; every row needs one.")

    return read


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} cannot be read as UTF-8 text ({problem}).") from None
