"""Sources of text: files, folders of files, and the dataset hub.

This module imports no torch, so that listing corpora is instant.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from logosphere.data.catalogue import CATALOGUE
from logosphere.data.columns import SAMPLE_ROWS, TEXT_COLUMN, check_cell, check_column, find_column
from logosphere.data.compressed import plain_suffix
from logosphere.data.input_files import check_regular, explain_missing
from logosphere.data.readers import SUFFIXES, Notify, choose_column, is_table, join_documents, read_files
from logosphere.errors import UserError, import_optional, plural, suggest
from logosphere.io import check_link

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and the total (0 while unknown)."""
HUB_PREFIX = "hf:"
SPREADSHEETS = (".csv", ".tsv")
"""Tables that often lie beside texts without being texts."""


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
    column: str = ""
    """The column of text of a table; empty for other sources."""


def open_path(source: str, column: str, notify: Notify) -> Source:
    """The text of a file, or of all readable files of a folder; of tables, the text of one column."""
    path = Path(source).expanduser()
    try:
        check_link(path)
        if not source or not path.exists():
            if known := explain_missing(source):
                raise UserError(known)
            raise UserError(f"There is no corpus or file '{source}'.{_suggest(source, path)}")
        check_regular(path)
        paths = _readable_files(path, column, notify) if path.is_dir() else [path]
        if not paths:
            raise UserError(f"The folder {path} has no text files; it needs one of {', '.join(SUFFIXES)}.")
        chosen = choose_column(filter(is_table, paths), column, notify)
        if column and not chosen:
            raise no_columns(source)
        stamp = file_stamp(paths)
        return Source(
            str(path),
            json.dumps([stamp, chosen]) if chosen else stamp,
            {"train": lambda: read_files(paths, chosen)},
            column=chosen,
        )
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error


def no_columns(source: str) -> UserError:
    """The error for a column of a source that is no table."""
    return UserError(f"{source} is no table, so it has no column to choose; leave out --column.")


def _readable_files(folder: Path, column: str, notify: Notify) -> list[Path]:
    """Files with a known suffix sorted by path, at any depth; hidden ones are left out.

    Beside plain texts a .csv or .tsv is more often a list of them than a text: it is read if a column is named.
    """
    paths = sorted(
        path
        for path in folder.rglob("*")
        if plain_suffix(path) in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    left_out = [path for path in paths if plain_suffix(path) in SPREADSHEETS]
    if column or not left_out or all(map(is_table, paths)):
        return paths
    notify(f"{plural(len(left_out), 'table')} beside the texts in {folder} left out; --column NAME reads them as well.")
    return [path for path in paths if path not in left_out]


def _suggest(source: str, path: Path) -> str:
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    similar = get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    return suggest(source, [*CATALOGUE, *(str(path.with_name(name)) for name in similar)])


def file_stamp(paths: Iterable[Path]) -> str:
    """Paths, sizes and modification times of files, as JSON."""
    stamps = []
    for path in paths:
        status = path.stat()
        stamps.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return json.dumps(stamps)


def open_hub(source: str, column: str, notify: Notify) -> Source:
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
    chosen = choose_hub_column(tables["train"], column, source, notify)
    for table in tables.values():
        check_column(table.column_names, source, chosen)
    # The files in the library's own cache are named by the revision of the dataset.
    stamps = {split: [len(table), str(table.cache_files)] for split, table in tables.items()}
    stamp = [source, stamps] if chosen == TEXT_COLUMN else [source, stamps, chosen]
    texts = {split: _read_table(tables[split], source, chosen) for split in tables}
    return Source(source, json.dumps(stamp), texts, column=chosen)


def choose_hub_column(rows: Iterable[Mapping[str, object]], column: str, source: str, notify: Notify) -> str:
    """The column of text of a table, by its first rows."""
    sample: dict[str, list[object]] = {}
    for row in islice(rows, SAMPLE_ROWS):
        for name, value in row.items():
            sample.setdefault(name, []).append(value)
    chosen = find_column(sample, column, source) or TEXT_COLUMN
    if chosen not in (column, TEXT_COLUMN):
        notify(f"The text of {source} is read from the column '{chosen}'; --column names another.")
    return chosen


def _read_table(table: Any, source: str, column: str) -> Callable[[], Iterator[str]]:
    return lambda: join_documents([check_cell(row[column], source, column)] for row in table)
