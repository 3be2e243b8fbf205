"""One text for runs with different tokenizers, whose bounds are then compared in bits per byte of that text."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from logosphere.data.corpus import Corpus, Examples, StreamedSplit, count_tokens, take_first_tokens
from logosphere.data.tokenizers import Tokenizer, encode_utf8
from logosphere.errors import UserError
from logosphere.runs.run import Run
from logosphere.runs.settings import SEQUENCES, SILENT, Display, EvaluateConfig
from logosphere.runs.train_data import open_run_data


@dataclass(frozen=True)
class CommonText:
    """The beginning of a held-out split, as text that every run reads with its own tokenizer."""

    text: str
    sha256: str
    corpora: Mapping[str, Corpus]
    """By the fingerprint of a tokenizer: a corpus whose measured split is this text."""


def have_different_tokenizers(runs: Sequence[Run]) -> bool:
    """Whether runs must be compared by bits per byte."""
    return len({run.tokenizer.fingerprint for run in runs}) > 1


def check_comparable(runs: list[Run]) -> None:
    """All runs must have the same text, and those with the same tokenizer the same length.

    Of imported models the text is not known.
    """
    first = next((run for run in runs if not run.is_imported), runs[0])
    several = have_different_tokenizers(runs)
    for other in runs:
        one, two = first.content.get("corpus", {}), other.content.get("corpus", {})
        for what, a, b in (
            *([] if other.is_imported else [("text", _describe_text(one), _describe_text(two))]),
            *([] if several else [("length", first.config.length, other.config.length)]),
        ):
            if a != b:
                raise UserError(
                    f"{first.path} and {other.path} differ in {what} ({a} and {b}), so they cannot be compared; "
                    f"train both with the same {what}."
                )


def _describe_text(corpus: dict[str, object]) -> str:
    return f"{corpus.get('name')} {str(corpus.get('sha256'))[:12]}"


def find_common_text(runs: Sequence[Run], measure: EvaluateConfig, display: Display = SILENT) -> CommonText:
    """As much of the split as the run with the least text in its sequences reads.

    A run drops the remainder after its last whole sequence, less than a sequence of its own tokens.
    """
    opened = {run.tokenizer.fingerprint: open_run_data(run, display, measure.data, measure.column) for run in runs}
    first = next(iter(opened.values()))
    for corpus in opened.values():
        part = corpus.split(measure.split)
        if isinstance(part, Examples | StreamedSplit) or corpus.tokenizer.unit == "dimension":
            raise UserError(
                f"{corpus.name} is no running text, so runs with different tokenizers cannot be compared on it; train "
                "them with the same tokenizer, or compare them on a text file with --data."
            )
        if corpus.sha256 != first.sha256:
            raise UserError(f"The runs read different texts as {first.name}; train or measure them on the same text.")
    limit = SEQUENCES if measure.sequences is None else measure.sequences

    def characters(run: Run) -> float:
        corpus = opened[run.tokenizer.fingerprint]
        available = count_tokens(corpus.split(measure.split))
        tokens = min(available, limit * run.config.length) if limit else available
        return tokens * corpus.characters[measure.split] / available

    least = min(runs, key=characters)
    corpus = opened[least.tokenizer.fingerprint]
    part = corpus.split(measure.split)
    text = least.tokenizer.decode(take_first_tokens(part, limit * least.config.length if limit else count_tokens(part)))
    corpora = {key: _with_split(one, measure.split, text) for key, one in opened.items()}
    return CommonText(text, hashlib.sha256(encode_utf8(text)).hexdigest(), corpora)


def _with_split(corpus: Corpus, split: str, text: str) -> Corpus:
    """A corpus with another text in one of its splits."""
    tokens = _encode(corpus.tokenizer, text, corpus.name)
    return replace(
        corpus,
        train=tokens if split == "train" else corpus.train,
        valid=tokens if split == "valid" else corpus.valid,
        test=tokens if split == "test" else corpus.test,
        characters=corpus.characters | {split: len(text)},
        bytes=corpus.bytes | {split: len(encode_utf8(text))},
    )


def _encode(tokenizer: Tokenizer, text: str, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    try:
        return tokenizer.encode(text)
    except UserError as problem:
        raise UserError(f"A tokenizer of the runs cannot read {name}: {problem}") from None
