"""Tables with a column of text: CSV, TSV and JSON lines, read row by row, and lists in JSON."""

import codecs
import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from logosphere.data.columns import (
    SAMPLE_ROWS,
    TEXT_COLUMN,
    Sample,
    check_cell,
    check_column,
    list_names,
    replace_lone_surrogates,
)
from logosphere.data.compressed import open_binary, plain_suffix
from logosphere.errors import UserError, plural

MAX_FIELD = 1 << 26
"""Characters of a CSV field; a longer one lacks its closing quotation mark."""


def read_csv(path: Path, column: str) -> Iterator[str]:
    """The texts of a column, one for each row."""
    rows = _csv_rows(path)
    header = next(rows, None)
    if header is None:
        return
    check_column(header, str(path), column)
    place = header.index(column)
    for number, row in enumerate(rows, start=1):
        yield check_cell(row[place], f"Row {number} of {path}", column)


def sample_csv(path: Path) -> Sample:
    rows = _csv_rows(path)
    header = next(rows, [])
    first = list(islice(rows, SAMPLE_ROWS))
    return {name: [row[place] for row in first] for place, name in enumerate(header)}


def _csv_rows(path: Path) -> Iterator[list[str]]:
    """The header and then the rows, all of them with as many fields."""
    csv.field_size_limit(MAX_FIELD)  # the library's own limit is shorter than an article
    with open_binary(path) as file:
        beginning = file.readline()
        lines = _decode_lines([beginning], file)
        reader = csv.reader(lines, delimiter=_delimiter(beginning, path), strict=True)
        header: list[str] = []
        number = 0
        while True:
            location = f"Row {number} of {path}" if header else f"The header of {path}"
            try:
                row = next(reader, None)
            except UnicodeDecodeError as problem:
                raise UserError(f"{location} is not UTF-8 text ({problem.reason}); convert the file.") from None
            except csv.Error as problem:
                raise UserError(f"{location} cannot be read as CSV ({problem}); correct it.") from None
            if row is None:
                return
            if not row:
                continue
            if not header:
                header = row
                if twice := [name for name, count in Counter(header).items() if count > 1]:
                    name = list_names([min(twice)])
                    raise UserError(f"{location} names the column '{name}' twice; rename one of them.")
            elif len(row) != len(header):
                raise UserError(
                    f"{location} has {plural(len(row), 'field')} and the header has {len(header)}; correct it."
                )
            number += 1
            yield row


def _decode_lines(*parts: Iterable[bytes]) -> Iterator[str]:
    """Lines as text, each decoded alone, so that an error belongs to the row that is being read."""
    encoding = "utf-8-sig"
    for part in parts:
        for line in part:
            yield line.decode(encoding)
            encoding = "utf-8"


def _delimiter(header: bytes, path: Path) -> str:
    """A tab for .tsv; for .csv a comma, or a semicolon or a tab where the header has these instead."""
    if plain_suffix(path) == ".tsv":
        return "\t"
    return next((mark for mark in ",;\t" if mark.encode() in header), ",")


# ---- JSON lines -------------------------------------------------------------------------------------------------


def read_json_lines(path: Path, column: str) -> Iterator[str]:
    """The texts of lines that are strings, or objects with a field of this name."""
    return _texts(_json_lines(path), path, column, "line")


def sample_json_lines(path: Path) -> Sample:
    return _sample(content for _, content in _json_lines(path))


def _texts(rows: Iterable[tuple[int, Any]], path: Path, column: str, kind: str) -> Iterator[str]:
    for number, content in rows:
        location = f"{kind.capitalize()} {number} of {path}"
        if isinstance(content, dict) and column in content:
            content = content[column]
            if content is None:
                continue
        if not isinstance(content, str):
            raise UserError(
                f"{location} has no text in a field named '{column or TEXT_COLUMN}'; make each {kind} an "
                "object with it, or a string."
            )
        yield check_cell(replace_lone_surrogates(content), location, column)


def _sample(contents: Iterable[Any]) -> Sample:
    sample: Sample = {}
    for content in islice(contents, SAMPLE_ROWS):
        for name, value in content.items() if isinstance(content, dict) else ():
            sample.setdefault(name, []).append(value)
    return sample


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbers and contents of the lines; blank ones are left out."""
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise UserError(f"Line {number} of {path} is not JSON ({error}); correct or remove it.") from error


# ---- JSON -------------------------------------------------------------------------------------------------------


def read_json(path: Path, column: str) -> Iterator[str]:
    """The texts of a list of strings, or of objects with a field of this name; or of JSON lines under this suffix."""
    rows = _json_list(path)
    return read_json_lines(path, column) if rows is None else _texts(enumerate(rows, start=1), path, column, "entry")


def sample_json(path: Path) -> Sample:
    rows = _json_list(path)
    return sample_json_lines(path) if rows is None else _sample(rows)


def _json_list(path: Path) -> list[Any] | None:
    """The list that a file holds, or None if each of its lines holds an object or a string."""
    with open_binary(path) as file:
        first = next((line for line in file if line.strip()), b"").removeprefix(codecs.BOM_UTF8).strip()
    if not first:
        return []
    if not first.startswith(b"["):
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            raise UserError(
                f"{path} is neither a list in JSON nor JSON lines; make it a list of strings or of objects, or name it "
                ".txt to read it as it is."
            ) from None
        return None
    with open_binary(path) as file:
        try:
            rows = json.loads(file.read().decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON ({error}); correct it.") from error
    return list(rows)
