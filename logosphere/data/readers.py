"""Files as streams of text: plain UTF-8, JSON lines and Parquet, read in pieces."""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from logosphere.errors import UserError

TEXT_COLUMN = "text"
"""The column or JSON field that holds a document."""
BLANK_LINE = "\n\n"
BLOCK = 1 << 20
BATCH_ROWS = 1024


def read_files(paths: Iterable[Path]) -> Iterator[str]:
    """The concatenated text of files, documents separated by a blank line.

    A file whose suffix is not in READERS is read as plain text.
    """
    return join_documents(_read_file(path) for path in paths)


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


def import_optional(module: str) -> ModuleType:
    """Import a library that only some sources need."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"This source needs the package '{package}'; install it with: pip install 'logosphere[data]'."
        ) from error


def replace_lone_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can hold and UTF-8 cannot, by '�'."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_file(path: Path) -> Iterator[str]:
    try:
        yield from READERS.get(path.suffix.lower(), _read_plain)(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be read ({reason}); check the file and its permissions.") from error


def _read_plain(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        # A byte order mark is not part of the text.
        position = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(position)
        while block := file.read(BLOCK):
            zero = block.find(0)
            if zero >= 0:
                raise UserError(
                    f"{path} is not a text file (it has a zero byte at offset {position + zero}); "
                    f"give a file of UTF-8 text."
                )
            yield _decode(decoder, block, path, position, final=False)
            position += len(block)
        _decode(decoder, b"", path, position, final=True)


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, path: Path, position: int, final: bool) -> str:
    waiting = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (see byte offset {position - waiting + error.start}); convert it."
        ) from error


def _read_json_lines(path: Path) -> Iterator[str]:
    def documents() -> Iterator[list[str]]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield [_parse_json_line(line, f"Line {number} of {path}")]

    return join_documents(documents())


def _parse_json_line(line: bytes, place: str) -> str:
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error}); correct or remove the line.") from error
    text = content.get(TEXT_COLUMN) if isinstance(content, dict) else content
    if not isinstance(text, str):
        raise UserError(
            f"{place} has no text in a field named '{TEXT_COLUMN}'; make each line an object with it, or a string."
        )
    return replace_lone_surrogates(text)


def _read_parquet(path: Path) -> Iterator[str]:
    parquet = import_optional("pyarrow.parquet")
    arrow_error = import_optional("pyarrow").ArrowException

    def documents() -> Iterator[list[str]]:
        # Opened here, because the library reports a missing permission less clearly.
        with path.open("rb") as file:
            table = parquet.ParquetFile(file)
            check_column(table.schema_arrow.names, str(path))
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=[TEXT_COLUMN]):
                for value in batch.column(0).to_pylist():
                    yield [check_cell(value, str(path))]

    try:
        yield from join_documents(documents())
    except (arrow_error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a sound Parquet file ({error}); write or fetch it again.") from error


def check_column(names: Iterable[str], place: str) -> None:
    """Raise UserError unless a table has the column of text."""
    if TEXT_COLUMN not in names:
        raise UserError(
            f"{place} has no column '{TEXT_COLUMN}', only {', '.join(names)}; rename the one that holds text."
        )


def check_cell(value: object, place: str) -> str:
    """The text of one cell of the column of text; a missing value is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"The column '{TEXT_COLUMN}' of {place} holds {type(value).__name__}, not text; convert it.")
    return value


READERS: Mapping[str, Callable[[Path], Iterator[str]]] = {
    ".txt": _read_plain,
    ".text": _read_plain,
    ".md": _read_plain,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
