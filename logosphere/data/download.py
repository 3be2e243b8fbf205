"""Downloads that resume, try mirrors, and verify the hash of the file."""

import hashlib
import os
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

from logosphere.errors import UserError

BLOCK = 1 << 18
TIMEOUT = 20
"""Seconds to wait for data before a server is given up."""


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
