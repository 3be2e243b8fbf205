"""Files that appear whole or not at all."""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path`; whoever reads meanwhile or after a crash sees the old file or the new one.

    When this returns, a power cut leaves the new one: its folder is synced too, where the renaming is written down.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, content: object) -> None:
    """A JSON file that appears whole."""
    write_whole(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def plain(content: object) -> object:
    """Content as JSON may hold it: what is no finite number is null."""
    match content:
        case float():
            return content if math.isfinite(content) else None
        case dict():
            return {key: plain(value) for key, value in content.items()}
        case list() | tuple():
            return [plain(value) for value in content]
        case _:
            return content


def sync(path: Path) -> None:
    """Wait until what was written to a file, by whomever, or renamed inside a folder would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cached(path: Path, key: object, make: Callable[[], Any]) -> Any:
    """The result of `make`, which must be plain data: read from the file if that was written for this key."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    try:
        content = json.loads(path.read_bytes())
        if content["key"] == name:
            return content["result"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not made yet, or for another key: it is made now
    result = make()
    write_json(path, {"key": name, "result": result})
    return result
