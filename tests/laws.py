"""What the laws are stated with: languages, systems, and honest comparisons of numbers that carry an error."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import logosphere as ls
from logosphere.data.languages import Joint, Language, Oracle
from logosphere.model import Model

SMALL = {"width": 16, "depth": 2, "heads": 2}
"""A network that costs milliseconds."""


@dataclass(frozen=True)
class System:
    """A system with options, and a name to read in the list of tests."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *[f"{key}={value}" for key, value in self.options.items()]])

    def model(self, language: Language, **more: Any) -> Model:
        """The system for a language, without a network."""
        size = {"vocab_size": language.vocab_size, "length": language.length}
        return ls.build(self.name, **size, denoiser=None, **self.options, **more)


AR = System("ar")
MASKED = [
    System("mdlm"),
    System("mdlm", {"block": 2}),
    System("mdlm", {"schedule": "cosine"}),
    System("mdlm", {"schedule": "quadratic", "exact_count": False}),
    System("mdlm", {"exact_count": False}),
    System("d3pm-absorbing"),
    System("d3pm-absorbing", {"timesteps": None}),
    System("sedd-absorb"),
]
UNIFORM = [
    System("d3pm-uniform"),
    System("d3pm-uniform", {"timesteps": None}),
    System("d3pm-uniform", {"timesteps": None, "schedule": "linear"}),
    System("d3pm-uniform", {"block": 2}),
    System("multinomial"),
    System("sedd-uniform"),
    System("gidd"),
]
DIFFUSIONS = MASKED + UNIFORM
HEADED = [system for system in DIFFUSIONS if system.name.split("-")[0] in ("sedd", "gidd", "multinomial")]
"""Other heads, laws and tables on the same engine: for them the slow tests take fewer languages."""
SAME = [
    (System("md4"), System("mdlm", {"exact_count": False})),
    (System("ardm"), System("mdlm")),
    (System("bd3lm", {"block": 2}), System("mdlm", {"block": 2})),
    (System("gidd", {"p_u": 0.0}), System("mdlm", {"exact_count": False})),
    (System("udlm"), System("d3pm-uniform", {"timesteps": None, "schedule": "linear"})),
]
"""Systems whose bound is that of another, to the last bit; they differ in networks, training or sampling."""
PLAIN = [System("ar"), System("mdlm"), System("d3pm-absorbing"), System("d3pm-uniform")]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sticky(vocab_size: int, length: int, stay: float = 0.9) -> Language:
    """A chain that repeats its token with probability `stay`: strong correlations, uniform marginals."""
    transition = torch.full((vocab_size, vocab_size), (1 - stay) / (vocab_size - 1), dtype=torch.float64)
    transition.fill_diagonal_(stay)
    return ls.languages.markov(transition, torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64), length)


def skewed(vocab_size: int, length: int, seed: int = 3) -> Language:
    """A chain with random rows, no symmetry whatever and a start that is not stationary."""
    rows = torch.rand(vocab_size + 1, vocab_size, generator=generator(seed), dtype=torch.float64) ** 3 + 0.01
    rows = rows / rows.sum(1, keepdim=True)
    return ls.languages.markov(rows[1:], rows[0], length)


def alone(vocab_size: int, length: int, seed: int = 4) -> Language:
    """Independent tokens of unequal frequency."""
    return ls.languages.independent(torch.rand(vocab_size, generator=generator(seed)).double().softmax(0), length)


def table(vocab_size: int = 2, length: int = 4, seed: int = 5) -> Joint:
    """Any joint law: a random table, with a few sequences forbidden."""
    weights = torch.rand((vocab_size,) * length, generator=generator(seed), dtype=torch.float64) ** 2
    return ls.languages.joint(torch.where(weights < 0.01, 0.0, weights))


def everything(language: Language) -> tuple[Tensor, Tensor]:
    """All sequences of a small language, and their probabilities."""
    axes = [torch.arange(language.vocab_size)] * language.length
    sequences = torch.cartesian_prod(*axes).view(-1, language.length)
    return sequences, language.log_prob(sequences).exp()


def free_log_prob(language: Language, tokens: Tensor, known: Tensor) -> Tensor:
    """log p(free tokens | known tokens) by enumeration, for one mask [L]."""
    sequences, p = everything(language)
    agrees = (sequences[None, :, known] == tokens[:, None][..., known]).all(-1)
    return language.log_prob(tokens) - (agrees * p).sum(1).log()


def excess(
    model: Model, language: Language, *, n: int, draws: int, known: Tensor | None = None, denoiser: Any = None
) -> Tensor:
    """The bound minus -log p(x | known), of n sequences; paired, so that the spread of -log p drops out."""
    rng = generator(11)
    tokens = language.sample(n, rng)
    predict = Oracle(model, language) if denoiser is None else denoiser
    everywhere = None if known is None else known.expand_as(tokens)
    bound = model.nelbo(tokens, rng, denoiser=predict, draws=draws, known=everywhere)
    log_p = language.log_prob(tokens) if known is None else free_log_prob(language, tokens, known)
    return bound.total.double() + log_p


def mean_and_error(values: Tensor) -> tuple[float, float]:
    values = values.double().flatten()
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def fits(counts: Tensor | np.ndarray, p: Tensor | np.ndarray) -> float:
    """The p-value of a chi-square test; cells that should hold fewer than 5 are pooled, impossible ones stay empty."""
    counts, p = np.asarray(counts, dtype=float), np.asarray(p, dtype=float)
    assert counts[p <= 0].sum() == 0, "something impossible was drawn"
    expected = p / p.sum() * counts.sum()
    rare = expected < 5
    pooled = [(counts[~rare], expected[~rare])]
    if expected[rare].sum() >= 5:
        pooled.append((counts[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    seen, wanted = (np.concatenate(part) for part in zip(*pooled, strict=True))
    wanted = wanted * seen.sum() / wanted.sum()
    return float(stats.chisquare(seen, wanted).pvalue) if len(seen) > 1 else 1.0


def same_law(tokens: Tensor, language: Language, p: Tensor | None = None) -> float:
    """The p-value of the hypothesis that sequences come from a small language (or from a law p over all of them)."""
    sequences, of_language = everything(language)
    weights = language.vocab_size ** torch.arange(language.length - 1, -1, -1)
    counts = torch.bincount((tokens * weights).sum(1), minlength=len(sequences))
    return fits(counts, of_language if p is None else p)


CHANCE = 1e-3
"""Seeds are fixed, so a right sampler either passes for ever or not; one in a thousand would have to be re-seeded."""


def network(name: str, language: Language, seed: int = 0, **options: Any) -> Model:
    """A small model whose weights, the head's included, are random: a denoiser as wrong as any."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ls.build(name, vocab_size=language.vocab_size, length=language.length, **SMALL | options)
        scramble(model)
    return model


def measured(name: str, language: Language, **options: object) -> Model:
    """A model without a network whose clock has looked at the language once."""
    size: dict[str, object] = {"vocab_size": language.vocab_size, "length": language.length}
    model = ls.build(name, denoiser=None, **(size | options))
    model.process.train()
    model.nelbo(language.sample(500, generator(1)), generator(2), denoiser=Oracle(model, language), draws=4)
    model.process.settle()
    model.process.eval()
    return model


def scramble(model: torch.nn.Module) -> None:
    """Replace weights that start at zero, so that nothing is hidden by them."""
    for weight in model.parameters():
        if not bool(weight.any()):
            torch.nn.init.normal_(weight, std=0.5)
