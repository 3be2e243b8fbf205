"""Toy languages whose every probability is known, and oracles: their exact posteriors as denoisers.

With an oracle a bound can be compared with the entropy, and samples with the language, without a trained network.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from logosphere.errors import UserError, check_count
from logosphere.model import Model
from logosphere.networks.base import Denoiser
from logosphere.rng import as_generator, categorical
from logosphere.types import Float, Logits, State, Times, Tokens, Where

ArrayLike = Tensor | Sequence[Any]
"""A tensor, or nested lists of numbers."""
CPU = torch.device("cpu")


class Language(ABC):
    """A distribution over sequences of `length` tokens out of `vocab_size`."""

    length: int
    vocab_size: int

    @abstractmethod
    def entropy(self) -> float:
        """H(X) of a whole sequence, in nats."""

    @abstractmethod
    def log_prob(self, tokens: Tokens) -> Float[Tensor, " B"]:
        """log p(x), in nats, float64."""

    @abstractmethod
    def sample(self, n: int, rng: torch.Generator | int) -> Tokens:
        """n sequences; `rng` may be a seed."""

    @abstractmethod
    def posterior(self, evidence: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        """log p(x_i | evidence) at each i, where evidence[:, j] are the log-likelihoods of the observation at j."""


class Markov(Language):
    """p(x) = initial(x_1) Π transition(x_i, x_{i+1})."""

    def __init__(self, transition: ArrayLike, initial: ArrayLike, length: int):
        transition, initial = torch.as_tensor(transition).double(), torch.as_tensor(initial).double()
        if transition.shape != (len(initial), len(initial)):
            raise UserError(
                f"The transition matrix must be {len(initial)} × {len(initial)}, as long as the initial distribution."
            )
        rows = torch.cat([transition, initial[None]])
        if bool((rows < 0).any()) or not torch.allclose(rows.sum(1), torch.ones(len(rows)).double(), atol=1e-6):
            raise UserError(
                "The initial distribution and every row of the transition matrix must be probabilities that sum to 1."
            )
        if length < 1:
            raise UserError(f"A language needs a length of at least 1, not {length}.")
        self.transition, self.initial, self.length, self.vocab_size = transition, initial, length, len(initial)

    def entropy(self) -> float:
        row_entropy = torch.special.entr(self.transition).sum(1)
        total, marginal = torch.special.entr(self.initial).sum(), self.initial
        for _ in range(self.length - 1):
            total = total + marginal @ row_entropy
            marginal = marginal @ self.transition
        return float(total)

    def log_prob(self, tokens: Tokens) -> Tensor:
        steps = self.transition.log()[tokens[:, :-1], tokens[:, 1:]].sum(1)
        return self.initial.log()[tokens[:, 0]] + steps

    def sample(self, n: int, rng: torch.Generator | int) -> Tokens:
        u = torch.rand(check_count("n", n), self.length, generator=as_generator(rng, CPU), dtype=torch.float64)
        x = torch.empty(n, self.length, dtype=torch.long)
        x[:, 0] = categorical(self.initial.log().expand(n, -1), u[:, 0])
        for i in range(1, self.length):
            x[:, i] = categorical(self.transition.log()[x[:, i - 1]], u[:, i])
        return x

    def posterior(self, evidence: Tensor) -> Tensor:
        """Forward and backward messages (Baum and Welch), normalised at each position to stay in range."""
        likelihood = (evidence.double() - evidence.double().amax(-1, keepdim=True)).exp()  # [B, L, V]
        forward, backward = torch.empty_like(likelihood), torch.empty_like(likelihood)
        message = self.initial.expand_as(likelihood[:, 0])
        for i in range(self.length):
            forward[:, i] = message
            message = _normalise(message * likelihood[:, i]) @ self.transition
        message = torch.ones_like(likelihood[:, 0])
        for i in reversed(range(self.length)):
            backward[:, i] = message
            message = _normalise(message * likelihood[:, i]) @ self.transition.T
        return _safe_log(_normalise(forward * backward * likelihood))


class Joint(Language):
    """Any distribution over V^L sequences, given as a table with L axes of size V."""

    def __init__(self, table: ArrayLike):
        table = torch.as_tensor(table).double()
        if len(set(table.shape)) != 1 or bool((table < 0).any()) or float(table.sum()) <= 0:
            raise UserError("A joint table needs equal axes, one for each position, and weights that are not negative.")
        self.length, self.vocab_size = table.dim(), table.shape[0]
        self.p = (table / table.sum()).flatten()
        axes = [torch.arange(self.vocab_size)] * self.length
        self.support = torch.cartesian_prod(*axes).view(-1, self.length)

    def entropy(self) -> float:
        return float(torch.special.entr(self.p).sum())

    def index(self, tokens: Tokens) -> Tensor:
        return (tokens * self.vocab_size ** torch.arange(self.length - 1, -1, -1)).sum(1)

    def log_prob(self, tokens: Tokens) -> Tensor:
        return self.p.log()[self.index(tokens)]

    def sample(self, n: int, rng: torch.Generator | int) -> Tokens:
        u = torch.rand(check_count("n", n), generator=as_generator(rng, CPU), dtype=torch.float64)
        return self.support[categorical(self.p.log().expand(n, -1), u)]

    def posterior(self, evidence: Tensor) -> Tensor:
        log_joint = self.p.log() + sum(evidence[:, i].double()[:, self.support[:, i]] for i in range(self.length))
        weight = log_joint.softmax(1)  # [B, V^L]
        marginal = torch.zeros(evidence.shape, dtype=torch.float64)
        for i in range(self.length):
            marginal[:, i].index_add_(1, self.support[:, i], weight)
        return _safe_log(marginal)


def _safe_log(p: Tensor) -> Tensor:
    """log p, finite where p is 0, so that its gradient is too."""
    return p.clamp_min(1e-300).log()


def _normalise(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def markov(transition: ArrayLike, initial: ArrayLike, length: int) -> Markov:
    """A Markov chain."""
    return Markov(transition, initial, length)


def independent(p: ArrayLike, length: int) -> Markov:
    """Each token drawn on its own from p."""
    p = torch.as_tensor(p).double()
    return Markov(p.expand(len(p), -1), p, length)


def joint(table: ArrayLike) -> Joint:
    """Any small table of probabilities, one axis for each position."""
    return Joint(table)


class Oracle(Denoiser):
    """The exact p(x_i | z), which an optimal network would predict."""

    def __init__(self, model: Model, language: Language):
        super().__init__()
        if not model.process.codec.local:
            raise UserError("There is no exact posterior for states that belong to whole sequences.")
        if (model.length, model.vocab_size) != (language.length, language.vocab_size):
            raise UserError("The model and the language must have the same length and vocabulary.")
        self.block, self.reads_time, self.language = model.block, model.process.time_conditional, language
        self.process = model.process

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        """Conditions on clean blocks before a position and on the noisy state of its own block, not on later blocks."""
        own = self.process.log_likelihood(z, t)
        if self.block == self.language.length:
            out = self.language.posterior(own)
        else:
            clean = self.process.log_likelihood(context, torch.zeros_like(t))
            parts = []
            for start in range(0, self.language.length, self.block):
                end = start + self.block
                seen = torch.cat([clean[:, :start], own[:, start:end], torch.zeros_like(own[:, end:])], dim=1)
                parts.append(self.language.posterior(seen)[:, start:end])
            out = torch.cat(parts, dim=1)
        out = self.process.from_posterior(out, z, t).float()
        return out if where is None else out[where]


def oracle(model: Model, language: Language) -> Oracle:
    """The exact posterior of a language under a model's process, as a denoiser."""
    return Oracle(model, language)
