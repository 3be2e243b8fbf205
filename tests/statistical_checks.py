"""Comparisons of estimates with exact values: means with standard errors, chi-square tests, gaps of bounds."""

from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from toy_languages import conditional_log_prob, enumerate_sequences, generator

from logosphere.data.languages import Language, Oracle
from logosphere.model import Model

MIN_P_VALUE = 1e-3
"""Seeds are fixed, so a test is deterministic; a correct sampler fails with probability 1e-3 and needs another seed."""


def mean_and_error(values: Tensor) -> tuple[float, float]:
    values = values.double().flatten()
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def bound_excess(
    model: Model, language: Language, *, n: int, draws: int, known: Tensor | None = None, denoiser: Any = None
) -> Tensor:
    """The bound minus -log p(x | known) for n sequences; pairing removes the variance of -log p."""
    rng = generator(11)
    tokens = language.sample(n, rng)
    predict = Oracle(model, language) if denoiser is None else denoiser
    everywhere = None if known is None else known.expand_as(tokens)
    bound = model.nelbo(tokens, rng, denoiser=predict, draws=draws, known=everywhere)
    log_p = language.log_prob(tokens) if known is None else conditional_log_prob(language, tokens, known)
    return bound.total.double() + log_p


def chi_square_p_value(counts: Tensor | np.ndarray, p: Tensor | np.ndarray) -> float:
    """The p-value of a chi-square test; cells with expectation below 5 are pooled, those of p = 0 must be empty."""
    counts, p = np.asarray(counts, dtype=float), np.asarray(p, dtype=float)
    assert counts[p <= 0].sum() == 0, "a token sequence of probability 0 was sampled"
    expected = p / p.sum() * counts.sum()
    rare = expected < 5
    pooled = [(counts[~rare], expected[~rare])]
    if expected[rare].sum() >= 5:
        pooled.append((counts[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    observed, reference = (np.concatenate(part) for part in zip(*pooled, strict=True))
    reference = reference * observed.sum() / reference.sum()
    return float(stats.chisquare(observed, reference).pvalue) if len(observed) > 1 else 1.0


def sequence_p_value(tokens: Tensor, language: Language, p: Tensor | None = None) -> float:
    """The p-value of the hypothesis that sequences come from a small language (or from a distribution p over them)."""
    sequences, of_language = enumerate_sequences(language)
    weights = language.vocab_size ** torch.arange(language.length - 1, -1, -1)
    counts = torch.bincount((tokens * weights).sum(1), minlength=len(sequences))
    return chi_square_p_value(counts, of_language if p is None else p)
