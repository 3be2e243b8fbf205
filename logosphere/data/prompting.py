"""Prompts: known tokens at the start, or around gaps ('the [....] of' leaves four positions open)."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logosphere.errors import UserError

if TYPE_CHECKING:
    import torch

    from logosphere.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """Known tokens [L] and a mask of their positions [L]; the other positions are generated."""

    tokens: "torch.Tensor"
    known: "torch.Tensor"


def encode_prompt(text: str, tokenizer: "Tokenizer", length: int) -> Prompt:
    """A text at the start of the sequence; all positions after it are open."""
    tokens = tokenizer.encode(text).tolist()
    if len(tokens) >= length:
        raise UserError(f"The prompt has {len(tokens)} tokens, but this model writes {length} in all; shorten it.")
    return _pad(tokens, [True] * len(tokens), length)


def encode_infill(text: str, tokenizer: "Tokenizer", length: int) -> Prompt:
    """A text with gaps such as [....] or [12]; positions after it are open as well."""
    tokens: list[int] = []
    known: list[bool] = []
    for part in re.split(r"(\[\.+\]|\[[0-9]{1,6}\])", text):
        gap = _gap_length(part)
        encoded = tokenizer.encode(part).tolist() if gap is None else [0] * gap
        tokens += encoded
        known += [gap is None] * len(encoded)
    if len(tokens) > length:
        raise UserError(f"The text has {len(tokens)} tokens, but this model writes {length}; shorten it.")
    if len(tokens) == length and all(known):
        raise UserError("The text leaves nothing to write; shorten it or open a gap like [....].")
    return _pad(tokens, known, length)


def _gap_length(part: str) -> int | None:
    """The number of positions that '[....]' or '[12]' leaves open; None for plain text."""
    if re.fullmatch(r"\[\.+\]", part):
        return len(part) - 2
    return int(part[1:-1]) if re.fullmatch(r"\[[0-9]{1,6}\]", part) else None


def _pad(tokens: list[int], known: list[bool], length: int) -> Prompt:
    import torch

    rest = length - len(tokens)
    return Prompt(torch.tensor(tokens + [0] * rest), torch.tensor(known + [False] * rest))
