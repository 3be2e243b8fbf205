"""Datasets of separate examples, by name or from files of the user, as a corpus of three splits."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from logosphere.data.catalogue import CATALOGUE
from logosphere.data.columns import replace_lone_surrogates
from logosphere.data.corpus import Corpus, Examples
from logosphere.data.input_files import check_encoding, check_regular, explain_missing
from logosphere.data.locate import locate
from logosphere.data.promoters import BASES, load_signal_promoters, load_synthetic_promoters
from logosphere.data.prompts import Prompting, check_answer, encode_prompted, find_conversation
from logosphere.data.published import RECORD_DATASETS, Record, Records, hash_records, parse_csv
from logosphere.data.published_integers import (
    PITCHES,
    load_chorales,
    load_cifar10,
    load_digits,
    load_mnist_binary,
    load_sudoku,
)
from logosphere.data.readers import Notify, choose_column, is_table, read_rows
from logosphere.data.sources import ReportProgress
from logosphere.data.tokenizer_registry import TokenizerChoice, choose_tokenizer, load_tokenizer, save_tokenizer
from logosphere.data.tokenizers import CharacterTokenizer, IntegerTokenizer, Tokenizer, WithEOS, merge_alphabet
from logosphere.errors import UserError
from logosphere.untrusted import open_regular

Loaded = TypeVar("Loaded")
INTEGER_DATASETS: dict[str, tuple[int, Callable[[Path, ReportProgress], dict[str, Examples]]]] = {
    "cifar10": (256, load_cifar10),
    "digits": (17, load_digits),
    "mnist-binary": (2, load_mnist_binary),
    "sudoku": (9, load_sudoku),
    "chorales": (PITCHES, load_chorales),
}
"""Datasets of integers: the size of their vocabulary, and the function that loads them."""
SYNTHETIC, PROMOTERS = "synthetic-promoters", "promoters"


def is_dataset(source: str) -> bool:
    """Whether a source names separate examples rather than a running text."""
    kind, separator, _ = source.partition(":")
    named = source in (*RECORD_DATASETS, *INTEGER_DATASETS, SYNTHETIC)
    return named or (bool(separator) and kind in (*FORMATS, PROMOTERS))


def open_dataset(
    source: str,
    tokenizer: str | Tokenizer,
    cache: Path,
    report: ReportProgress,
    notify: Notify,
    column: str = "",
    prompting: Prompting | None = None,
) -> Corpus:
    """A dataset by its name, or lines:FILE, labelled:FILE, pairs:FILE, promoters:FILE.

    Of a table after lines: the text of one `column` is read, as of tables of running text. With `prompting` the source
    of a pair is a prompt at the beginning of its text, rather than a condition of a network that reads it apart.
    """
    report("reading", 0, 0)
    kind, _, name = source.partition(":")
    if source == SYNTHETIC:
        return _make_corpus(source, CharacterTokenizer(BASES), load_synthetic_promoters())
    if source in INTEGER_DATASETS:
        return _open_integers(source, cache, report, notify)
    if source in RECORD_DATASETS:
        records = _load_published(source, RECORD_DATASETS[source], cache, report)
        _compare_texts(source, hash_records(records), notify)
        return _encode_records(source, records, tokenizer, cache, prompting)
    if not name:
        raise UserError(f"The file after {kind}: is missing; use for example {kind}:FILE.")
    if kind == PROMOTERS:
        return _make_corpus(source, CharacterTokenizer(BASES), load_signal_promoters(Path(name).expanduser()))
    path = Path(name).expanduser()
    check_regular(path)
    if has_column(source):
        if not path.exists():
            raise _explain_missing_file(path)
        chosen = choose_column([path], column, notify)
        rows = [Record(" ".join(text.split())) for text in read_rows(path, chosen) if text.strip()]
        corpus = _encode_records(path.stem, _split_records(rows, name), tokenizer, cache)
        return replace(corpus, column=chosen)
    read = read_pairs(path, prompting) if kind == PAIRS else FORMATS[kind](path)
    return _encode_records(path.stem, _split_records(read, name), tokenizer, cache, prompting)


def has_column(source: str) -> bool:
    """Whether a source is lines:FILE with a table as the file."""
    kind, separator, name = source.partition(":")
    return bool(separator) and kind == "lines" and is_table(Path(name))


def _open_integers(source: str, cache: Path, report: ReportProgress, notify: Notify) -> Corpus:
    size, load = INTEGER_DATASETS[source]
    splits = _load_published(source, load, cache, report)
    _compare_texts(source, _hash_splits(splits), notify)
    labels = tuple(map(str, range(splits["train"].label_count)))
    integers = IntegerTokenizer(size)
    return _make_corpus(source, integers if splits["train"].eos is None else WithEOS(integers), splits, labels)


def _load_published(
    source: str, load: Callable[[Path, ReportProgress], Loaded], cache: Path, report: ReportProgress
) -> Loaded:
    """A published dataset; raises UserError if the files have another content than published."""
    try:
        return load(cache, report)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, csv.Error) as problem:
        place = locate(source, cache).place
        raise UserError(
            f"The files of {source} are not as published ({problem!r}); delete them and fetch them again: {place}"
        ) from None


def _compare_texts(source: str, sha256: str, notify: Notify) -> None:
    """Tell where the texts are others than those that published results were measured on."""
    if CATALOGUE[source].texts_sha256 not in ("", sha256):
        notify(f"The texts of {source} differ from those that published results were measured on.")


def _split_records(records: list[Record], name: str) -> Records:
    """The records of a file: of every twenty rows the first for validation, the second for the test."""
    if len(records) < 3:
        raise UserError(f"{name} has {len(records)} rows; three splits need more.")
    splits: Records = {"train": [], "valid": [], "test": []}
    for i, record in enumerate(records):
        splits[{0: "valid", 1: "test"}.get(i % 20, "train")].append(record)
    return splits


def _encode_records(
    name: str, records: Records, tokenizer: str | Tokenizer, cache: Path, prompting: Prompting | None = None
) -> Corpus:
    """Records as token ids, by a tokenizer made for all texts and sources of the training split."""
    if prompting is not None and any(row.source is None for rows in records.values() for row in rows):
        raise UserError(f"{name} has no pairs of a prompt and an answer, which the task 'answers' needs.")
    texts = {split: [part for row in rows for part in (row.text, row.source or "")] for split, rows in records.items()}
    alphabet = ""
    for split in texts.values():
        alphabet = merge_alphabet("".join(split), alphabet)
    if isinstance(tokenizer, WithEOS):
        inner = tokenizer.inner
    else:
        inner = _make_tokenizer(choose_tokenizer(tokenizer, alphabet), texts["train"], cache)
    lengths = {len(inner.encode(row.text)) for rows in records.values() for row in rows}
    if prompting is not None:
        lengths = {-1, *lengths}  # with their prompts
    needs_eos = isinstance(tokenizer, WithEOS) or len(lengths) > 1  # sequences of one length need no EOS
    made = WithEOS(inner) if needs_eos else inner
    labels = sorted({row.label for row in records["train"] if row.label is not None})
    splits = {split: _encode_split(rows, made, labels, f"{name} {split}", prompting) for split, rows in records.items()}
    characters = {split: sum(len(row.text) for row in rows) for split, rows in records.items()}
    sizes = {split: sum(len(row.text.encode()) for row in rows) for split, rows in records.items()}
    return _make_corpus(name, made, splits, tuple(labels), characters, sizes)


def _make_tokenizer(choice: TokenizerChoice, texts: list[str], cache: Path) -> Tokenizer:
    """A tokenizer for some texts, cached once trained: training WordPiece again gives another vocabulary."""
    if ":" not in choice.key:
        return choice.make(texts)
    digest = hashlib.sha256("\0".join([choice.key, *texts]).encode())
    path = cache / "tokenizers" / f"{digest.hexdigest()[:24]}.json"
    try:
        return load_tokenizer(path)
    except UserError:  # not made yet, or damaged
        save_tokenizer(choice.make(texts), path)
        return load_tokenizer(path)


def _encode_split(
    rows: list[Record], tokenizer: Tokenizer, labels: list[str], location: str, prompting: Prompting | None
) -> Examples:
    if prompting is not None:
        pairs = [row.source or "" for row in rows], [row.text for row in rows]
        sequences, prompts = encode_prompted(*pairs, tokenizer, prompting)
        return Examples(sequences, eos=tokenizer.eos if isinstance(tokenizer, WithEOS) else None, prompts=prompts)
    label_ids = sources = None
    if labels:
        number = {label: i for i, label in enumerate(labels)}
        if unknown := {row.label for row in rows} - number.keys():
            raise UserError(f"{location} has the label '{min(map(str, unknown))}', which is not in the training split.")
        label_ids = np.array([number[str(row.label)] for row in rows], dtype=np.int64)
    if rows[0].source is not None:
        sources = [tokenizer.encode(row.source or "") for row in rows]
    return Examples(
        [tokenizer.encode(row.text) for row in rows],
        eos=tokenizer.eos if isinstance(tokenizer, WithEOS) else None,
        labels=label_ids,
        label_count=len(labels),
        sources=sources,
        source_size=tokenizer.size if sources is not None else 0,
    )


def _make_corpus(
    name: str,
    tokenizer: Tokenizer,
    splits: dict[str, Examples],
    labels: tuple[str, ...] = (),
    characters: dict[str, int] | None = None,
    sizes: dict[str, int] | None = None,
) -> Corpus:
    """A corpus of examples; a token counts as one character and one byte unless these are given."""
    tokens = {split: part.token_count for split, part in splits.items()}
    return Corpus(
        name=name,
        tokenizer=tokenizer,
        train=splits["train"],
        valid=splits["valid"],
        test=splits["test"],
        sha256=_hash_splits(splits),
        characters=characters or tokens,
        bytes=sizes or tokens,
        folder=None,
        labels=labels,
    )


def _hash_splits(splits: dict[str, Examples]) -> str:
    """The hash of all token ids and signals, so that a changed dataset is noticed."""
    digest = hashlib.sha256()
    for split in sorted(splits):
        for part in (splits[split].sequences, splits[split].sources or ()):
            for row in part:
                digest.update(np.asarray(row, dtype=np.int64).tobytes() + b"/")
        if (signals := splits[split].signals) is not None:
            digest.update(signals.tobytes())
    return digest.hexdigest()


def read_lines(path: Path) -> list[Record]:
    """One text per line; blank lines are dropped."""
    return [Record(line.strip()) for line in _read_text(path).split("\n") if line.strip()]


def read_labelled(path: Path) -> list[Record]:
    """Texts in the field `text` with a `label` each, from .jsonl, .csv or .tsv."""
    return [Record(row("text"), label=row("label")) for row in _read_rows(path)]


def read_pairs(path: Path, prompting: Prompting | None = None) -> list[Record]:
    """Texts in the field `target` (or `text`) with a `source` each, from .jsonl, .csv or .tsv.

    With `prompting` they are answers, which must not be empty, and a row may be a conversation: {"messages": […]}.
    """
    if prompting is None:
        return [Record(row("target", "text"), source=row("source")) for row in _read_rows(path)]
    located = [(f"Row {number} of {path}", row) for number, row in enumerate(_read_table(path), start=1)]
    found = [find_conversation(row, location, prompting) for location, row in located]
    conversations = [messages for messages in found if messages is not None]
    rendered = iter(prompting.render(conversations) if prompting.render is not None else [])
    records = []
    for (location, row), messages in zip(located, found, strict=True):
        read = _field_getter(row, location)
        prompt, answer = (read("source"), read("target", "text")) if messages is None else next(rendered)
        records.append(Record(check_answer(answer, location), source=prompt))
    return records


PAIRS = "pairs"
FORMATS: dict[str, Callable[[Path], list[Record]]] = {
    "lines": read_lines,
    "labelled": read_labelled,
    PAIRS: read_pairs,
}
"""lines:FILE, labelled:FILE, pairs:FILE"""
GetField = Callable[..., str]
"""From the names that a field may have to its text."""


def _read_rows(path: Path) -> Iterable[GetField]:
    """The rows of a table, as functions that read their fields."""
    for number, row in enumerate(_read_table(path), start=1):
        yield _field_getter(row, f"Row {number} of {path}")


def _read_table(path: Path) -> list[Any]:
    """The rows of a table."""
    try:
        match path.suffix.lower():
            case ".jsonl":
                rows: list[Any] = [json.loads(line) for line in _read_text(path).split("\n") if line.strip()]
            case ".csv" | ".tsv" as suffix:
                rows = parse_csv(_read_text(path), "\t" if suffix == ".tsv" else ",")
            case _:
                raise UserError(f"{path} must be a .jsonl, .csv or .tsv file with a name for each field.")
    except (csv.Error, ValueError, RecursionError) as problem:
        raise UserError(f"{path} cannot be read as a table ({problem}); correct it.") from None
    return list(rows)


def _field_getter(row: Any, location: str) -> GetField:
    def read(*names: str) -> str:
        for name in names:
            if isinstance(row, dict) and isinstance(row.get(name), str | int):
                return replace_lone_surrogates(str(row[name]))
        raise UserError(f"{location} has no field '{names[0]}'; every row needs one.")

    return read


def _explain_missing_file(path: Path) -> UserError:
    return UserError(explain_missing(str(path)) or f"There is no file {path}.")


def _read_text(path: Path) -> str:
    try:
        check_encoding(path)
        with open_regular(path) as file:
            return file.read().decode("utf-8-sig")
    except FileNotFoundError:
        raise _explain_missing_file(path) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} cannot be read as UTF-8 text ({problem}).") from None
