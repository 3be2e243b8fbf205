"""Texts longer than a model: write a window, keep its end as the given start of the next, and so on.

(Sahoo et al. 2024, MDLM, section 4.2: semi-autoregressive generation.) Any system and any sampler will do that can take
a prompt. Within one window the law is that of the model; beyond it, tokens see at least `overlap` tokens before them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.sampling.generate import Generation
from logosphere.types import Bool, Int64

Write = Callable[[Bool[Tensor, "... L"] | None, Int64[Tensor, "... L"] | None], Generation]
"""(which positions are known, what they are) -> one window."""


def slide(
    write: Write,
    *,
    window: int,
    length: int,
    overlap: int,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
) -> Generation:
    """Texts of `length` tokens from windows that share `overlap`; `known` and `tokens` belong to the first window."""
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if not 0 <= overlap < window:
        raise UserError(f"Windows of {window} tokens can share from 0 to {window - 1} of them, not {overlap}.")
    drawn = write(known, tokens)
    text, nfe, seconds = drawn.tokens, drawn.nfe, drawn.seconds
    start = torch.arange(window, device=text.device).expand(len(text), -1) < overlap
    while text.shape[1] < length:
        end = text[:, text.shape[1] - overlap :]
        drawn = write(start, torch.nn.functional.pad(end, (0, window - overlap)))
        text = torch.cat([text, drawn.tokens[:, overlap:]], 1)
        nfe, seconds = nfe + drawn.nfe, seconds + drawn.seconds
    return Generation(text[:, :length], nfe, seconds)
