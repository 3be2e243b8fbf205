"""Files that may be compressed (.gz, .xz), opened as streams of bytes."""

import gzip
import lzma
import zlib
from io import BufferedIOBase
from pathlib import Path

from logosphere.untrusted import open_regular

COMPRESSED = (".gz", ".xz")
DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
"""Errors of the libraries for a file that is damaged or cut off."""


def plain_suffix(path: Path) -> str:
    """The suffix of the content in lower case: .csv for table.csv and for table.csv.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def open_binary(path: Path) -> BufferedIOBase:
    """The content as a stream that is decompressed while it is read."""
    open_regular(path).close()  # a pipe or a device would never end
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case _:
            return path.open("rb")
