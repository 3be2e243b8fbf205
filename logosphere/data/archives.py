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
from logosphere.untrusted import open_regular

MAX_MEMBER_BYTES = 1 << 30
MAX_BYTES = 1 << 33
"""Bytes of all members that are read or skipped, at most; a skipped one is decompressed, too."""
MAX_MEMBERS = 200_000
"""Members of an archive, at most: the library keeps a record of each."""
MAX_NAME = 1 << 16
"""Bytes of the name of a member or of its other properties, which the library reads into memory."""
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
"""Types of headers whose content is a name or a table of properties."""


class _Header(tarfile.TarInfo):
    """The header of a member, refused before its name is read if that cannot be one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header: _Header = super().frombuf(buf, encoding, errors)
        if header.type in EXTENDED and header.size > MAX_NAME:
            raise ValueError(f"the name of a member has {header.size:,} bytes, and at most {MAX_NAME:,} are read")
        return header


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
    total = 0
    with tarfile.open(archive, tarinfo=_Header) as packed_tar:
        for number, entry in enumerate(packed_tar):
            total += entry.size
            if number >= MAX_MEMBERS or total > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_MEMBERS:,} members or {MAX_BYTES:,} bytes")
            if entry.isfile():
                _check_size(entry.size, entry.name)
                yield entry.name, lambda entry=entry: packed_tar.extractfile(entry).read()  # type: ignore[union-attr]


def read_npz(path: Path, names: Sequence[str], largest: int = MAX_MEMBER_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Arrays by name from an .npz; the sizes of all are checked before any is unpacked."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            _check_size(info.file_size, info.filename, largest)
    with open_regular(path) as file, np.load(file, allow_pickle=False) as stored:
        try:
            return {name: stored[name] for name in names if name in stored.files}
        except MemoryError as problem:  # the header of an array asks for more than any machine has
            raise ValueError(f"an array in it is too large ({problem})") from None


def _check_size(size: int, name: str, largest: int = MAX_MEMBER_BYTES) -> None:
    if size > largest:
        raise ValueError(f"{name} has {size:,} bytes, more than any of these data sets")
