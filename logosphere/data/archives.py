"""Archives, read without unpacking them.

They are read member by member, so that names inside them cannot become paths on disk.
"""

import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from logosphere.errors import UserError

MAX_MEMBER_BYTES = 1 << 30


def read_member(archive: Path, ending: str) -> bytes:
    """The content of the member whose path ends in `ending`."""
    return read_members(archive, [ending])[ending]


def read_members(archive: Path, endings: Sequence[str], missing_ok: bool = False) -> dict[str, bytes]:
    """The content of the members whose paths end in `endings`; with `missing_ok` only of those that exist."""
    wanted = {PurePosixPath(ending).parts: ending for ending in endings}
    found: dict[str, bytes] = {}
    try:
        for path, read in _entries(archive):
            parts = PurePosixPath(path).parts
            for tail, ending in wanted.items():
                if parts[-len(tail) :] == tail:
                    found[ending] = read()
    except Exception as problem:  # the libraries raise errors of any class for a damaged archive
        raise UserError(f"{archive} cannot be read ({problem!r}); delete it and fetch it again.") from None
    missing = [ending for ending in endings if ending not in found]
    if missing and not (missing_ok and found):
        raise UserError(f"{archive} holds no {missing[0]}; fetch the archive again.")
    return found


def _entries(archive: Path):  # type: ignore[no-untyped-def]
    """(path, function that reads it) of every regular file."""
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


def read_npz(path: Path, names: Sequence[str], largest: int = MAX_MEMBER_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Arrays by name from an .npz; the sizes of all are checked before any is unpacked."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            _check_size(info.file_size, info.filename, largest)
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: stored[name] for name in names if name in stored.files}


def _check_size(size: int, name: str, largest: int = MAX_MEMBER_BYTES) -> None:
    if size > largest:
        raise ValueError(f"{name} has {size:,} bytes, more than any of these data sets")
