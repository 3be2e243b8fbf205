"""logosphere data"""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from logosphere.cli.console import corpus_with_progress, parse, print_json
from logosphere.errors import UserError


@dataclass(frozen=True)
class Arguments:
    """List corpora, or fetch one now so that training needs no network."""

    action: Annotated[Literal["list", "get"], tyro.conf.Positional] = "list"
    """list or get"""
    name: Annotated[str, tyro.conf.Positional] = ""
    """With get: a corpus by name, a file or folder, or hf:owner/name."""
    tokenizer: str = "auto"
    """auto, text8, characters, byte, bpe:SIZE, wordpiece:SIZE, or a tokenizer.json."""
    json: bool = False
    """Print as JSON."""


def run(words: list[str]) -> int:
    arguments = parse(Arguments, words, "data")

    from logosphere.data.descriptions import CORPORA, DATASETS

    if arguments.action == "list":
        if arguments.json:
            print_json({"corpora": CORPORA | DATASETS})
        else:
            known = CORPORA | DATASETS
            print("\n".join(f"{name:<{max(map(len, known))}}  {line}" for name, line in known.items()))
        return 0
    if not arguments.name:
        raise UserError("Say which corpus to fetch, for example: logosphere data get text8")

    from logosphere.data.splits import count_tokens

    corpus = corpus_with_progress(arguments.name, arguments.tokenizer)
    sizes = {split: count_tokens(getattr(corpus, split)) for split in ("train", "valid", "test")}
    if arguments.json:
        print_json({"name": corpus.name, "tokens": sizes, "vocabulary": corpus.tokenizer.size, "sha256": corpus.sha256})
    else:
        counts = ", ".join(f"{split} {size:,}" for split, size in sizes.items())
        print(f"{corpus.name}: {corpus.tokenizer.size} symbols; tokens: {counts}")
    return 0
