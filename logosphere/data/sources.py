"""Where text comes from: built-in corpora, files and folders, and the dataset hub."""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from logosphere.data.download import fetch
from logosphere.data.examples.names import DESCRIPTIONS
from logosphere.data.readers import READERS, check_column, optional, row_text, separated, text_of
from logosphere.data.text8 import text8_filter
from logosphere.errors import UserError, nearest

Report = Callable[[str, int, int], None]
"""Hears the name of a stage, how much of it is done, and the total (0 while unknown)."""

HUB = "hf:"
BLOCK = 1 << 20

CORPORA: dict[str, str] = {
    "pydoc": "Python's own help topics in the alphabet of text8: 0.4 million characters, on every machine",
    "text8": "the first 100 million characters of cleaned English Wikipedia (a download of 31 MB)",
}


@dataclass(frozen=True)
class Source:
    """Text that can be read again and again."""

    name: str
    stamp: str
    """Cheap to find, and another one whenever the text may have changed."""
    texts: Mapping[str, Callable[[], Iterator[str]]]
    """For each split of its own a fresh stream of pieces; 'train' is always there."""


@dataclass(frozen=True)
class Archive:
    """A published zip of one text file, and what must be in it."""

    name: str
    urls: tuple[str, ...]
    sha256: str
    size: int
    text_size: int
    text_md5: str


TEXT8 = Archive(
    name="text8",
    urls=(
        "http://mattmahoney.net/dc/text8.zip",
        "https://cs.fit.edu/~mmahoney/compression/text8.zip",
        "https://data.deepai.org/text8.zip",
    ),
    sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    size=31_344_016,
    text_size=100_000_000,
    text_md5="3bea1919949baf155f99411df5fada7e",
)


def find_source(source: str, cache: Path, report: Report) -> Source:
    """The source a user means: the name of a corpus, hf:OWNER/NAME[:CONFIG], or a path."""
    if source == "pydoc":
        return _pydoc()
    if source == "text8":
        return _archive(TEXT8, cache, report)
    if source.startswith(HUB):
        return _hub(source)
    return _path(source)


def _pydoc() -> Source:
    from pydoc_data.topics import topics

    raw = "\n\n".join(topics[name] for name in sorted(topics))
    stamp = f"pydoc {hashlib.sha256(raw.encode()).hexdigest()}"
    return Source("pydoc", stamp, {"train": lambda: iter([text8_filter(raw)])})


def _archive(archive: Archive, cache: Path, report: Report) -> Source:
    path = _find_archive(archive, cache, report)
    return Source(archive.name, _stamp([path]), {"train": lambda: _unpacked(archive, path)})


def _find_archive(archive: Archive, cache: Path, report: Report) -> Path:
    packed = f"{archive.name}.zip"
    data = os.environ.get("LOGOSPHERE_DATA")
    if data:
        for path in (Path(data, packed), Path(data, archive.name)):
            if path.is_file():
                return path
    stage = f"downloading {packed}"
    return fetch(
        archive.urls,
        cache / "downloads" / packed,
        archive.sha256,
        archive.size,
        lambda done, total: report(stage, done, total),
    )


def _unpacked(archive: Archive, path: Path) -> Iterator[str]:
    """The text, and at its end the certainty that it was the right one."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    for block in _blocks(archive, path):
        digest.update(block)
        size += len(block)
        if size > archive.text_size:
            break
        # What is not ASCII cannot have the right hash, and is told of at the end.
        yield block.decode("ascii", "replace")
    if digest.hexdigest() != archive.text_md5:
        raise UserError(f"{path} does not hold the published {archive.name}; delete it and fetch it again.")


def _blocks(archive: Archive, path: Path) -> Iterator[bytes]:
    try:
        if path.suffix != ".zip":
            with path.open("rb") as plain:
                yield from iter(lambda: plain.read(BLOCK), b"")
            return
        with zipfile.ZipFile(path) as packed, packed.open(archive.name) as member:
            yield from iter(lambda: member.read(BLOCK), b"")
    except Exception as error:  # the library raises whatever a damaged archive brings up
        raise UserError(f"{path} cannot be read ({error}); delete it and fetch it again.") from error


def _path(source: str) -> Source:
    path = Path(source).expanduser()
    try:
        if not source or not path.exists():
            raise UserError(f"There is no corpus or file '{source}'.{_suggestion(source, path)}")
        paths = _readable(path) if path.is_dir() else [path]
        if not paths:
            raise UserError(f"The folder {path} has no text files; it needs one of {', '.join(READERS)}.")
        return Source(str(path), _stamp(paths), {"train": lambda: text_of(paths)})
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error


def _readable(folder: Path) -> list[Path]:
    """Files of known kinds in order of their names, at any depth; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in READERS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _suggestion(source: str, path: Path) -> str:
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    similar = get_close_matches(path.name, siblings, n=3, cutoff=0.5)
    return nearest(source, [*CORPORA, *DESCRIPTIONS, *(str(path.with_name(name)) for name in similar)])


def _stamp(paths: Iterable[Path]) -> str:
    marks = []
    for path in paths:
        status = path.stat()
        marks.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    return json.dumps(marks)


def _hub(source: str) -> Source:
    name, _, config = source.removeprefix(HUB).partition(":")
    if not name:
        raise UserError(f"'{source}' names no dataset; write hf:OWNER/NAME or hf:OWNER/NAME:CONFIG.")
    library = optional("datasets")
    try:
        parts = library.load_dataset(name, config or None)
    except Exception as error:  # the library raises whatever a dataset's files and the network bring up
        reason = str(error).partition("\n")[0]
        raise UserError(f"The dataset {name} cannot be loaded ({reason}); check its name and config.") from error
    own = {"train": "train", "validation": "valid", "test": "test"}
    tables = {split: parts[theirs] for theirs, split in own.items() if theirs in parts}
    if "train" not in tables:
        raise UserError(f"The dataset {name} has no split 'train', only {', '.join(parts)}; choose another.")
    for table in tables.values():
        check_column(table.column_names, source)
    # The files in the library's own cache are named by the revision of the dataset.
    marks = {split: [len(table), str(table.cache_files)] for split, table in tables.items()}
    return Source(source, json.dumps([source, marks]), {split: _rows(tables[split], source) for split in tables})


def _rows(table: Any, source: str) -> Callable[[], Iterator[str]]:
    return lambda: separated([row_text(row["text"], source)] for row in table)
