"""Files as streams of text: plain UTF-8, JSON lines and Parquet, a piece at a time."""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from logosphere.errors import UserError

FIELD = "text"
BLANK_LINE = "\n\n"
BLOCK = 1 << 20
ROWS = 1024


def text_of(paths: Iterable[Path]) -> Iterator[str]:
    """The text of files one after the other, documents parted by a blank line.

    A suffix that is not in READERS is read as plain text.
    """
    return separated(_guarded(path) for path in paths)


def separated(documents: Iterable[Iterable[str]]) -> Iterator[str]:
    """Documents, each a stream of pieces, as one stream with blank lines between; empty ones vanish."""
    begun = False
    for document in documents:
        first = True
        for piece in document:
            if piece:
                if first and begun:
                    yield BLANK_LINE
                yield piece
                first, begun = False, True


def optional(module: str) -> ModuleType:
    """A library that only some sources need."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"This source needs the package '{package}'; install it with: pip install 'logosphere[data]'."
        ) from error


def whole_characters(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no encoding can store; it becomes '�'."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _guarded(path: Path) -> Iterator[str]:
    try:
        yield from READERS.get(path.suffix.lower(), _plain)(path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} cannot be read ({reason}); check the file and its permissions.") from error


def _plain(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        # A byte order mark is no part of the text.
        position = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(position)
        while block := file.read(BLOCK):
            zero = block.find(0)
            if zero >= 0:
                raise UserError(
                    f"{path} is not a text file (it has a zero byte at offset {position + zero}); "
                    f"give a file of UTF-8 text."
                )
            yield _decoded(decoder, block, path, position, final=False)
            position += len(block)
        _decoded(decoder, b"", path, position, final=True)


def _decoded(decoder: codecs.IncrementalDecoder, block: bytes, path: Path, position: int, final: bool) -> str:
    waiting = len(decoder.getstate()[0])
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text (see byte offset {position - waiting + error.start}); convert it."
        ) from error


def _json_lines(path: Path) -> Iterator[str]:
    def documents() -> Iterator[list[str]]:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield [_json_text(line, f"Line {number} of {path}")]

    return separated(documents())


def _json_text(line: bytes, place: str) -> str:
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error}); correct or remove the line.") from error
    text = content.get(FIELD) if isinstance(content, dict) else content
    if not isinstance(text, str):
        raise UserError(
            f"{place} has no text in a field named '{FIELD}'; make each line an object with it, or a string."
        )
    return whole_characters(text)


def _parquet(path: Path) -> Iterator[str]:
    parquet = optional("pyarrow.parquet")
    failure = optional("pyarrow").ArrowException

    def documents() -> Iterator[list[str]]:
        # Opened here, because the library reports a missing permission less clearly.
        with path.open("rb") as file:
            table = parquet.ParquetFile(file)
            check_column(table.schema_arrow.names, str(path))
            for batch in table.iter_batches(batch_size=ROWS, columns=[FIELD]):
                for value in batch.column(0).to_pylist():
                    yield [row_text(value, str(path))]

    try:
        yield from separated(documents())
    except (failure, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a sound Parquet file ({error}); write or fetch it again.") from error


def check_column(names: Iterable[str], place: str) -> None:
    """A table must have a column of text."""
    if FIELD not in names:
        raise UserError(f"{place} has no column '{FIELD}', only {', '.join(names)}; rename the one that holds text.")


def row_text(value: object, place: str) -> str:
    """One cell of the column of text; a missing value is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"The column '{FIELD}' of {place} holds {type(value).__name__}, not text; convert it.")
    return value


READERS: Mapping[str, Callable[[Path], Iterator[str]]] = {
    ".txt": _plain,
    ".text": _plain,
    ".md": _plain,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
