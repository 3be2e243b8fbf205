"""Published archives, read member by member and never unpacked, so that no name inside them can reach the disk."""

import os
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from logosphere.data.download import fetch
from logosphere.data.sources import Report
from logosphere.errors import UserError

LARGEST_MEMBER = 1 << 30


@dataclass(frozen=True)
class Packed:
    """An archive that goes by some file name in the folder LOGOSPHERE_DATA, or can be fetched."""

    files: tuple[str, ...]
    home: str
    """Where people find it."""
    url: str = ""
    sha256: str = ""
    size: int = 0

    def find(self, cache: Path, report: Report) -> Path:
        """The archive on this machine, downloaded if need be."""
        folder = os.environ.get("LOGOSPHERE_DATA")
        for name in self.files if folder else ():
            path = Path(str(folder), name)
            if path.is_file():
                return path
        if self.url:
            name = self.files[0]
            return fetch([self.url], cache / "downloads" / name, self.sha256, self.size,
                         lambda done, total: report(f"downloading {name}", done, total))  # fmt: skip
        raise UserError(
            f"{self.files[0]} is not here; get it from {self.home} and put it into the folder named by LOGOSPHERE_DATA."
        )


def member(archive: Path, ending: str) -> bytes:
    """The content of the one member whose path ends so."""
    found = members(archive, [ending])
    return found[ending]


def members(archive: Path, endings: Sequence[str], missing_ok: bool = False) -> dict[str, bytes]:
    """The content of the members whose paths end so; of those that are there, with `missing_ok`."""
    wanted = {PurePosixPath(ending).parts: ending for ending in endings}
    found: dict[str, bytes] = {}
    try:
        for path, read in _entries(archive):
            parts = PurePosixPath(path).parts
            for tail, ending in wanted.items():
                if parts[-len(tail) :] == tail:
                    found[ending] = read()
    except Exception as problem:  # the libraries raise whatever a damaged archive brings up, of a dozen kinds
        raise UserError(f"{archive} cannot be read ({problem!r}); delete it and fetch it again.") from None
    lacking = [ending for ending in endings if ending not in found]
    if lacking and not (missing_ok and found):
        raise UserError(f"{archive} holds no {lacking[0]}; fetch the archive again.")
    return found


def _entries(archive: Path):  # type: ignore[no-untyped-def]
    """(path, function that reads it) of every plain file."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    _check_size(info.file_size, info.filename)
                    yield info.filename, lambda info=info: packed.read(info)
        return
    with tarfile.open(archive) as packed_tar:
        for entry in packed_tar:
            if entry.isfile():
                _check_size(entry.size, entry.name)
                yield entry.name, lambda entry=entry: packed_tar.extractfile(entry).read()  # type: ignore[union-attr]


def arrays(path: Path, names: Sequence[str], largest: int = LARGEST_MEMBER) -> dict[str, npt.NDArray[Any]]:
    """Arrays by name out of an .npz; none is unpacked before it is known how large it is."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            _check_size(info.file_size, info.filename, largest)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in names if name in stored.files}


def _check_size(size: int, name: str, largest: int = LARGEST_MEMBER) -> None:
    if size > largest:
        raise ValueError(f"{name} has {size:,} bytes, more than any of these data sets")
