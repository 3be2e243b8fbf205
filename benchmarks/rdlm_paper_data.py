"""WikiText-2 with its published splits in the word pieces of BERT, for rdlm_paper.py.

Reads wikitext2.tar.xz (wiki.{train,valid,test}.tokens) and tokenizers.tar.xz (bert-base-uncased-vocab.txt) in
$LOGOSPHERE_DATA. Word pieces do not keep capitals and spaces, so bits per byte count the bytes of the files and not
those of a text that could be restored.
"""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from logosphere.data.archives import read_members
from logosphere.data.corpus import Corpus, IntArray
from logosphere.data.tokenizer_registry import SubwordTokenizer

SPLITS = ("train", "valid", "test")
VOCABULARY = "bert-base-uncased-vocab.txt"
LINES = 4096
"""Lines of text that are tokenised at once."""


def bert_tokenizer(vocabulary: str) -> SubwordTokenizer:
    """Return the tokenizer of bert-base-uncased from its list of word pieces, one a line."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = {piece: number for number, piece in enumerate(vocabulary.splitlines())}
    model = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    model.normalizer = normalizers.BertNormalizer(lowercase=True)
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.decoder = decoders.WordPiece()
    return SubwordTokenizer(model, "bert-base-uncased")


def open_wikitext2() -> Corpus:
    """Return WikiText-2 as one row of word pieces a split."""
    folder = Path(os.environ.get("LOGOSPHERE_DATA", ""))
    archives = [folder / "wikitext2.tar.xz", folder / "tokenizers.tar.xz"]
    for archive in archives:
        if not archive.exists():
            sys.exit(f"There is no {archive.name} in the folder that LOGOSPHERE_DATA names.")
    names = [f"wiki.{split}.tokens" for split in SPLITS]
    files = read_members(archives[0], names)
    tokenizer = bert_tokenizer(read_members(archives[1], [VOCABULARY])[VOCABULARY].decode())
    texts = {split: files[name].decode() for split, name in zip(SPLITS, names, strict=True)}

    def encode(text: str) -> IntArray:
        lines = text.splitlines(keepends=True)
        chunks = ["".join(lines[i : i + LINES]) for i in range(0, len(lines), LINES)]
        return np.concatenate([tokenizer.encode_chunk(chunk).astype(np.int64) for chunk in chunks])

    rows = {split: encode(text) for split, text in texts.items()}
    return Corpus(
        name="wikitext-2",
        tokenizer=tokenizer,
        train=rows["train"],
        valid=rows["valid"],
        test=rows["test"],
        sha256=hashlib.sha256(b"".join(files[name] for name in names)).hexdigest(),
        characters={split: len(text) for split, text in texts.items()},
        bytes={split: len(text.encode()) for split, text in texts.items()},
        folder=None,
    )
