"""Downloads that resume, try mirrors, and verify size and hash.

Every download writes a part of its own, which it holds locked, and renames it once it is verified: nobody else has it
open, so what was verified cannot change. What a stopped download has left is copied into the part of the next one.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

from logosphere.data.catalogue import HUB, RemoteFile
from logosphere.errors import UserError
from logosphere.io import cache_folder, file_sha256, locked, replace_file

BLOCK = 1 << 18
BINARY = getattr(os, "O_BINARY", 0)
"""Windows translates line ends in files that are opened without it."""
TIMEOUT = 20
"""Seconds to wait for data before a server is given up."""


LARGEST = 4
"""How many times its estimated size a file of unknown size may have."""


def fetch(file: RemoteFile, path: Path, report: Callable[[int, int], None] | None = None) -> Path:
    """The file at `path`, downloaded from the first mirror that has it unless it is there."""
    if is_complete(file, path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _own_part(path) as part:
        reasons = _download(file, path, part, report or _ignore_progress)
    if reasons is None:
        return path
    raise UserError(
        f"{path.name} could not be downloaded ({'; '.join(dict.fromkeys(reasons))}); try again later, or "
        f"place the file in the folder named by the environment variable LOGOSPHERE_DATA."
    )


def _download(file: RemoteFile, path: Path, part: Path, report: Callable[[int, int], None]) -> list[str] | None:
    """Download a file by its part; None once it is there, or else why it could not be downloaded."""
    reasons: list[str] = []
    # Twice each: a broken connection resumes, and a wrong part left by an earlier run is downloaded again.
    for url in (_mirror(url) for url in file.urls for _ in range(2)):
        try:
            _resume(url, part, file, report)
            if not is_complete(file, part):
                raise _WrongFile("its content is another than expected")
            replace_file(part, path)
            return None
        except _WrongFile as error:
            part.unlink(missing_ok=True)
            reasons.append(f"{url}: {error}")
        except (OSError, HTTPException) as error:
            reasons.append(f"{url}: {error}")
        # Checked after a failure too: another process may have finished the same download.
        if is_complete(file, path):
            part.unlink(missing_ok=True)
            return None
    return reasons


@contextmanager
def _own_part(path: Path) -> Iterator[Path]:
    """The part of a download: FILE.part, with what a stopped download has left, or another while that one is in use."""
    part = path.with_name(f"{path.name}.part")
    lock = cache_folder() / "locks" / f"{hashlib.sha256(str(part.resolve()).encode()).hexdigest()[:24]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait=False))
        except BlockingIOError:
            part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
            stack.callback(part.unlink, missing_ok=True)
        else:
            _make_new(part)
        yield part


def _make_new(part: Path) -> None:
    """Replace a part that was left by a copy of it, which no other process has open."""
    if part.is_symlink() or not part.is_file():
        part.unlink(missing_ok=True)
        return
    copy = part.with_name(f".{part.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        shutil.copyfile(part, copy)
        replace_file(copy, part)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def is_complete(file: RemoteFile, path: Path) -> bool:
    """Whether there is a file at `path` with the size and the hash that are known."""
    try:
        size = path.stat().st_size
        return (size == file.size or not file.exact) and (not file.sha256 or file_sha256(path) == file.sha256)
    except OSError:
        return False


def _mirror(url: str) -> str:
    """The address at the mirror of the hub that HF_ENDPOINT names."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    return url.replace(HUB, endpoint, 1) if endpoint and url.startswith(f"{HUB}/") else url


class _WrongFile(Exception):
    """The downloaded bytes cannot be those of the file."""


def _resume(url: str, part: Path, file: RemoteFile, report: Callable[[int, int], None]) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    held = part.stat().st_size if part.exists() else 0
    if held == file.size and file.exact:
        return
    wanted = f"bytes={held}-{file.size - 1}" if file.head else f"bytes={held}-"
    headers = {"User-Agent": "logosphere"} | ({"Range": wanted} if held or file.head else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            resumes = (response.headers.get("Content-Range") or "").startswith(f"bytes {held}-")
            start = held if response.status == 206 and resumes else 0
            size = file.size if file.exact else start + int(response.headers.get("Content-Length") or 0)
            largest = file.size if file.exact else LARGEST * file.size
            with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | BINARY, 0o666), "r+b") as target:
                target.seek(start)
                while block := response.read(min(BLOCK, largest - start + (0 if file.head else 1))):
                    start += len(block)
                    if start > largest:
                        raise _WrongFile(f"it is larger than {largest} bytes")
                    target.write(block)
                    report(start, size)
                target.flush()
                os.fsync(target.fileno())
    except HTTPError as error:
        if error.code == 416:
            raise _WrongFile(f"it is smaller than {file.size} bytes") from error
        raise
    if start < size:
        raise OSError(f"the connection ended after {start} of {size} bytes")


def _ignore_progress(done: int, total: int) -> None:
    pass
