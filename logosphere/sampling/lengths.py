"""Texts of a wanted length, by models whose texts end: the end is known from there on and kept away before.

Short sequences are filled up with an end token, which is learnt like any other (data/datasets/examples.py). So a
length is a matter of known positions: p(text | x_i = end for i ≥ n), with x_i ≠ end for i < n. Each position is drawn
given that it is not the end itself, which is exact where lengths and words are independent, and close to it elsewhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.types import Bool, Int64, Logits, Positions, State, Times

NEVER = -1e4
"""A logit that is never drawn, and of which differences can be taken."""


class Unended(Wrapper):
    """Does not say `end` at the first `length` positions."""

    def __init__(self, inner: Denoiser, end: int, length: int, vocab_size: int):
        super().__init__(inner)
        self.end, self.length, self.vocab_size = end, length, vocab_size

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where)
        if out.shape[-1] != self.vocab_size:
            raise UserError("This model does not answer with tokens, so no end can be kept away; leave out the length.")
        before = (torch.arange(t.shape[1], device=t.device) < self.length).expand(t.shape)
        before = before if where is None else before[where]
        ends = torch.arange(out.shape[-1], device=out.device) == self.end
        return torch.where(before[..., None] & ends, NEVER, out)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Unended(inner, self.end, self.length, self.vocab_size)


@dataclass(frozen=True)
class OfLength:
    """What to pass to a sampler so that texts have a wanted length."""

    denoiser: Denoiser
    known: Bool[Tensor, "... L"]
    tokens: Int64[Tensor, "... L"]


def of_length(
    model: Model,
    end: int,
    length: int,
    known: Bool[Tensor, "... L"] | None = None,
    tokens: Int64[Tensor, "... L"] | None = None,
) -> OfLength:
    """Texts of exactly `length` tokens before their end, around what is known already."""
    if model.denoiser is None:
        raise UserError("This model has no denoiser: build it with one.")
    if not 1 <= length <= model.length:
        raise UserError(f"This model writes texts that end, of 1 to {model.length} tokens, not {length}.")
    if known is None or tokens is None:
        known, tokens = torch.zeros(model.length, dtype=torch.bool), torch.zeros(model.length, dtype=torch.long)
    behind = torch.arange(model.length, device=known.device) >= length
    if bool((known & behind & (tokens != end)).any()):
        raise UserError(f"Known tokens stand behind the wanted end of {length} tokens; ask for a longer text.")
    if bool((known & ~behind & (tokens == end)).any()):
        raise UserError(f"A known end stands before the wanted length of {length} tokens; ask for a shorter text.")
    process = model.process
    if length < model.length and not model.can_see(known | behind):
        reason = "writes from left to right" if process.codec.local else "has states of whole sequences"
        raise UserError(f"This model {reason} and cannot be told where a text is to end; leave out the length.")
    discrete = process if isinstance(process, DiscreteDiffusion) else None
    if discrete is not None and not discrete.parameterization.normalised and discrete.mixing.has_uniform:
        raise UserError("This model answers with ratios to the token that is there, which may be an end; use udlm.")
    denoiser = Unended(model.denoiser, end, length, model.vocab_size)
    return OfLength(denoiser, known | behind, torch.where(behind, end, tokens))
