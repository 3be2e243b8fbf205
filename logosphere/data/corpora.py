"""Corpora: a source of text, split and tokenised once, opened from the cache ever after."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from logosphere.atomic import write_whole
from logosphere.cache import cache_folder
from logosphere.data.batches import Split
from logosphere.data.choosing import TOKENIZERS, choose
from logosphere.data.examples.collection import Examples
from logosphere.data.examples.opening import Collection, is_collection, open_collection
from logosphere.data.hubstream import Live, is_stream, open_stream
from logosphere.data.lettered import is_lettered, lettered
from logosphere.data.sources import CORPORA, Report, Source, find_source
from logosphere.data.tokenfile import DamagedCache, build, open_tokens, read_meta
from logosphere.data.tokenizers import Tokenizer, characters_of, from_description
from logosphere.errors import UserError

__all__ = ["CORPORA", "TOKENIZERS", "Corpus", "get", "open_corpus"]

HELD_OUT = 5
"""Per cent of the text for each of the splits a source does not bring along."""
PIECE = 1 << 20
VERSION = 1
"""Raise it when the same source would be read as another text."""


@dataclass(frozen=True)
class Corpus:
    """Token numbers of three splits, mapped into memory, and the counts to state results per character."""

    name: str
    tokenizer: Tokenizer
    train: Split
    valid: Split
    test: Split
    sha256: str
    """Of the source text."""
    characters: dict[str, int]
    bytes: dict[str, int]
    folder: Path | None
    """Where the tokens lie; nowhere when a set is small and read anew."""
    labels: tuple[str, ...] = ()
    """Names of the labels that examples have."""

    def split(self, name: str) -> Split:
        """The split of this name: train, valid or test."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    @property
    def conditions(self) -> dict[str, int]:
        """What a network must be built for to read the conditions of all examples; nothing for a running text."""
        parts = [part.conditions for part in (self.train, self.valid, self.test) if isinstance(part, Examples)]
        return {name: max(part[name] for part in parts) for part in parts[:1] for name in part}


@dataclass(frozen=True)
class _Survey:
    """What one reading of a whole source tells."""

    sha256: str
    alphabet: str
    characters: dict[str, int]
    """Per split that the source brings along."""


def open_corpus(
    source: str, tokenizer: str | Tokenizer = "auto", cache: Path | None = None, report: Report | None = None
) -> Corpus:
    """The corpus of a name, a path or hf:OWNER/NAME[:CONFIG]; tokenised on first use, by a name or a tokenizer.

    letters: before any of these reads it in the alphabet of text8.
    stream:OWNER/NAME[:CONFIG] is not tokenised beforehand, but while it is trained on.
    """
    cache = cache or cache_folder()
    report = report or _silent
    try:
        if is_collection(source):
            return _collected(open_collection(source, tokenizer, cache, report))
        if is_stream(source):
            return _streamed(open_stream(source, tokenizer, report))
        found = (lettered if is_lettered(source) else find_source)(source, cache, report)
        return _open(found, tokenizer, cache, report)
    except OSError as error:
        raise UserError(
            f"The cache folder {cache} cannot be used ({error}); set the environment variable "
            f"LOGOSPHERE_CACHE to a folder that can be written and has space."
        ) from error


def _collected(found: Collection) -> Corpus:
    splits = found.splits
    return Corpus(
        found.name, found.tokenizer, splits["train"], splits["valid"], splits["test"], found.sha256,
        found.characters, found.bytes, folder=None, labels=found.labels,
    )  # fmt: skip


def _streamed(live: Live) -> Corpus:
    valid, test = live.held_out["valid"], live.held_out["test"]
    return Corpus(
        live.name, live.tokenizer, live.train, valid, test, live.sha256, live.characters, live.bytes, folder=None
    )


def get(name: str, cache: Path | None = None, report: Report | None = None) -> Corpus:
    """Fetch and prepare a corpus now, so that later uses need no network."""
    return open_corpus(name, cache=cache, report=report)


