"""Reading files that may come from strangers: regular files of a limited size, and no links out of their folder.

A link to /dev/zero never ends, a pipe waits for a writer, and a link to a private file would quote it in an error.
A file is opened first and examined then, so that it cannot be exchanged in between.
"""

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from logosphere.errors import UserError, shorten

MAX_JSON = 64 << 20
"""Bytes of recipes, tokenizers, records and reports, at most; a tokenizer of 256,000 tokens has 34 million."""
MAX_LOG = 1 << 30
"""Bytes of metrics.jsonl, at most; a line has some 200."""
_NONBLOCK = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_SNAPSHOTS = "snapshots"
"""The folder of the hub's cache whose files are links to ../../blobs."""


class NotAnObject(ValueError):
    """A JSON file holds something else than an object."""


def open_regular(path: Path, *, inside: Path | None = None) -> BufferedReader:
    """Open a regular file for reading; raises UserError for pipes, devices and folders, and OSError as usual.

    With `inside`, a link must lead to a file of that folder, or of the hub's cache that the folder belongs to.
    """
    handle = os.open(path, os.O_RDONLY | _NONBLOCK)  # a pipe without a writer would be waited for otherwise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UserError(f"{path} is {kind_of(path)}, so it is not read; it must be a regular file.")
        if inside is not None:
            _check_inside(path, inside)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, limit: int = MAX_JSON, *, inside: Path | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes (see `open_regular`)."""
    with open_regular(path, inside=inside) as file:
        content = file.read(limit + 1)
        if len(content) > limit:
            size = max(len(content), os.fstat(file.fileno()).st_size)
            raise UserError(f"{path} has {size:,} bytes, and at most {limit:,} are read; restore the right file.")
    return content


def read_object(path: Path, limit: int = MAX_JSON, *, inside: Path | None = None) -> dict[str, Any]:
    """The JSON object in a file; ValueError for any other content."""
    try:
        content = json.loads(read_regular(path, limit, inside=inside))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(content, dict):
        raise NotAnObject(f"it must hold an object, not {shorten(content)}")
    return content


def kind_of(path: Path) -> str:
    """What is at a path, as errors name it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return "no file"
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "a device")


def _check_inside(path: Path, folder: Path) -> None:
    """Raise UserError for a link that leads out of the folder: an error could quote what is there."""
    if not path.is_symlink():
        return
    root = folder.resolve()
    if root.parent.name == _SNAPSHOTS:
        root = root.parent.parent
    if not path.resolve().is_relative_to(root):
        raise UserError(f"{path} is a link to {os.readlink(path)}, out of its folder, so it is not read; copy it here.")
