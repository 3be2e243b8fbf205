"""Collections of examples by name or from files, as a corpus of three splits."""

import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from logosphere.data.choosing import Choice, choose
from logosphere.data.examples.collection import Examples
from logosphere.data.examples.images import cifar10, digits, mnist_binary
from logosphere.data.examples.promoters import LETTERS, published, synthetic_promoters
from logosphere.data.examples.sets import PITCHES, RECORDS, Records, chorales, sudoku
from logosphere.data.examples.texts import FORMATS, Record
from logosphere.data.sources import Report
from logosphere.data.special import Ended, Levels
from logosphere.data.tokenizers import Characters, Tokenizer, characters_of, load_tokenizer, save_tokenizer
from logosphere.errors import UserError

Set = TypeVar("Set")

NUMBERS: dict[str, tuple[int, Callable[[Path, Report], dict[str, Examples]]]] = {
    "cifar10": (256, cifar10),
    "digits": (17, digits),
    "mnist-binary": (2, mnist_binary),
    "sudoku": (9, sudoku),
    "chorales": (PITCHES, chorales),
}
"""Sets that are no text: the number of their levels, and how to read them."""

SYNTHETIC, PROMOTERS = "synthetic-promoters", "promoters"


@dataclass(frozen=True)
class Collection:
    """Three splits of examples, and the tokenizer that spells them."""

    name: str
    tokenizer: Tokenizer
    splits: dict[str, Examples]
    sha256: str
    characters: dict[str, int]
    bytes: dict[str, int]
    labels: tuple[str, ...] = ()
    """Their names, in the order of their numbers."""


def is_collection(source: str) -> bool:
    """Does a source name separate examples rather than a running text?"""
    kind, separator, _ = source.partition(":")
    return source in (*RECORDS, *NUMBERS, SYNTHETIC) or (bool(separator) and kind in (*FORMATS, PROMOTERS))


def open_collection(source: str, tokenizer: str | Tokenizer, cache: Path, report: Report) -> Collection:
    """A set by its name, or lines:FILE, labelled:FILE, pairs:FILE, promoters:FILE."""
    report("reading", 0, 0)
    kind, _, name = source.partition(":")
    if source != SYNTHETIC and source not in (*NUMBERS, *RECORDS) and not name:
        raise UserError(f"Say which file after {kind}: — for example {kind}:FILE.")
    if source == SYNTHETIC or (kind == PROMOTERS and name):
        splits = synthetic_promoters(cache, report) if source == SYNTHETIC else published(Path(name).expanduser())
        counts = {split: part.tokens for split, part in splits.items()}
        return Collection(source, Characters(LETTERS), splits, _digest(splits), counts, counts)
    if source in NUMBERS:
        levels, read = NUMBERS[source]
        splits = _as_published(source, read, cache, report)
        counts = {split: part.tokens for split, part in splits.items()}
        kinds = tuple(map(str, range(splits["train"].label_count)))
        spelt = Levels(levels) if splits["train"].end is None else Ended(Levels(levels))
        return Collection(source, spelt, splits, _digest(splits), counts, counts, kinds)
    if source in RECORDS:
        return _spelt(source, _as_published(source, RECORDS[source], cache, report), tokenizer, cache)
    every = FORMATS[kind](Path(name).expanduser())
    if len(every) < 3:
        raise UserError(f"{name} has {len(every)} rows; three splits need more.")
    shares = {"train": lambda i: i % 20 > 1, "valid": lambda i: i % 20 == 0, "test": lambda i: i % 20 == 1}
    records = {split: [row for i, row in enumerate(every) if mine(i)] for split, mine in shares.items()}
    return _spelt(Path(name).stem, records, tokenizer, cache)


def _as_published(source: str, read: Callable[[Path, Report], Set], cache: Path, report: Report) -> Set:
    """A published set; whoever has put another one in its place is told so."""
    try:
        return read(cache, report)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, csv.Error) as problem:
        raise UserError(f"The files of {source} are not as published ({problem!r}); fetch them again.") from None


def _spelt(name: str, records: Records, tokenizer: str | Tokenizer, cache: Path) -> Collection:
    """Records as token numbers, under a tokenizer made for all texts and sources of the training split."""
    texts = {split: [part for row in rows for part in (row.text, row.source or "")] for split, rows in records.items()}
    alphabet = ""
    for split in texts.values():
        alphabet = characters_of("".join(split), alphabet)
    plain = (
        tokenizer.inner if isinstance(tokenizer, Ended) else _made(choose(tokenizer, alphabet), texts["train"], cache)
    )
    lengths = {len(plain.encode(row.text)) for rows in records.values() for row in rows}
    ends = isinstance(tokenizer, Ended) or len(lengths) > 1  # sequences of one length need no end
    made = Ended(plain) if ends else plain
    kinds = sorted({row.label for row in records["train"] if row.label is not None})
    splits = {split: _examples(rows, made, kinds, f"{name} {split}") for split, rows in records.items()}
    characters = {split: sum(len(row.text) for row in rows) for split, rows in records.items()}
    sizes = {split: sum(len(row.text.encode()) for row in rows) for split, rows in records.items()}
    return Collection(name, made, splits, _digest(splits), characters, sizes, tuple(kinds))


def _made(choice: Choice, texts: list[str], cache: Path) -> Tokenizer:
    """A tokenizer for some texts, made once: a vocabulary of WordPiece comes out otherwise every time it is trained."""
    if ":" not in choice.key:
        return choice.make(texts)
    digest = hashlib.sha256("\0".join([choice.key, *texts]).encode())
    path = cache / "tokenizers" / f"{digest.hexdigest()[:24]}.json"
    try:
        return load_tokenizer(path)
    except UserError:  # not made yet, or damaged
        save_tokenizer(choice.make(texts), path)
        return load_tokenizer(path)


def _examples(rows: list[Record], made: Tokenizer, kinds: list[str], place: str) -> Examples:
    labels = sources = None
    if kinds:
        number = {kind: i for i, kind in enumerate(kinds)}
        if strange := {row.label for row in rows} - number.keys():
            raise UserError(f"{place} has the label '{min(map(str, strange))}', which the training split has not.")
        labels = np.array([number[str(row.label)] for row in rows], dtype=np.int64)
    if rows[0].source is not None:
        sources = [made.encode(row.source or "") for row in rows]
    return Examples(
        [made.encode(row.text) for row in rows],
        end=made.end if isinstance(made, Ended) else None,
        labels=labels,
        label_count=len(kinds),
        sources=sources,
        source_size=made.size if sources is not None else 0,
    )


def _digest(splits: dict[str, Examples]) -> str:
    """Of all token numbers, so that a changed set is noticed."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        for part in (splits[split].sequences, splits[split].sources or ()):
            for row in part:
                digest.update(np.asarray(row, dtype=np.int64).tobytes() + b"/")
        if (signals := splits[split].signals) is not None:
            digest.update(signals.tobytes())
    return digest.hexdigest()
