"""Constraints on the length: texts with a given number of tokens, and texts longer than the model.

Short sequences are padded with an end token, which is trained on like any other token (data/corpus.py). So a length
is a set of known positions: p(text | x_i = end for i ≥ n), with x_i ≠ end for i < n. Each position is sampled
conditioned on not being the end token. This is exact where lengths and words are independent, else approximate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.sampling.generate import Generation
from logosphere.types import Bool, Int64, Logits, State, Times, Where

EXCLUDED = -1e4
"""A logit of probability 0. It is finite, so that differences of logits exist."""


class SuppressEOS(Wrapper):
    """Excludes the end token at the first `length` positions."""

    def __init__(self, inner: Denoiser, end: int, length: int, vocab_size: int):
        super().__init__(inner)
        self.end, self.length, self.vocab_size = end, length, vocab_size

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        if out.shape[-1] != self.vocab_size:
            raise UserError(
                "This model does not predict tokens, so the end token cannot be excluded; leave out length."
            )
        before = (torch.arange(t.shape[1], device=t.device) < self.length).expand(t.shape)
        before = before if where is None else before[where]
        ends = torch.arange(out.shape[-1], device=out.device) == self.end
        return torch.where(before[..., None] & ends, EXCLUDED, out)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return SuppressEOS(inner, self.end, self.length, self.vocab_size)


@dataclass(frozen=True)
class LengthConstraint:
    """Arguments of `generate` for texts of a given length."""

    denoiser: Denoiser
    known: Bool[Tensor, "... L"]
    tokens: Int64[Tensor, "... L"]


def with_length(
    model: Model,
    end: int,
    length: int,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
) -> LengthConstraint:
    """Texts of exactly `length` tokens before the end token, with other known positions as well."""
    if model.denoiser is None:
        raise UserError("This model has no denoiser; build it with one.")
    if not 1 <= length <= model.length:
        raise UserError(f"The length of a text must be from 1 to {model.length} tokens, not {length}.")
    if known is None or tokens is None:
        known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)
    after = torch.arange(model.length, device=known.device) >= length
    if bool((known & after & (tokens != end)).any()):
        raise UserError(f"There are known tokens after the requested length of {length} tokens; request a longer text.")
    if bool((known & ~after & (tokens == end)).any()):
        raise UserError(f"There is a known end token before the requested length of {length}; request a shorter text.")
    process = model.process
    if length < model.length and not model.can_see(known | after):
        reason = "samples from left to right" if process.codec.local else "has states of whole sequences"
        raise UserError(f"This model {reason} and cannot be conditioned on the end of a text; leave out the length.")
    if process.predicts_ratios and process.guides_transitions:
        raise UserError("This model predicts ratios to the current token, which may be an end token; use udlm.")
    denoiser = SuppressEOS(model.denoiser, end, length, model.vocab_size)
    return LengthConstraint(denoiser, known | after, torch.where(after, end, tokens))


GenerateWindow = Callable[[Bool[Tensor, "... L"] | None, Int64[Tensor, "... L"] | None], Generation]
"""(known positions, their tokens) -> one window."""


def generate_long(
    generate_window: GenerateWindow,
    *,
    window: int,
    length: int,
    overlap: int,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
) -> Generation:
    """Texts of `length` tokens from windows that overlap; `known` and `tokens` belong to the first window.

    The end of a window is the known start of the next (Sahoo et al. 2024, MDLM, section 4.2: semi-autoregressive
    generation), for every system and sampler that accepts a prompt. Within one window the distribution is that of the
    model; beyond it, tokens are conditioned on at least `overlap` tokens before them.
    """
    if length < 1:
        raise UserError(f"The length must be at least 1, not {length}.")
    if not 0 <= overlap < window:
        raise UserError(f"The overlap of windows of {window} tokens must be from 0 to {window - 1}, not {overlap}.")
    drawn = generate_window(known, tokens)
    text, nfe, seconds = drawn.tokens, drawn.nfe, drawn.seconds
    start = torch.arange(window, device=text.device).expand(len(text), -1) < overlap
    while text.shape[1] < length:
        end = text[:, text.shape[1] - overlap :]
        drawn = generate_window(start, torch.nn.functional.pad(end, (0, window - overlap)))
        text = torch.cat([text, drawn.tokens[:, overlap:]], 1)
        nfe, seconds = nfe + drawn.nfe, seconds + drawn.seconds
    return Generation(text[:, :length], nfe, seconds)
