"""Files that cannot be read as data, told from their kind or first bytes, and names that are no files."""

import codecs
import re
from pathlib import Path

from logosphere.data.compressed import open_binary
from logosphere.errors import UserError, quote_path

START = 1 << 12
"""Bytes at the beginning of a file that its encoding is told by."""
WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins as the next one does
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Encodings by their byte-order marks."""
WEB = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
HUB_PAGE = re.compile(r"https?://huggingface\.co/datasets/([^/?#]+/[^/?#]+)")


def check_regular(path: Path) -> None:
    """Raise UserError for a pipe, a socket or a device: data are read several times."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a pipe or a device, and data are read several times; save it to a file first.")


def check_encoding(path: Path) -> None:
    """Raise UserError for text in UTF-16 or UTF-32, as some editors and shells of Windows write it."""
    with open_binary(path) as file:
        start = file.read(START)
    encoding = next((name for mark, name in WIDE.items() if start.startswith(mark)), "")
    if not encoding and any(2 * start[first::2].count(0) > len(start[first::2]) > 1 for first in (0, 1)):
        big = 2 * start[0::2].count(0) > len(start[0::2])  # Latin letters have a zero byte before or after them
        encoding = "UTF-16BE" if big else "UTF-16LE"
    if encoding:
        quoted = quote_path(path)
        raise UserError(
            f"{path} is {encoding} text; save it as UTF-8, for example with: "
            f"iconv -f {encoding} -t UTF-8 {quoted} > utf8.txt"
        )


def explain_missing(source: str) -> str:
    """What to do with the name of data that are not one file; empty where it is just a name."""
    if page := HUB_PAGE.match(source):
        return f"'{source}' is the page of a dataset; write hf:{page[1]}"
    if WEB.match(source):
        return f"'{source}' is an address; download it first and name the file, or write hf:OWNER/NAME for a dataset."
    parts = [part.strip() for part in source.split(",")]
    several = len(parts) > 1 and any(part and Path(part).expanduser().exists() for part in parts)
    if several or any(mark in source for mark in "*?"):
        return f"'{source}' is not one file; put the files into a folder and name that: it is read with all its texts."
    return ""
