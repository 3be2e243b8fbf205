"""Records: texts from files of the user, one per line, with labels, or with sources."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logosphere.data.readers import replace_lone_surrogates
from logosphere.errors import UserError


@dataclass(frozen=True)
class Record:
    """A text, and its label or the source it is generated from."""

    text: str
    label: str | None = None
    source: str | None = None


def read_lines(path: Path) -> list[Record]:
    """One text per line; blank lines are dropped."""
    return [Record(line.strip()) for line in _read_text(path).split("\n") if line.strip()]


def read_labelled(path: Path) -> list[Record]:
    """Texts in the field `text` with a `label` each, from .jsonl, .csv or .tsv."""
    return [Record(row("text"), label=row("label")) for row in _read_rows(path)]


def read_pairs(path: Path) -> list[Record]:
    """Texts in the field `target` (or `text`) with a `source` each, from .jsonl, .csv or .tsv."""
    return [Record(row("target", "text"), source=row("source")) for row in _read_rows(path)]


FORMATS: dict[str, Callable[[Path], list[Record]]] = {
    "lines": read_lines,
    "labelled": read_labelled,
    "pairs": read_pairs,
}
"""lines:FILE, labelled:FILE, pairs:FILE"""

GetField = Callable[..., str]
"""From the names that a field may have to its text."""


def parse_csv(content: str, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a CSV table with a header."""
    return list(csv.DictReader(io.StringIO(content), delimiter=delimiter, strict=True))


def _read_rows(path: Path) -> Iterable[GetField]:
    """The rows of a table."""
    try:
        match path.suffix.lower():
            case ".jsonl":
                rows: list[Any] = [json.loads(line) for line in _read_text(path).split("\n") if line.strip()]
            case ".csv" | ".tsv" as suffix:
                rows = parse_csv(_read_text(path), "\t" if suffix == ".tsv" else ",")
            case _:
                raise UserError(f"{path} must be a .jsonl, .csv or .tsv file with a name for each field.")
    except (csv.Error, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read as a table ({problem}); correct it.") from None
    for number, row in enumerate(rows, start=1):
        yield _field_getter(row, f"Row {number} of {path}")


def _field_getter(row: Any, place: str) -> GetField:
    def read(*names: str) -> str:
        for name in names:
            if isinstance(row, dict) and isinstance(row.get(name), str | int):
                return replace_lone_surrogates(str(row[name]))
        raise UserError(f"{place} has no field '{names[0]}'; every row needs one.")

    return read


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} cannot be read as UTF-8 text ({problem}).") from None
