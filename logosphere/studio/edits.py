"""Edits of a text: what is typed replaces a word, and is tokenised like any other text.

A word may be a part of a token (" cat,") or several tokens. The tokens that hold the word are replaced by those of the
new word with what surrounds it in the first and the last of them, so that all other tokens stay what they are.
"""

import os
import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from logosphere.data.tokenizers import Tokenizer, WithEOS
from logosphere.errors import UserError
from logosphere.studio.requests import MAX_PROMPT, MAX_TOKENS

OPEN = -1
"""A position without a token."""
MAX_WORD = 40
"""Characters of a word; in texts without spaces, such as DNA, a single token is replaced instead."""
_PARTS = re.compile(r"\w[\w'’-]*|[^\w\s]+|\s+")


@dataclass(frozen=True)
class EditRequest:
    """A text typed at a position of a row of tokens; without a text the word there is looked up."""

    tokens: tuple[int, ...]
    at: int
    text: str = ""

    @staticmethod
    def parse(content: Any, size: int) -> "EditRequest":
        """Check the JSON content of a request to a model with a vocabulary of this size."""
        if not isinstance(content, dict) or not {"tokens", "at"} <= content.keys() <= {"tokens", "at", "text"}:
            raise UserError("An edit is an object with the fields tokens and at, and text if there is one.")
        tokens, at, text = content["tokens"], content["at"], content.get("text", "")
        if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_TOKENS:
            raise UserError(f"The field tokens must be a list of 1 to {MAX_TOKENS} tokens.")
        if not all(type(token) is int and OPEN <= token < size for token in tokens):
            raise UserError(f"Tokens must be numbers from 0 to {size - 1}, or {OPEN} for an open position.")
        if type(at) is not int or not 0 <= at < len(tokens):
            raise UserError(f"The field at must be a whole number from 0 to {len(tokens) - 1}.")
        if not isinstance(text, str) or len(text) > MAX_PROMPT:
            raise UserError(f"The field text must be a text of at most {MAX_PROMPT} characters.")
        return EditRequest(tuple(tokens), at, text)


@dataclass(frozen=True)
class Word:
    """A word: the positions of its tokens, and the text in them before and after it."""

    start: int
    stop: int
    text: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Edit:
    """What is shown at a position, and the tokens that `removed` tokens from position `at` on give way to."""

    at: int
    removed: int
    word: str
    tokens: list[int]
    symbols: list[str]
    before: str = ""
    after: str = ""
    """What surrounds the word in the first and the last token that give way."""


def edit_text(request: EditRequest, tokenizer: Tokenizer) -> Edit:
    """Replace the word at a position by a text; without a text only look the word up."""
    word = find_word(request.tokens, request.at, tokenizer)
    if not request.text:
        return Edit(word.start, word.stop - word.start, word.text, [], [], word.before, word.after)
    ids = tokenizer.encode(word.before + _separate(request, word, tokenizer) + request.text + word.after).tolist()
    if len(ids) > len(request.tokens) - word.start:
        raise UserError(f"What you typed has {len(ids)} tokens, which do not fit into the text; shorten it.")
    removed = word.stop - word.start
    if request.tokens[request.at] == OPEN:  # typed text fills open positions before it moves the rest
        removed = min(len(ids), removed)
    return Edit(word.start, removed, word.text, ids, [tokenizer.symbol(id) for id in ids])


def find_word(tokens: tuple[int, ...], at: int, tokenizer: Tokenizer) -> Word:
    """Find the word that a token belongs to.

    White space stands for the place between two words, an end for the place behind the last one, and an open position
    for all open ones from there on.
    """
    end = tokenizer.eos if isinstance(tokenizer, WithEOS) else None
    if tokens[at] == end:
        return Word(at, at + 1, "")
    start, stop = at, at + 1
    if tokens[at] == OPEN:
        while stop < len(tokens) and tokens[stop] == OPEN:
            stop += 1
        return Word(at, stop, "")
    while start > 0 and at - start < MAX_WORD and tokens[start - 1] not in (OPEN, end):
        start -= 1
    while stop < len(tokens) and stop - at <= MAX_WORD and tokens[stop] not in (OPEN, end):
        stop += 1
    return _find_in(tokens, start, stop, at, tokenizer)


def _find_in(tokens: tuple[int, ...], start: int, stop: int, at: int, tokenizer: Tokenizer) -> Word:
    """Find the word at a position, by where the text of each token between `start` and `stop` ends."""
    text = tokenizer.decode(tokens[start:stop])
    decoded = [tokenizer.decode(tokens[start : i + 1]) for i in range(start, stop)]
    # A character of several tokens belongs to the last of them: before that it is decoded as another one.
    ends = [0, *accumulate((len(os.path.commonprefix([part, text])) for part in decoded), max)]
    first, last = ends[at - start], ends[at - start + 1]
    own = text[first:last]
    inside = first + len(own) - len(own.lstrip())
    if own and not own.strip():
        return Word(at, at + 1, "", own, own)
    for part in _PARTS.finditer(text):
        if part.start() <= inside < part.end() and len(part[0]) <= MAX_WORD:
            low = ends.index(max(end for end in ends if end <= part.start()))
            high = next(i for i in range(1, len(ends)) if ends[i] >= part.end())
            return Word(
                start + low, start + high, part[0], text[ends[low] : part.start()], text[part.end() : ends[high]]
            )
    return Word(at, at + 1, own)


def _separate(request: EditRequest, word: Word, tokenizer: Tokenizer) -> str:
    """The space between a typed word and a word that ends right before it, in texts that have spaces."""
    text = tokenizer.decode([token for token in request.tokens[: word.start] if token != OPEN]) + word.before
    follows = request.tokens[request.at] != OPEN and re.search(r"\s.*\S$", text, re.DOTALL)
    joins = re.match(r"\w", request.text) and not re.match(r"\w", word.text)
    return " " if follows and joins else ""