def _open(source: Source, tokenizer: str | Tokenizer, cache: Path, report: Report) -> Corpus:
    survey = _surveyed(source, cache, report)
    choice = choose(tokenizer, survey.alphabet)
    key = _digest(json.dumps([survey.sha256, survey.characters, choice.key]))
    folder = cache / "tokens" / f"{re.sub(r'[^a-z0-9]+', '-', choice.key)[:20]}-{key[:24]}"
    try:
        return _load(folder, source.name)
    except DamagedCache:
        if folder.exists():
            report("rebuilding a damaged cache", 0, 0)
    report("preparing the tokenizer", 0, 0)
    train = takewhile(lambda piece: piece[0] == "train", _pieces(source, survey))
    made = choice.make(text for _, text in train)
    total = sum(survey.characters.values())
    build(
        folder,
        _pieces(source, survey),
        made,
        source.name,
        survey.sha256,
        lambda done: report("tokenising", done, total),
    )
    return _load(folder, source.name)


def _load(folder: Path, name: str) -> Corpus:
    meta = read_meta(folder)
    try:
        splits, tokens = meta["splits"], open_tokens(folder)
        return Corpus(
            name=name,
            tokenizer=from_description(meta["vocabulary"]),
            train=tokens["train"],
            valid=tokens["valid"],
            test=tokens["test"],
            sha256=meta["source"]["sha256"],
            characters={split: counts["characters"] for split, counts in splits.items()},
            bytes={split: counts["bytes"] for split, counts in splits.items()},
            folder=folder,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCache(f"{folder}: {error!r}") from error


def _surveyed(source: Source, cache: Path, report: Report) -> _Survey:
    """The survey of a source, cached for as long as its stamp stays the same."""
    path = cache / "surveys" / f"{_digest(f'{VERSION} {source.stamp}')[:24]}.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return _Survey(known["sha256"], known["alphabet"], known["characters"])
    except (OSError, ValueError, TypeError, KeyError):
        survey = _survey(source, report)
        write_whole(path, json.dumps(asdict(survey)).encode())
        return survey


def _survey(source: Source, report: Report) -> _Survey:
    digest, alphabet, done = hashlib.sha256(), "", 0
    characters = dict.fromkeys(source.texts, 0)
    for split, text in source.texts.items():
        for piece in _even(text()):
            digest.update(piece.encode())
            alphabet = characters_of(piece, alphabet)
            characters[split] += len(piece)
            done += len(piece)
            report("reading", done, 0)
    if not characters["train"]:
        raise UserError(f"{source.name} is empty; give a source that has text in it.")
    return _Survey(digest.hexdigest(), alphabet, characters)


def _pieces(source: Source, survey: _Survey) -> Iterator[tuple[str, str]]:
    """All of the text, each piece with its split; splits the source lacks are cut from the end of train."""
    lacking = [split for split in ("valid", "test") if split not in source.texts]
    held_out = survey.characters["train"] * HELD_OUT // 100
    for split, text in source.texts.items():
        shares = [(split, survey.characters[split])]
        if split == "train":
            kept = survey.characters["train"] - held_out * len(lacking)
            shares = [("train", kept), *((other, held_out) for other in lacking)]
        yield from _dealt(_even(text()), shares, source.name)


def _dealt(pieces: Iterable[str], shares: list[tuple[str, int]], name: str) -> Iterator[tuple[str, str]]:
    """Pieces dealt out to the splits in turn, to each as many characters as are its share."""
    changed = UserError(f"{name} changed while it was being read; try again when it is complete.")
    pending = iter(shares)
    split, left = next(pending)
    for piece in pieces:
        while len(piece) > left:
            yield split, piece[:left]
            piece = piece[left:]
            following = next(pending, None)
            if following is None:
                raise changed
            split, left = following
        left -= len(piece)
        yield split, piece
    if left or any(share for _, share in pending):
        raise changed


def _even(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces of nearly one length, cut before a space where there is one.

    So no word is torn, and the tokens do not depend on how the text happened to be read.
    """
    text = ""
    for piece in pieces:
        text += piece
        start = 0
        while len(text) - start >= PIECE:
            space = text.rfind(" ", start + 1, start + PIECE)
            end = space if space > 0 else start + PIECE
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _silent(stage: str, done: int, total: int) -> None:
    pass
