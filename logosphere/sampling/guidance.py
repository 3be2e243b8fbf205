"""Guidance: writing more of what a condition, or a classifier, asks for.

By the condition itself (Ho and Salimans 2022; Schiff et al. 2024, D-CFG): p(· | y)^γ p(·)^{1-γ}, normalised. Where
tokens only appear out of masks the laws are those of the prediction (ClassifierFreeGuidance); where tokens turn into
tokens a prediction to a power belongs to no step, and the laws are those of the step, p(z_s | z_t).

By a classifier p(y | z_t) of noisy states (Schiff et al. 2024, D-CBG; Nisonoff et al. 2024): p(·) p(y | edit)^γ, where
an edit puts one state in the place of another and leaves the rest. Again on predictions for masks, on steps otherwise.
Continuous states have no edits: there the gradient of a classifier moves what the network expects (Gradients).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.codecs.tokens import TokenCodec
from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.guidance import ClassifierFreeGuidance, GradientGuided, GradientGuidedState
from logosphere.networks.wrappers import LogitsFilter, NFECounter
from logosphere.processes.base import Process
from logosphere.sampling.steppers import Ask, Stepper
from logosphere.sampling.steppers.base import guides_transitions, require_transitions
from logosphere.types import Bool, Float, Int64, Logits, Positions, Predict, State, Times

FAINT = -100.0
"""Log-probabilities below this count as this, where one is divided by another."""

Classifier = Callable[[Float[Tensor, "B L K"], Float[Tensor, "B L"]], Float[Tensor, "B C"]]
"""(states as one-hot rows, times) -> log p(y | z_t) of every class y; differentiable in the first."""
Reader = Callable[[Float[Tensor, "B M K"]], Float[Tensor, "B C"]]
"""What the network expects, the law of tokens or clean states -> log p(y | it) of every class y; differentiable."""


@dataclass(frozen=True)
class Against:
    """The tilt of classifier-free guidance: γ log p(z_s | z_t, y) + (1 - γ) log p(z_s | z_t) (UDLM, eq. 8).

    γ = 1 is the conditional model, γ = 0 the unconditional one.
    """

    untold: Predict
    """The network without the condition."""
    scale: float

    def __call__(
        self, process: Process, ask: Ask, law: Float[Tensor, "N K"], z: State, t: Times, s: Times, where: Positions
    ) -> Float[Tensor, "N K"]:
        without = require_transitions(process).log_transition(
            ask(z, t, where, of=self.untold), z[where], t[where], s[where]
        )
        if self.scale == 0:
            return without
        mixed = self.scale * law + (1 - self.scale) * without.clamp_min(FAINT)
        return torch.where(law.isneginf(), law, mixed)  # what the condition rules out stays out, whatever the scale


class Guide(ABC):
    """Guidance by a classifier towards `labels`, one for each sequence; of strength 0 it is none at all."""

    labels: Int64[Tensor, " B"]
    strength: float

    @abstractmethod
    def fits(self, process: Process) -> None:
        """Refuse a process that cannot be guided so."""

    @abstractmethod
    def counted(self, counter: NFECounter) -> "Guide":
        """The same with its evaluations counted; one with its gradient counts as one."""

    @abstractmethod
    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Guide":
        """The same for some of the sequences."""

    @abstractmethod
    def applied(self, process: Process, predict: Denoiser, move: Stepper) -> tuple[Denoiser, Stepper]:
        """Predictions, or steps, that are guided."""

    def check(self, process: Process, n: int) -> None:
        """Refuse what cannot be done."""
        self.fits(process)
        if not 0 <= self.strength < math.inf:
            raise UserError(f"The strength of guidance must be at least 0, not {self.strength}.")
        if self.labels.shape != (n,):
            raise UserError(f"A guide needs one label for each of {n} sequences, not {self.labels.numel()}.")


@dataclass(frozen=True)
class Edits(Guide):
    """Guidance by edits, for discrete states.

    With `exact` the classifier is asked about every edit, K times for each position; the edited position then has the
    time of the state that is put in, so that p(z_s | z_t) p(y | z_s, other z_t) is Bayes' rule. Otherwise about none:

        log p(y | edit) - log p(y | z) ≈ ∂ log p(y | z)/∂(row of the new state) - ∂ log p(y | z)/∂(row of the old one)

    to first order in the one-hot rows, one backward pass for all positions. Both agree where log p is linear in them.
    """

    classifier: Classifier
    labels: Int64[Tensor, " B"]
    strength: float = 1.0
    exact: bool = False

    def __call__(
        self, process: Process, ask: Ask, law: Float[Tensor, "N K"], z: State, t: Times, s: Times, where: Positions
    ) -> Float[Tensor, "N K"]:
        return law + self.pull(law.shape[-1], z, t, s, where).to(law.dtype)

    def pull(self, states: int, z: State, t: Times, then: Times, where: Positions) -> Float[Tensor, "N K"]:
        """strength · log p(y | edit), up to a constant, for edits of the positions `where` to every state."""
        pulled = self._each(states, z, t, then, where) if self.exact else self._gradient(states, z, t, where)
        return self.strength * pulled

    def _gradient(self, states: int, z: State, t: Times, where: Positions) -> Float[Tensor, "N K"]:
        with torch.enable_grad():
            rows = F.one_hot(z, states).float().requires_grad_()
            log_p = self._asked(rows, t, torch.arange(len(z), device=z.device))
            if not log_p.requires_grad:
                raise UserError("The classifier must be differentiable in the rows it is given; or use exact=True.")
            (gradient,) = torch.autograd.grad(log_p.sum(), rows)
        return gradient[where] - gradient[where].gather(-1, z[where][:, None])

    def _each(self, states: int, z: State, t: Times, then: Times, where: Positions) -> Float[Tensor, "N K"]:
        sequence, place = where.nonzero(as_tuple=True)
        each = torch.arange(len(place), device=z.device)
        edited, times = z[sequence], t[sequence]  # copies
        times[each, place] = then[where]
        found = []
        with torch.no_grad():
            for state in range(states):
                edited[each, place] = state
                found.append(self._asked(F.one_hot(edited, states).float(), times, sequence))
        return torch.stack(found, -1)

    def _asked(self, rows: Float[Tensor, "N L K"], t: Float[Tensor, "N L"], sequence: Tensor) -> Float[Tensor, " N"]:
        answer = self.classifier(rows, t)
        return answer.gather(-1, self.labels.to(answer.device)[sequence][:, None]).squeeze(-1)

    def counted(self, counter: NFECounter) -> "Edits":
        def asked(rows: Float[Tensor, "N L K"], t: Float[Tensor, "N L"]) -> Float[Tensor, "N C"]:
            counter.sequences += len(rows)
            return self.classifier(rows, t)

        return replace(self, classifier=asked)

    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Edits":
        return replace(self, labels=_some(self.labels, rows))

    def fits(self, process: Process) -> None:
        if not isinstance(process.codec, TokenCodec):
            raise UserError("Guidance by edits needs discrete diffusion such as mdlm or udlm; use Gradients here.")

    def applied(self, process: Process, predict: Denoiser, move: Stepper) -> tuple[Denoiser, Stepper]:
        return (predict, move.tilted(self)) if guides_transitions(process) else (Edited(predict, self), move)


@dataclass(frozen=True)
class Gradients(Guide):
    """Guidance by gradients, for continuous states: of log p(y | x̂) where x̂ is what the network expects of z.

    Laws of tokens are tilted, p'(x) ∝ p(x) exp(γ ∂ log p(y | p)/∂p), which are first-order edits of them (Steered);
    clean states are moved by γ (σ²/α) ∇_z log p(y | x̂(z)), the score of z given y (SteeredState).
    """

    classifier: Reader
    labels: Int64[Tensor, " B"]
    strength: float = 1.0

    def __call__(self, rows: Float[Tensor, "B M K"]) -> Float[Tensor, " B"]:
        """log p(y | it) of the label y of each sequence: the objective of networks/guidance.py."""
        return self.classifier(rows).gather(-1, self.labels.to(rows.device)[:, None]).squeeze(-1)

    def counted(self, counter: NFECounter) -> "Gradients":
        def asked(rows: Float[Tensor, "B M K"]) -> Float[Tensor, "B C"]:
            counter.sequences += len(rows)
            return self.classifier(rows)

        return replace(self, classifier=asked)

    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Gradients":
        return replace(self, labels=_some(self.labels, rows))

    def fits(self, process: Process) -> None:
        if isinstance(process.codec, TokenCodec):
            raise UserError("Guidance by gradients needs continuous states; use Edits for discrete diffusion.")
        if not (process.predicts_tokens or process.predicts_states):
            raise UserError("This model predicts a velocity or a score, which guidance by gradients cannot tilt.")

    def applied(self, process: Process, predict: Denoiser, move: Stepper) -> tuple[Denoiser, Stepper]:
        if process.state_path is None:
            return GradientGuided(predict, self, self.strength), move
        return GradientGuidedState(predict, process, self, self.strength), move


def _some(labels: Int64[Tensor, " B"], rows: slice | Bool[Tensor, " B"]) -> Int64[Tensor, " N"]:
    """Labels of some sequences, wherever the labels lie."""
    return labels[rows] if isinstance(rows, slice) else labels.to(rows.device)[rows]


class Edited(Wrapper):
    """A masked model guided by edits: p(x | z) p(y | z with the mask lifted to x)^γ, Bayes' rule for γ = 1.

    When a mask is lifted does not depend on what is under it, so that this serves every sampler of masked diffusion.
    """

    def __init__(self, inner: Denoiser, edits: Edits):
        super().__init__(inner)
        self.edits = edits

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context, where)
        every = torch.ones_like(z, dtype=torch.bool) if where is None else where
        pull = self.edits.pull(out.shape[-1] + 1, z, t, torch.zeros_like(t), every)[:, :-1].to(out.dtype)
        return out + (pull.view_as(out) if where is None else pull)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return Edited(inner, self.edits)

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return Edited(self.inner.select_rows(kept), self.edits.part(kept))


@dataclass(frozen=True)
class Guides:
    """Everything by which one run of a sampler is guided."""

    scale: float
    """γ of the condition."""
    untold: Denoiser | None
    """The network without the condition; None where the condition is not to be guided by."""
    temperature: float
    guide: Guide | None

    def applied(self, process: Process, told: Denoiser, move: Stepper) -> tuple[Denoiser, Stepper]:
        """Predictions, or steps, that are guided: which of both, the process knows."""
        predict = told
        if self.untold is not None and guides_transitions(process):
            move = move.tilted(Against(LogitsFilter(self.untold, self.temperature), self.scale))
        elif self.untold is not None:
            predict = ClassifierFreeGuidance(told, self.untold, self.scale)
        return (predict, move) if self.guide is None else self.guide.applied(process, predict, move)
