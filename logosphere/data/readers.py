"""Reading files as text: plain UTF-8, and tables with a column of text; each may be compressed."""

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from logosphere.data.columns import TEXT_COLUMN, Sample, find_column
from logosphere.data.compressed import DAMAGED, open_binary, plain_suffix
from logosphere.data.input_files import check_encoding
from logosphere.data.parquet import read_parquet, sample_parquet
from logosphere.data.tables import (
    read_csv,
    read_json,
    read_json_lines,
    sample_csv,
    sample_json,
    sample_json_lines,
)
from logosphere.errors import UserError

BLANK_LINE = "\n\n"
BLOCK = 1 << 20
PLAIN = (".txt", ".text", ".md")
"""Suffixes of plain text; in folders other files are left out."""
Notify = Callable[[str], None]
"""Called with a remark of one sentence."""


@dataclass(frozen=True)
class TableFormat:
    """A format of tables: a function for the texts of a column, and one for the first rows."""

    read: Callable[[Path, str], Iterator[str]]
    sample: Callable[[Path], Sample]


TABLES: Mapping[str, TableFormat] = {
    ".csv": TableFormat(read_csv, sample_csv),
    ".tsv": TableFormat(read_csv, sample_csv),
    ".jsonl": TableFormat(read_json_lines, sample_json_lines),
    ".ndjson": TableFormat(read_json_lines, sample_json_lines),
    ".json": TableFormat(read_json, sample_json),
    ".parquet": TableFormat(read_parquet, sample_parquet),
}
SUFFIXES = (*PLAIN, *(suffix for suffix in TABLES if suffix != ".json"))
"""Suffixes that are read in folders, where .json is more often a description of the others than a table."""
SAMPLE_FILES = 20
"""Tables of a folder that their column is chosen by; the others must have it when they are read."""


def is_table(path: Path) -> bool:
    """Whether a file has columns, by its suffix."""
    return plain_suffix(path) in TABLES


def choose_column(paths: Iterable[Path], column: str, notify: Notify) -> str:
    """The column of text of these tables: the one that is named, or else the only one that looks like text.

    Empty if no table has columns, as JSON lines of strings.
    """
    chosen, first = "", Path()
    for path in islice(paths, SAMPLE_FILES):
        with _explained(path):
            _check(path)
            sample = TABLES[plain_suffix(path)].sample(path)
        found = find_column(sample, column, str(path))
        if found and chosen and found != chosen:
            raise UserError(
                f"The text is in the column '{chosen}' of {first} and in '{found}' of {path}; name one with --column."
            )
        if found and not chosen:
            chosen, first = found, path
    if chosen not in ("", column, TEXT_COLUMN):
        notify(f"The text of {first} is read from the column '{chosen}'; --column names another.")
    return chosen


def read_files(paths: Iterable[Path], column: str = "") -> Iterator[str]:
    """The concatenated text of files, documents separated by a blank line.

    A file whose suffix is not that of a table is read as plain text.
    """
    return join_documents(_read_file(path, column) for path in paths)


def join_documents(documents: Iterable[Iterable[str]]) -> Iterator[str]:
    """Documents, each a stream of pieces, as one stream with blank lines between; empty ones are dropped."""
    started = False
    for document in documents:
        first = True
        for piece in document:
            if piece:
                if first and started:
                    yield BLANK_LINE
                yield piece
                first, started = False, True


def read_rows(path: Path, column: str) -> Iterator[str]:
    """The texts of one column of a table, one for each row."""
    with _explained(path):
        _check(path)
        yield from TABLES[plain_suffix(path)].read(path, column)


def _read_file(path: Path, column: str) -> Iterator[str]:
    if is_table(path):
        yield from join_documents([text] for text in read_rows(path, column))
        return
    with _explained(path):
        _check(path)
        yield from _read_plain(path)


def _check(path: Path) -> None:
    if plain_suffix(path) != ".parquet":
        check_encoding(path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of reading a file as one sentence."""
    try:
        yield
    except DAMAGED as error:
        raise UserError(f"{path} is damaged or cut off ({error}); write or fetch it again.") from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be read ({reason}); check the file and its permissions.") from error


def _read_plain(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_binary(path) as file:
        position, block = 0, file.read(BLOCK)
        if block.startswith(codecs.BOM_UTF8):  # which is no part of the text
            position, block = len(codecs.BOM_UTF8), block.removeprefix(codecs.BOM_UTF8)
        while block:
            zero = block.find(0)
            if zero >= 0:
                raise UserError(
                    f"{path} is not a text file (it has a zero byte at offset {position + zero}); "
                    f"give a file of UTF-8 text."
                )
            yield _decode(decoder, block, path, position, final=False)
            position += len(block)
            block = file.read(BLOCK)
        _decode(decoder, b"", path, position, final=True)


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, path: Path, position: int, final: bool) -> str:
    waiting = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (see byte offset {position - waiting + error.start}); convert it."
        ) from error
