"""Sources of text: files and folders, and the dataset hub."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from logosphere.data.descriptions import CORPORA, DATASETS
from logosphere.data.readers import READERS, check_cell, check_column, import_optional, join_documents, read_files
from logosphere.errors import UserError, suggest

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and the total (0 while unknown)."""

HUB_PREFIX = "hf:"


@dataclass(frozen=True)
class Source:
    """Text that can be read repeatedly."""

    name: str
    stamp: str
    """Cheap to compute, and different whenever the text may have changed."""
    texts: Mapping[str, Callable[[], Iterator[str]]]
    """For each split that the source has, a function that opens its stream of pieces; 'train' is always there."""


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
