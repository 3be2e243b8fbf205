"""The zero-shot sets of papers on discrete diffusion: texts that no model here is trained on, detokenised.

    zero-shot:NAME=PATH    a file or folder in the set's own format: one document per line of plain text, or per row of
                           a table (.csv, .tsv, .jsonl, .parquet), whose column is the set's own unless it is named
    zero-shot:NAME         the same from the dataset hub (extra 'data')

A set is one row of tokens: its documents after the rules of data/detokenize.py, each followed by the EOS of the
tokenizer, or by a line break where it has none. Documents without text are dropped.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from logosphere.data.columns import check_cell, check_column
from logosphere.data.compressed import plain_suffix
from logosphere.data.corpus import Corpus
from logosphere.data.detokenize import (
    Detokenizer,
    detokenize_lambada,
    detokenize_lm1b,
    detokenize_papers,
    detokenize_ptb,
    detokenize_wikitext,
    keep_text,
)
from logosphere.data.readers import SUFFIXES, TABLES, is_table, read_files
from logosphere.data.tokenizers import TokenIds, Tokenizer, WithEOS, encode_utf8
from logosphere.data.wrapping import find_wrapping
from logosphere.errors import UserError, import_optional, suggest

PREFIX = "zero-shot:"
PUBLISHED_BY = "Sahoo et al. 2024, perplexity of models of OpenWebText"


@dataclass(frozen=True)
class ZeroShotSet:
    """A set: its rules, where it is on the hub, and what was published for it."""

    detokenize: Detokenizer
    column: str
    hub: str
    """owner/name[:config]"""
    split: str
    mdlm: float
    """Perplexity of MDLM, at most."""
    ar: float
    """Perplexity of the autoregressive model beside it."""
    line_end: str = ""
    """What rows of the hub have after the text of a line."""


ZERO_SHOT: dict[str, ZeroShotSet] = {
    "wikitext": ZeroShotSet(detokenize_wikitext, "text", "wikitext:wikitext-103-v1", "test", 32.8, 25.8, "\n"),
    "ptb": ZeroShotSet(detokenize_ptb, "sentence", "ptb_text_only", "test", 95.3, 82.1),
    "lm1b": ZeroShotSet(detokenize_lm1b, "text", "lm1b", "test", 67.0, 51.3),
    "lambada": ZeroShotSet(detokenize_lambada, "text", "EleutherAI/lambada_openai:default", "test", 47.5, 51.3),
    "ag_news": ZeroShotSet(keep_text, "text", "ag_news", "test", 61.2, 52.1),
    "pubmed": ZeroShotSet(detokenize_papers, "article", "scientific_papers:pubmed", "test", 41.9, 49.0),
    "arxiv": ZeroShotSet(detokenize_papers, "article", "scientific_papers:arxiv", "test", 37.4, 41.7),
}


def is_zero_shot(source: str) -> bool:
    """Whether a source names one of these sets."""
    return source.startswith(PREFIX)


def split_source(source: str) -> tuple[str, str]:
    """The name of a set, and the path of its file (empty for the hub)."""
    name, _, path = source.removeprefix(PREFIX).partition("=")
    if name not in ZERO_SHOT:
        raise UserError(f"There is no zero-shot set '{name}'.{suggest(name, ZERO_SHOT)}")
    return name, path


def describe_published(source: str) -> dict[str, float | str]:
    """The figures that were published for the set of a source."""
    chosen = ZERO_SHOT[split_source(source)[0]]
    return {"mdlm": chosen.mdlm, "ar": chosen.ar, "source": PUBLISHED_BY}


def open_zero_shot(source: str, tokenizer: str | Tokenizer, column: str = "") -> Corpus:
    """A set in the tokens of a model; it is the test split, and there is nothing to train on."""
    name, path = split_source(source)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(
            f"zero-shot:{name} is a set to measure trained models on, with logosphere evaluate RUN --data {source}; "
            "train on another text."
        )
    chosen = ZERO_SHOT[name]
    raw = (
        _read_path(path, column or chosen.column, chosen.line_end)
        if path
        else _read_hub(chosen, column or chosen.column)
    )
    documents = [chosen.detokenize(document) for document in raw if document.strip()]
    if not documents:
        raise UserError(f"{source} has no documents; give the file of the set.")
    test = _join(documents, tokenizer)
    empty = test[:0]
    sizes = {"train": 0, "valid": 0}
    digest = hashlib.sha256("\0".join(documents).encode("utf-8", "surrogatepass")).hexdigest()
    return Corpus(
        f"zero-shot:{name}", tokenizer, empty, empty, test, digest,
        sizes | {"test": sum(map(len, documents))},
        sizes | {"test": sum(len(encode_utf8(document)) for document in documents)},
        folder=None, column=column,
    )  # fmt: skip


def _join(documents: Iterable[str], tokenizer: Tokenizer) -> TokenIds:
    wrapping = find_wrapping(tokenizer)
    inner = tokenizer.inner if isinstance(tokenizer, WithEOS) else tokenizer
    if wrapping is None:
        return np.asarray(inner.encode("\n".join(documents)), dtype=np.int64)
    parts = [np.append(np.asarray(inner.encode(document), dtype=np.int64), wrapping.eos) for document in documents]
    return np.concatenate(parts)


def _read_path(name: str, column: str, line_end: str) -> Iterator[str]:
    """The documents of a file, or of all readable files of a folder."""
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"There is no file or folder {path}; write zero-shot:NAME=PATH.")
    paths = sorted(one for one in path.rglob("*") if plain_suffix(one) in SUFFIXES) if path.is_dir() else [path]
    for one in paths:
        try:
            if is_table(one):
                yield from TABLES[plain_suffix(one)].read(one, column)
            else:
                yield from (line + line_end for line in "".join(read_files([one])).split("\n"))
        except OSError as problem:
            raise UserError(f"{one} cannot be read ({problem.strerror or problem}).") from None


def _read_hub(chosen: ZeroShotSet, column: str) -> Iterator[str]:
    library = import_optional("datasets")
    name, _, config = chosen.hub.partition(":")
    load: Callable[..., Iterable[dict[str, object]]] = library.load_dataset
    try:
        rows = load(name, config or None, split=chosen.split)
    except Exception as error:  # the library passes on errors of files and of the network, of any class
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{chosen.hub} cannot be loaded from the hub ({reason}); give a file: zero-shot:NAME=PATH."
        ) from error
    for number, row in enumerate(rows, start=1):
        check_column(list(row), chosen.hub, column)
        yield check_cell(row[column], f"Row {number} of {chosen.hub}", column)
