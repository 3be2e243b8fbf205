"""Sources of text: plain UTF-8, JSON lines and Parquet files, folders of them, and the dataset hub.

This module imports no torch, so that listing corpora is instant.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from logosphere.errors import UserError, suggest

CORPORA: dict[str, str] = {
    "pydoc": "Python's own help topics in the alphabet of text8: 0.4 million characters, on every machine",
    "text8": "the first 100 million characters of cleaned English Wikipedia (a download of 31 MB)",
}
"""Running texts."""
DATASETS: dict[str, str] = {
    "e2e": "descriptions of restaurants, each from its meaning",
    "captions": "captions of pictures, one sentence each",
    "tinystories": "paragraphs of stories for small children",
    "smiles": "the small molecules of QM9 as SMILES",
    "promoters": "human core promoters and other DNA, 70 bases, labelled",
    "bound-sites": "sites that a transcription factor binds and others, 101 bases, labelled",
    "enhancers": "human enhancers and other DNA, 200 bases, labelled",
    "synthetic-promoters": "synthetic DNA of 96 bases whose motifs depend on a signal, with an exact score",
    "cifar10": "CIFAR-10 in colour: 3,072 pixels of 256 levels, labelled",
    "digits": "1,797 handwritten digits of scikit-learn: 8 × 8 pixels, 17 levels, labelled",
    "mnist-binary": "MNIST in black and white, 28 × 28",
    "sudoku": "solved sudokus, cells 0 to 8, with their clues, 1 to 9 and 0 for an open cell",
    "chorales": "Bach's chorales in quarters: four pitches a beat from the lowest voice, 0 is a rest",
}
"""Sets of separate sequences."""
TEXT_COLUMN = "text"
"""The column or JSON field that holds a document."""
BLANK_LINE = "\n\n"
BLOCK = 1 << 20
BATCH_ROWS = 1024
ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and the total (0 while unknown)."""
HUB_PREFIX = "hf:"


@dataclass(frozen=True)
class TextStats:
    """Statistics of a whole source."""

    sha256: str
    """Of the text in UTF-8."""
    alphabet: str
    """Its distinct characters, sorted."""
    characters: dict[str, int]
    """Per split that the source has."""


@dataclass(frozen=True)
class Source:
    """Text that can be read repeatedly."""

    name: str
    stamp: str
    """Cheap to compute, and different whenever the text may have changed."""
    texts: Mapping[str, Callable[[], Iterator[str]]]
    """For each split that the source has, a function that opens its stream of pieces; 'train' is always there."""
    stats: TextStats | None = None
    """Statistics of a published text, known without reading it; its stream raises UserError if the text is another."""


def open_path(source: str) -> Source:
    """The text of a file, or of all readable files of a folder."""
    path = Path(source).expanduser()
    try:
        if not source or not path.exists():
            raise UserError(f"There is no corpus or file '{source}'.{_suggest(source, path)}")
        paths = _readable_files(path) if path.is_dir() else [path]
        if not paths:
            raise UserError(f"The folder {path} has no text files; it needs one of {', '.join(READERS)}.")
        return Source(str(path), file_stamp(paths), {"train": lambda: read_files(paths)})
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error


def _readable_files(folder: Path) -> list[Path]:
    """Files with a known suffix sorted by path, at any depth; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in READERS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _suggest(source: str, path: Path) -> str:
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    similar = get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    return suggest(source, [*CORPORA, *DATASETS, *(str(path.with_name(name)) for name in similar)])


def file_stamp(paths: Iterable[Path]) -> str:
    """Paths, sizes and modification times of files, as JSON."""
    stamps = []
    for path in paths:
        status = path.stat()
        stamps.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return json.dumps(stamps)


def open_hub(source: str) -> Source:
    """The column of text of a dataset of the hub, hf:OWNER/NAME[:CONFIG]."""
    name, _, config = source.removeprefix(HUB_PREFIX).partition(":")
    if not name:
        raise UserError(f"'{source}' names no dataset; write hf:OWNER/NAME or hf:OWNER/NAME:CONFIG.")
    library = import_optional("datasets")
    try:
        parts = library.load_dataset(name, config or None)
    except Exception as error:  # the library passes on errors of files and of the network, of any class
        reason = str(error).partition("\n")[0]
        raise UserError(f"The dataset {name} cannot be loaded ({reason}); check its name and config.") from error
    splits = {"train": "train", "validation": "valid", "test": "test"}
    tables = {split: parts[hub_split] for hub_split, split in splits.items() if hub_split in parts}
    if "train" not in tables:
        raise UserError(f"The dataset {name} has no split 'train', only {', '.join(parts)}; choose another.")
    for table in tables.values():
        check_column(table.column_names, source)
    # The files in the library's own cache are named by the revision of the dataset.
    stamps = {split: [len(table), str(table.cache_files)] for split, table in tables.items()}
    return Source(source, json.dumps([source, stamps]), {split: _read_table(tables[split], source) for split in tables})


def _read_table(table: Any, source: str) -> Callable[[], Iterator[str]]:
    return lambda: join_documents([check_cell(row["text"], source)] for row in table)


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


def _parse_json_line(line: bytes, location: str) -> str:
    try:
        content = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{location} is not JSON ({error}); correct or remove the line.") from error
    text = content.get(TEXT_COLUMN) if isinstance(content, dict) else content
    if not isinstance(text, str):
        raise UserError(
            f"{location} has no text in a field named '{TEXT_COLUMN}'; make each line an object with it, or a string."
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
        raise UserError(f"{path} is not a valid Parquet file ({error}); write or fetch it again.") from error


def check_column(names: Iterable[str], location: str) -> None:
    """Raise UserError unless a table has the column of text."""
    if TEXT_COLUMN not in names:
        raise UserError(
            f"{location} has no column '{TEXT_COLUMN}', only {', '.join(names)}; rename the one that holds text."
        )


def check_cell(value: object, location: str) -> str:
    """The text of one cell of the column of text; a missing value is an empty document."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"The column '{TEXT_COLUMN}' of {location} holds {type(value).__name__}, not text; convert it.")
    return value


READERS: Mapping[str, Callable[[Path], Iterator[str]]] = {
    ".txt": _read_plain,
    ".text": _read_plain,
    ".md": _read_plain,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
