"""text8 and other text in its alphabet: 26 letters and single spaces, digits spelled out."""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

from logosphere.data.catalogue import CORPORA
from logosphere.data.locate import find_files
from logosphere.data.sources import ReportProgress, Source, TextStats, file_stamp
from logosphere.data.tokenizers import TEXT8_ALPHABET
from logosphere.errors import UserError

LETTERS_PREFIX = "letters:"
"""letters:SOURCE is any text in the alphabet of text8."""
BLOCK = 1 << 20
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_SPELLED = {ord(str(digit)): f" {word} " for digit, word in enumerate(DIGITS)}
# Only A–Z are lowered: str.lower would turn a few signs beyond ASCII into plain letters.
_LOWERED = {ord(upper): lower for upper, lower in zip(ascii_uppercase, ascii_lowercase, strict=True)}
_TABLE = _SPELLED | _LOWERED
_OTHERS = re.compile(r"[^a-z]+")
_ALPHABET = TEXT8_ALPHABET.encode()

TEXT8 = CORPORA["text8"]
TEXT8_CHARACTERS, TEXT8_MD5 = 100_000_000, "3bea1919949baf155f99411df5fada7e"
TEXT8_SHA256 = "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"
"""Size and hashes of the unpacked text."""


def text8_filter(text: str) -> str:
    """A text in the alphabet of text8; each run of characters other than letters and digits becomes one space."""
    return _OTHERS.sub(" ", text.translate(_TABLE))


def open_text8(cache: Path, report: ReportProgress) -> Source:
    """The published text8, downloaded if necessary."""
    (path,) = find_files(TEXT8, cache, report)
    texts = {"train": lambda: read_text8(path, TEXT8_CHARACTERS, TEXT8_MD5)}
    stats = TextStats(TEXT8_SHA256, TEXT8_ALPHABET, {"train": TEXT8_CHARACTERS})
    return Source("text8", file_stamp([path]), texts, stats)


def read_text8(path: Path, size: int, md5: str) -> Iterator[str]:
    """The text of text8.zip or of the plain file; raises UserError at its end unless it has this size and hash."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    for block in _read_blocks(path):
        digest.update(block)
        done += len(block)
        if done > size:
            break
        if block.translate(None, _ALPHABET):
            break  # such a text cannot have the right hash, which otherwise is known only at the end
        yield block.decode("ascii")
    if digest.hexdigest() != md5:
        raise UserError(f"{path} does not hold the published text8; delete it and fetch it again.")


def _read_blocks(path: Path) -> Iterator[bytes]:
    try:
        if path.suffix != ".zip":
            with path.open("rb") as plain:
                yield from iter(lambda: plain.read(BLOCK), b"")
            return
        with zipfile.ZipFile(path) as archive, archive.open("text8") as member:
            yield from iter(lambda: member.read(BLOCK), b"")
    except Exception as error:  # the library raises errors of any class for a damaged archive
        raise UserError(f"{path} cannot be read ({error}); delete it and fetch it again.") from error


def open_pydoc() -> Source:
    """Python's own help topics in the alphabet of text8."""
    from pydoc_data.topics import topics

    raw = "\n\n".join(topics[name] for name in sorted(topics))
    stamp = f"pydoc {hashlib.sha256(raw.encode()).hexdigest()}"
    return Source("pydoc", stamp, {"train": lambda: iter([text8_filter(raw)])})


def is_letters(source: str) -> bool:
    """Whether a source is letters:SOURCE."""
    return source.startswith(LETTERS_PREFIX)


def filter_source(name: str, source: Source) -> Source:
    """A source in the alphabet of text8, under a new name."""
    return Source(
        name,
        json.dumps([LETTERS_PREFIX, source.stamp]),
        {split: _filtered(text) for split, text in source.texts.items()},
        column=source.column,
    )


def _filtered(text: Callable[[], Iterable[str]]) -> Callable[[], Iterator[str]]:
    return lambda: join_filtered(map(text8_filter, text()))


def join_filtered(pieces: Iterable[str]) -> Iterator[str]:
    """Filtered pieces without a second space where two pieces meet."""
    ends_in_space = False
    for piece in pieces:
        rest = piece[1:] if ends_in_space and piece.startswith(" ") else piece
        if rest:
            ends_in_space = rest.endswith(" ")
            yield rest
