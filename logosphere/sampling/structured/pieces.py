"""The bytes that each token of a vocabulary adds to a text, read from the description of its tokenizer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logosphere.errors import UserError, shorten
from logosphere.types import TextTokenizer

CHECKED = 64
"""Tokens of a row on which the pieces are compared with the texts of the tokenizer."""


@dataclass(frozen=True)
class Pieces:
    """The bytes of every token, empty for those that spell no text, and the token that ends a text."""

    first: tuple[bytes, ...]
    """At the beginning of a text."""
    later: tuple[bytes, ...]
    """After other tokens; some tokenizers put a space before a word there."""
    end: int | None

    @property
    def bytes_used(self) -> frozenset[int]:
        return frozenset(byte for piece in (*self.first, *self.later) for byte in piece)


def read_pieces(tokenizer: TextTokenizer, end: int | None = None, size: int | None = None) -> Pieces:
    """The pieces of a tokenizer; `end` ends a text where the tokenizer names no such token, and `size` is that of the
    model."""
    description, size = tokenizer.describe(), tokenizer.size if size is None else size
    if description.get("kind") == "ended":
        description, end = description["inner"], tokenizer.eos
    kind = description.get("kind")
    if kind == "characters":
        first = later = [character.encode("utf-8", "ignore") for character in description["alphabet"]]
    elif kind == "bytes":
        first = later = [bytes([byte]) for byte in range(256)]
    elif kind == "subwords":
        first, later = _read_subwords(tokenizer, json.loads(description["json"]), size)
    else:
        raise UserError(
            "The tokens of this model are numbers that spell no text, so a regular expression or a schema has nothing "
            "to match; leave it out."
        )
    first, later = ([*found, *[b""] * size][:size] for found in (first, later))
    if end is not None:
        first[end] = later[end] = b""
    return Pieces(tuple(first), tuple(later), end)


def _read_subwords(tokenizer: TextTokenizer, content: Mapping[str, Any], size: int) -> tuple[list[bytes], list[bytes]]:
    """The pieces of a tokenizer.json: byte-level ones from its vocabulary, others from what it decodes."""
    names = _token_names(content, size)
    added = {token["id"]: token for token in content.get("added_tokens") or []}
    if "ByteLevel" in _decoder_types(content.get("decoder")):
        spelled = _byte_letters()
        later = [
            names[id].encode()
            if id in added
            else bytes(spelled[letter] for letter in names[id])
            if id in names and all(letter in spelled for letter in names[id])
            else b""
            for id in range(size)
        ]
        first = later
    else:
        first, later = _decoded_pieces(tokenizer, names, size)
    silent = {id for id, token in added.items() if token.get("special")}
    silent |= {id for id, name in names.items() if name == (content["model"].get("unk_token") or "")}
    first, later = ([b"" if id in silent else piece for id, piece in enumerate(found)] for found in (first, later))
    _check(tokenizer, first, later)
    return first, later


def _token_names(content: Mapping[str, Any], size: int) -> dict[int, str]:
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # of Unigram: pairs of a token and its score
        names = {id: str(entry[0]) for id, entry in enumerate(vocabulary)}
    else:
        names = {int(id): str(name) for name, id in vocabulary.items()}
    names |= {int(token["id"]): str(token["content"]) for token in content.get("added_tokens") or []}
    return {id: name for id, name in names.items() if id < size}


def _decoder_types(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    inner = [_decoder_types(part) for part in decoder.get("decoders", [])]
    return {str(decoder.get("type"))}.union(*inner)


def _byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in byte-level vocabularies (Radford et al. 2019, GPT-2).

    Printable bytes of Latin-1 stand for themselves, and the n-th of the others is the letter 256 + n.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _decoded_pieces(tokenizer: TextTokenizer, names: Mapping[int, str], size: int) -> tuple[list[bytes], list[bytes]]:
    """What a token alone spells, and what it adds after another token."""
    anchor = next((id for id, name in names.items() if name.strip("▁#").isalpha() and tokenizer.decode([id])), None)
    if anchor is None:
        raise UserError("The tokens of this model spell no words, so a regular expression has nothing to match.")
    before = tokenizer.decode([anchor])
    first, later = [b""] * size, [b""] * size
    for id, name in names.items():
        if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):
            first[id] = later[id] = bytes([int(byte[1], 16)])
            continue
        both = tokenizer.decode([anchor, id])
        if both.startswith(before):
            first[id], later[id] = tokenizer.decode([id]).encode(), both[len(before) :].encode()
    return first, later


def _check(tokenizer: TextTokenizer, first: list[bytes], later: list[bytes]) -> None:
    """Raise UserError for a tokenizer whose texts are not made of its pieces one after another."""
    usable = [id for id in range(len(first)) if first[id] and later[id]]
    for offset in range(0, min(len(usable), 8)):
        row = usable[offset :: max(1, len(usable) // CHECKED)][:CHECKED]
        spelled = first[row[0]] + b"".join(later[id] for id in row[1:])
        if spelled.decode("utf-8", "replace") != tokenizer.decode(row):
            raise UserError(
                "The texts of this model's tokenizer are not its tokens one after another "
                f"({shorten(tokenizer.decode(row))}), so they cannot be matched token by token."
            )
    if not usable:
        raise UserError("The tokens of this model spell no text, so a regular expression has nothing to match.")
