"""letters:SOURCE, any text in the alphabet of text8: what a model of its 27 characters can learn and be judged by."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from logosphere.data.examples.sets import RECORDS
from logosphere.data.sources import Report, Source, find_source
from logosphere.data.text8 import text8_filter
from logosphere.errors import UserError

LETTERS = "letters:"


def is_lettered(source: str) -> bool:
    """Is a text asked for in the alphabet of text8?"""
    return source.startswith(LETTERS)


def lettered(source: str, cache: Path, report: Report) -> Source:
    """The text of a corpus, a path, hf:OWNER/NAME or a set of texts by name, in small letters and single spaces."""
    inner = source.removeprefix(LETTERS)
    if not inner:
        raise UserError("'letters:' names no text; write letters:FILE, letters:FOLDER or letters:hf:OWNER/NAME.")
    found = _records(inner, cache, report) if inner in RECORDS else find_source(inner, cache, report)
    return Source(
        source, json.dumps([LETTERS, found.stamp]), {split: _cleaned(text) for split, text in found.texts.items()}
    )


def _records(name: str, cache: Path, report: Report) -> Source:
    """A set of separate texts as a running one, in its own three splits."""
    texts = {split: "\n".join(record.text for record in rows) for split, rows in RECORDS[name](cache, report).items()}
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    return Source(name, f"{name} {digest}", {split: _once(text) for split, text in texts.items()})


def _once(text: str) -> Callable[[], Iterator[str]]:
    return lambda: iter([text])


def _cleaned(text: Callable[[], Iterable[str]]) -> Callable[[], Iterator[str]]:
    return lambda: _joined(map(text8_filter, text()))


def _joined(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces that were cleaned one by one: where two meet there is no second space either."""
    space = False
    for piece in pieces:
        rest = piece[1:] if space and piece.startswith(" ") else piece
        if rest:
            space = rest.endswith(" ")
            yield rest
