"""How much of the samples is copied from the training text."""

import torch

from logosphere.data.special import Ended
from logosphere.evaluation.samples.texts import Figure, Metric, Reference, Texts
from logosphere.evaluation.samples.variety import REPEATED, grams

OVERLAPPING = 4
"""Short runs of tokens that are counted too, as papers on latent diffusion do (Meshchaninov et al. 2025)."""

COPIED = 2 * REPEATED
"""Runs of tokens whose being in the training text is counted."""


def _matches(texts: Texts, reference: Reference) -> torch.Tensor:
    """The longest match with the training text at every position of every sample, [n, L]."""
    rows = [torch.from_numpy(reference.suffixes.longest(row)) for row in texts.tokens.numpy()]
    return torch.stack(rows)


def _overlapping(texts: Texts, reference: Reference) -> Figure:
    """Runs that hold no end of a text: those are copied by every text that ends."""
    tokenizer, matches = reference.tokenizer, _matches(texts, reference)
    runs = grams(texts.tokens, OVERLAPPING)
    counted = torch.ones_like(runs[..., 0], dtype=torch.bool)
    if isinstance(tokenizer, Ended):
        counted = (runs != tokenizer.end).all(-1)
    shared = (matches[:, : runs.shape[1]] >= runs.shape[2]) & counted
    some = counted.any(1)
    return Figure.mean(shared[some].sum(1).double() / counted[some].sum(1))


def _copied(texts: Texts, reference: Reference) -> Figure:
    n = min(COPIED, texts.tokens.shape[1])
    starts = texts.tokens.shape[1] - n + 1
    return Figure.mean((_matches(texts, reference)[:, :starts] >= n).double().mean(1))


def _longest(texts: Texts, reference: Reference) -> Figure:
    return Figure.mean(_matches(texts, reference).amax(1).double())


METRICS = [
    Metric(
        f"overlap-{OVERLAPPING}", f"{OVERLAPPING}-gram overlap", "share", "as real text",
        f"runs of {OVERLAPPING} tokens, without ends, that occur in the training text, averaged over samples",
        _overlapping,
    ),
    Metric(
        "memorised", "memorised", "share", "as real text",
        f"runs of {COPIED} tokens that occur in the training text", _copied,
    ),
    Metric(
        "longest-copy", "longest copy", "tokens", "as real text",
        "longest run of tokens of a sample that occurs in the training text, averaged over samples", _longest,
    ),
]  # fmt: skip
