"""Small languages whose probabilities are known exactly, for tests of bounds and samplers."""

import torch
from torch import Tensor

import logosphere as ls
from logosphere.data.languages import Joint, Language


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sticky_chain(vocab_size: int, length: int, stay: float = 0.9) -> Language:
    """A chain that repeats its token with probability `stay`: strong correlations, uniform marginals."""
    transition = torch.full((vocab_size, vocab_size), (1 - stay) / (vocab_size - 1), dtype=torch.float64)
    transition.fill_diagonal_(stay)
    return ls.languages.markov(transition, torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64), length)


def skewed_chain(vocab_size: int, length: int, seed: int = 3) -> Language:
    """A chain with random rows, no symmetry and a non-stationary initial distribution."""
    rows = torch.rand(vocab_size + 1, vocab_size, generator=generator(seed), dtype=torch.float64) ** 3 + 0.01
    rows = rows / rows.sum(1, keepdim=True)
    return ls.languages.markov(rows[1:], rows[0], length)


def independent_tokens(vocab_size: int, length: int, seed: int = 4) -> Language:
    """Independent tokens of unequal frequency."""
    return ls.languages.independent(torch.rand(vocab_size, generator=generator(seed)).double().softmax(0), length)


def random_joint(vocab_size: int = 2, length: int = 4, seed: int = 5) -> Joint:
    """A random joint distribution in which a few sequences have probability 0."""
    weights = torch.rand((vocab_size,) * length, generator=generator(seed), dtype=torch.float64) ** 2
    return ls.languages.joint(torch.where(weights < 0.01, 0.0, weights))


def enumerate_sequences(language: Language) -> tuple[Tensor, Tensor]:
    """All sequences of a small language, and their probabilities."""
    axes = [torch.arange(language.vocab_size)] * language.length
    sequences = torch.cartesian_prod(*axes).view(-1, language.length)
    return sequences, language.log_prob(sequences).exp()


def conditional_log_prob(language: Language, tokens: Tensor, known: Tensor) -> Tensor:
    """log p(free tokens | known tokens) by enumeration, for one mask [L]."""
    sequences, p = enumerate_sequences(language)
    agrees = (sequences[None, :, known] == tokens[:, None][..., known]).all(-1)
    return language.log_prob(tokens) - (agrees * p).sum(1).log()
