"""Published files: downloads that resume, try mirrors and verify a hash, and archives read without unpacking them.

Archives are read member by member, so that names inside them cannot become paths on disk.
"""

import os
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from logosphere.data.sources import ReportProgress
from logosphere.errors import UserError
from logosphere.io import file_sha256

BLOCK = 1 << 18
TIMEOUT = 20
"""Seconds to wait for data before a server is given up."""


def fetch(
    urls: Sequence[str],
    path: Path,
    sha256: str,
    size: int,
    report: Callable[[int, int], None] | None = None,
) -> Path:
    """The file with this hash and size at `path`, downloaded from the first mirror that has it unless it is there."""
    if _is_complete(path, sha256, size):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    reasons: list[str] = []
    # Twice each: a broken connection resumes, and a wrong part left by an earlier run is downloaded again.
    for url in (url for url in urls for _ in range(2)):
        try:
            _resume(url, part, size, report or _ignore_progress)
            if not _is_complete(part, sha256, size):
                raise _WrongFile("its content is another than expected")
            os.replace(part, path)
        except _WrongFile as error:
            part.unlink(missing_ok=True)
            reasons.append(f"{url}: {error}")
        except (OSError, HTTPException) as error:
            reasons.append(f"{url}: {error}")
        # Checked after a failure too: another process may have finished the same download.
        if _is_complete(path, sha256, size):
            return path
    raise UserError(
        f"{path.name} could not be downloaded ({'; '.join(dict.fromkeys(reasons))}); try again later, or "
        f"place the file in the folder named by the environment variable LOGOSPHERE_DATA."
    )


class _WrongFile(Exception):
    """The downloaded bytes cannot be those of the file."""


def _resume(url: str, part: Path, size: int, report: Callable[[int, int], None]) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    held = part.stat().st_size if part.exists() else 0
    if held == size:
        return
    headers = {"User-Agent": "logosphere"} | ({"Range": f"bytes={held}-"} if held else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            resumes = (response.headers.get("Content-Range") or "").startswith(f"bytes {held}-")
            start = held if response.status == 206 and resumes else 0
            # Written in place and never truncated: two processes at once write the same bytes there.
            with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
                file.seek(start)
                while block := response.read(min(BLOCK, size - start + 1)):
                    start += len(block)
                    if start > size:
                        raise _WrongFile(f"it is larger than {size} bytes")
                    file.write(block)
                    report(start, size)
                file.flush()
                os.fsync(file.fileno())
    except HTTPError as error:
        if error.code == 416:
            raise _WrongFile(f"it is smaller than {size} bytes") from error
        raise
    if start < size:
        raise OSError(f"the connection ended after {start} of {size} bytes")


def _is_complete(path: Path, sha256: str, size: int) -> bool:
    try:
        return path.stat().st_size == size and file_sha256(path) == sha256
    except OSError:
        return False


def _ignore_progress(done: int, total: int) -> None:
    pass


MAX_MEMBER_BYTES = 1 << 30


@dataclass(frozen=True)
class PublishedArchive:
    """An archive under one of its file names in the folder LOGOSPHERE_DATA, or to be downloaded."""

    files: tuple[str, ...]
    home: str
    """Where it is published."""
    urls: tuple[str, ...] = ()
    """Mirrors of the first of `files`."""
    sha256: str = ""
    size: int = 0

    def find(self, cache: Path, report: ReportProgress) -> Path:
        """The archive on this machine, downloaded if necessary."""
        folder = os.environ.get("LOGOSPHERE_DATA")
        for name in self.files if folder else ():
            path = Path(str(folder), name)
            if path.is_file():
                return path
        if self.urls:
            name = self.files[0]
            return fetch(self.urls, cache / "downloads" / name, self.sha256, self.size,
                         lambda done, total: report(f"downloading {name}", done, total))  # fmt: skip
        raise UserError(
            f"{self.files[0]} is missing; get it from {self.home} and put it into the folder named by LOGOSPHERE_DATA."
        )


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
