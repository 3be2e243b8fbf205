"""Texts that are given in part: a prompt, or a text with gaps ('the [....] of' leaves four positions open)."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logosphere.errors import UserError

if TYPE_CHECKING:
    import torch

    from logosphere.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Given:
    """Known tokens and where they are; the rest is open."""

    tokens: "torch.Tensor"
    known: "torch.Tensor"


def prompt(text: str, tokenizer: "Tokenizer", length: int) -> Given:
    """A text to begin with; everything after it is open."""
    tokens = tokenizer.encode(text).tolist()
    if len(tokens) >= length:
        raise UserError(f"The prompt has {len(tokens)} tokens, but this model writes {length} in all; shorten it.")
    return _padded(tokens, [True] * len(tokens), length)


def parse_gaps(text: str, tokenizer: "Tokenizer", length: int) -> Given:
    """Known parts and gaps of a text; what is left of the length after it is open as well."""
    tokens: list[int] = []
    known: list[bool] = []
    for part in re.split(r"(\[\.+\]|\[[0-9]{1,6}\])", text):
        gap = _gap(part)
        encoded = tokenizer.encode(part).tolist() if gap is None else [0] * gap
        tokens += encoded
        known += [gap is None] * len(encoded)
    if len(tokens) > length:
        raise UserError(f"The text has {len(tokens)} tokens, but this model writes {length}; shorten it.")
    if len(tokens) == length and all(known):
        raise UserError("The text leaves nothing to write; shorten it or open a gap like [....].")
    return _padded(tokens, known, length)


def _gap(part: str) -> int | None:
    """How many positions '[....]' or '[12]' leaves open; None for plain text."""
    if re.fullmatch(r"\[\.+\]", part):
        return len(part) - 2
    return int(part[1:-1]) if re.fullmatch(r"\[[0-9]{1,6}\]", part) else None


def _padded(tokens: list[int], known: list[bool], length: int) -> Given:
    import torch

    rest = length - len(tokens)
    return Given(torch.tensor(tokens + [0] * rest), torch.tensor(known + [False] * rest))
