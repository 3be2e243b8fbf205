"""Opening corpora: a source of text is split and tokenised once, then read from the cache."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from logosphere.data.catalogue import CATALOGUE
from logosphere.data.corpus import Corpus
from logosphere.data.datasets import SYNTHETIC, has_column, is_dataset, open_dataset
from logosphere.data.prompts import Prompting
from logosphere.data.published import RECORD_DATASETS, open_records_as_text
from logosphere.data.readers import Notify
from logosphere.data.sources import HUB_PREFIX, ReportProgress, Source, TextStats, no_columns, open_hub, open_path
from logosphere.data.streaming import is_stream, open_stream
from logosphere.data.text8 import LETTERS_PREFIX, filter_source, is_letters, open_pydoc, open_text8
from logosphere.data.token_cache import DamagedCache, build_token_cache, open_tokens, read_meta
from logosphere.data.tokenizer_registry import choose_tokenizer, tokenizer_from_description
from logosphere.data.tokenizers import Tokenizer, merge_alphabet
from logosphere.data.zero_shot import is_zero_shot, open_zero_shot
from logosphere.errors import UserError
from logosphere.io import cache_folder, write_atomic

HELD_OUT = 5
"""Per cent of the text for each split that a source lacks."""
CHUNK = 1 << 20
"""Characters that are tokenised at a time."""
VERSION = 1
"""Raise it when the same source would be read as another text."""


@dataclass(frozen=True)
class Opening:
    """How a source is opened: where downloads are kept, who is notified, and the column of text that was asked for."""

    cache: Path
    report: ReportProgress
    column: str
    notify: Notify


def is_named(source: str) -> bool:
    """Whether a source is a corpus of the catalogue, in its own alphabet or that of text8, and no file or dataset."""
    return source.removeprefix(LETTERS_PREFIX) in (*CATALOGUE, SYNTHETIC)


def open_corpus(
    source: str,
    tokenizer: str | Tokenizer = "auto",
    cache: Path | None = None,
    report: ReportProgress | None = None,
    *,
    column: str = "",
    notify: Notify = warnings.warn,
    prompting: Prompting | None = None,
) -> Corpus:
    """The corpus of a name, a path or hf:OWNER/NAME[:CONFIG]; tokenised on first use, by a name or a tokenizer.

    Of tables (.csv, .tsv, JSON, .parquet) one `column` is read; unless it is named, the only one that looks like
    text, and `notify` is called with its name. letters: before any of these reads it in the alphabet of text8.
    zero-shot:NAME[=PATH] is a set to evaluate on (data/zero_shot.py), for a tokenizer that is given as an object.
    With `prompting` the source of each pair is a prompt before its text (data/prompts.py).
    stream:OWNER/NAME[:CONFIG] is not tokenised in advance, but while it is trained on.
    """
    how = Opening(cache or cache_folder(), report or _ignore_progress, column, notify)
    try:
        if is_dataset(source):
            if column and not has_column(source):
                raise no_columns(source)
            return open_dataset(source, tokenizer, how.cache, how.report, notify, column, prompting)
        if prompting is not None:
            raise UserError(f"{source} has no pairs of a prompt and an answer; the task 'answers' needs pairs:FILE.")
        if is_zero_shot(source):
            return open_zero_shot(source, tokenizer, column)
        if is_stream(source):
            return open_stream(source, tokenizer, how.report, column, notify)
        return _open(_find_source(source, how), tokenizer, how.cache, how.report)
    except OSError as error:
        raise UserError(
            f"The cache folder {how.cache} cannot be used ({error}); set the environment variable "
            f"LOGOSPHERE_CACHE to a folder that can be written and has space."
        ) from error


def _find_source(source: str, how: Opening) -> Source:
    if not is_letters(source):
        return _find_text(source, how)
    inner = source.removeprefix(LETTERS_PREFIX)
    if not inner:
        raise UserError("'letters:' names no text; write letters:FILE, letters:FOLDER or letters:hf:OWNER/NAME.")
    return filter_source(source, _find_text(inner, how))


def _find_text(source: str, how: Opening) -> Source:
    if source.startswith(HUB_PREFIX):
        return open_hub(source, how.column, how.notify)
    if source not in ("pydoc", "text8", *RECORD_DATASETS):
        return open_path(source, how.column, how.notify)
    if how.column:
        raise no_columns(source)
    if source == "pydoc":
        return open_pydoc()
    if source == "text8":
        return open_text8(how.cache, how.report)
    return open_records_as_text(source, how.cache, how.report)


def _open(source: Source, tokenizer: str | Tokenizer, cache: Path, report: ReportProgress) -> Corpus:
    stats = _load_stats(source, cache, report)
    choice = choose_tokenizer(tokenizer, stats.alphabet)
    key = _digest(json.dumps([stats.sha256, stats.characters, choice.key]))
    folder = cache / "tokens" / f"{re.sub(r'[^a-z0-9]+', '-', choice.key)[:20]}-{key[:24]}"
    try:
        return _load(folder, source)
    except DamagedCache:
        if folder.exists():
            report("rebuilding a damaged cache", 0, 0)
    report("preparing the tokenizer", 0, 0)
    train = takewhile(lambda chunk: chunk[0] == "train", _split_chunks(source, stats))
    made = choice.make(text for _, text in train)
    total = sum(stats.characters.values())
    build_token_cache(
        folder,
        _split_chunks(source, stats),
        made,
        source.name,
        stats.sha256,
        lambda done: report("tokenising", done, total),
    )
    return _load(folder, source)


def _load(folder: Path, source: Source) -> Corpus:
    meta = read_meta(folder)
    try:
        splits, tokens = meta["splits"], open_tokens(folder)
        return Corpus(
            name=source.name,
            tokenizer=tokenizer_from_description(meta["vocabulary"]),
            train=tokens["train"],
            valid=tokens["valid"],
            test=tokens["test"],
            sha256=meta["source"]["sha256"],
            characters={split: counts["characters"] for split, counts in splits.items()},
            bytes={split: counts["bytes"] for split, counts in splits.items()},
            folder=folder,
            column=source.column,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedCache(f"{folder}: {error!r}") from error


def _load_stats(source: Source, cache: Path, report: ReportProgress) -> TextStats:
    """The statistics of a source, cached for as long as its stamp stays the same."""
    if source.stats is not None:
        return source.stats
    path = cache / "surveys" / f"{_digest(f'{VERSION} {source.stamp}')[:24]}.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return TextStats(known["sha256"], known["alphabet"], known["characters"])
    except (OSError, ValueError, TypeError, KeyError):
        stats = _compute_stats(source, report)
        write_atomic(path, json.dumps(asdict(stats)).encode())
        return stats


def _compute_stats(source: Source, report: ReportProgress) -> TextStats:
    digest, alphabet, done = hashlib.sha256(), "", 0
    characters = dict.fromkeys(source.texts, 0)
    for split, text in source.texts.items():
        for chunk in _rechunk(text()):
            digest.update(chunk.encode())
            alphabet = merge_alphabet(chunk, alphabet)
            characters[split] += len(chunk)
            done += len(chunk)
            report("reading", done, 0)
    if not characters["train"]:
        raise UserError(f"{source.name} is empty; give a source that has text in it.")
    return TextStats(digest.hexdigest(), alphabet, characters)


def _split_chunks(source: Source, stats: TextStats) -> Iterator[tuple[str, str]]:
    """The whole text in chunks, each with its split; splits the source lacks are cut from the end of train."""
    missing = [split for split in ("valid", "test") if split not in source.texts]
    held_out = stats.characters["train"] * HELD_OUT // 100
    for split, text in source.texts.items():
        sizes = [(split, stats.characters[split])]
        if split == "train":
            kept = stats.characters["train"] - held_out * len(missing)
            sizes = [("train", kept), *((other, held_out) for other in missing)]
        yield from _assign_splits(_rechunk(text()), sizes, source.name)


def _assign_splits(chunks: Iterable[str], sizes: list[tuple[str, int]], name: str) -> Iterator[tuple[str, str]]:
    """Chunks assigned to consecutive splits of these numbers of characters."""
    changed = UserError(f"{name} changed while it was being read; try again when it is complete.")
    pending = iter(sizes)
    split, left = next(pending)
    for chunk in chunks:
        while len(chunk) > left:
            yield split, chunk[:left]
            chunk = chunk[left:]
            following = next(pending, None)
            if following is None:
                raise changed
            split, left = following
        left -= len(chunk)
        yield split, chunk
    if left or any(size for _, size in pending):
        raise changed


def _rechunk(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in chunks of nearly equal length, cut before a space where there is one.

    Words stay whole, and the tokens do not depend on the sizes of the pieces that a reader returns.
    """
    text = ""
    for piece in pieces:
        text += piece
        start = 0
        while len(text) - start >= CHUNK:
            space = text.rfind(" ", start + 1, start + CHUNK)
            end = space if space > 0 else start + CHUNK
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ignore_progress(stage: str, done: int, total: int) -> None:
    pass
