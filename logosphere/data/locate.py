"""Where the files of a named corpus are: in the folder LOGOSPHERE_DATA, in the cache, or to be downloaded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from logosphere.data.archives import read_members
from logosphere.data.catalogue import CATALOGUE, NamedCorpus, RemoteFile
from logosphere.data.download import fetch
from logosphere.data.sources import ReportProgress

ARCHIVES = (".zip", ".gz", ".xz")
"""Suffixes of files that hold others."""


@dataclass(frozen=True)
class Location:
    """Where a named corpus is."""

    state: str
    """here, download, or package where a library is missing."""
    place: str
    """A path, the server of the download, or the library."""

    def __str__(self) -> str:
        return {"here": self.place, "download": f"from {self.place}", "package": f"needs {self.place}"}[self.state]


def locate(name: str, cache: Path) -> Location:
    """Where a corpus is on this machine, or whence it would be downloaded; files are not read."""
    corpus = CATALOGUE[name]
    if corpus.package == "scikit-learn" and find_spec("sklearn") is None:
        return Location("package", "pip install 'logosphere[images]'")
    if not corpus.files:
        return Location("here", f"with {corpus.package}" if corpus.package else "made when it is used")
    found = _find_given(corpus)
    if not found and all(_cached(file.name, cache).is_file() for file in corpus.files):
        found = [_cached(file.name, cache) for file in corpus.files]
    if found:
        return Location("here", str(found[0] if len(found) == 1 else found[0].parent))
    return Location("download", _origin(corpus.files[0].urls[0]))


def _origin(url: str) -> str:
    """The server of an address; of the hub and of GitHub also the repository."""
    server, *path = url.split("/")[2:]
    match server:
        case "raw.githubusercontent.com":
            return "/".join(["github.com", *path[:2]])
        case "huggingface.co":
            return "/".join([server, *path[:3]])
        case _:
            return server


def find_files(corpus: NamedCorpus, cache: Path, report: ReportProgress) -> list[Path]:
    """The files of a corpus or an archive of them on this machine, downloaded if necessary."""
    found = _find_given(corpus)
    if found:
        return found
    return [_fetch(file, cache, report) for file in corpus.files]


def read_parts(name: str, wanted: Sequence[str], cache: Path, report: ReportProgress) -> dict[str, bytes]:
    """The contents of the files of a corpus by their names; those of `wanted` that an archive of it has, or all."""
    paths = find_files(CATALOGUE[name], cache, report)
    if len(paths) == 1 and paths[0].suffix in ARCHIVES:
        return read_members(paths[0], wanted, missing_ok=True)
    return {path.name: path.read_bytes() for path in paths}


def _fetch(file: RemoteFile, cache: Path, report: ReportProgress) -> Path:
    return fetch(file, _cached(file.name, cache), partial(report, f"downloading {file.name}"))


def _find_given(corpus: NamedCorpus) -> list[Path]:
    """An archive of the corpus in the folder LOGOSPHERE_DATA, or all its files; empty if there are none."""
    folder = os.environ.get("LOGOSPHERE_DATA")
    if not folder:
        return []
    archives = [path for name in corpus.archives if (path := Path(folder, name)).is_file()]
    files = [Path(folder, file.name) for file in corpus.files]
    return archives[:1] or (files if all(path.is_file() for path in files) else [])


def _cached(name: str, cache: Path) -> Path:
    return cache / "downloads" / name
