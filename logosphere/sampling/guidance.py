"""Guidance by a condition or by a classifier.

Classifier-free guidance (Ho and Salimans 2022; Schiff et al. 2024, D-CFG) samples from p(· | y)^γ p(·)^{1-γ},
normalised. Where masks become tokens these are the distributions of the prediction (ClassifierFreeGuidance). Where
tokens change into tokens a power of a prediction does not correspond to a step, and they are the transition
distributions p(z_s | z_t).

Guidance by a classifier p(y | z_t) of noisy states (Schiff et al. 2024, D-CBG; Nisonoff et al. 2024) samples from
p(·) p(y | edit)^γ, where an edit replaces the state of one position: predictions for masks, transitions otherwise.
Continuous states have no edits: there the gradient of a classifier changes the prediction (Gradients).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.networks.guidance import ClassifierFreeGuidance, GradientGuided, GradientGuidedState
from logosphere.networks.wrappers import LogitsFilter, NFECounter
from logosphere.processes.base import Process
from logosphere.processes.capabilities import DiscreteTransitions
from logosphere.sampling.steppers.base import TRANSITIONS, Evaluate, Stepper, require
from logosphere.types import Bool, Float, Indices, Int64, Logits, Positions, Predict, State, Times, Where

MIN_LOG_P = -100.0
"""Smaller log-probabilities count as this where they are subtracted."""

Classifier = Callable[[Float[Tensor, "B L K"], Float[Tensor, "B L"]], Float[Tensor, "B C"]]
"""(states as one-hot rows, times) -> log p(y | z_t) of every class y; differentiable in the first."""
PredictionClassifier = Callable[[Float[Tensor, "B M K"]], Float[Tensor, "B C"]]
"""The prediction, token probabilities or clean states -> log p(y | prediction) of every class y; differentiable."""


@dataclass(frozen=True)
class CFGTransition:
    """Classifier-free guidance of a transition: γ log p(z_s | z_t, y) + (1 - γ) log p(z_s | z_t) (UDLM, eq. 8).

    γ = 1 is the conditional model, γ = 0 the unconditional one.
    """

    unconditional: Predict
    """The network without the condition."""
    scale: float

    def __call__(
        self,
        process: Process,
        evaluate: Evaluate,
        log_p: Float[Tensor, "N K"],
        z: State,
        t: Times,
        s: Times,
        where: Positions,
    ) -> Float[Tensor, "N K"]:
        out = evaluate(z, t, where, denoiser=self.unconditional)
        transitions = require(process, DiscreteTransitions, TRANSITIONS)
        unconditional = transitions.log_transition(out, z[where], t[where], s[where])
        if self.scale == 0:
            return unconditional
        mixed = self.scale * log_p + (1 - self.scale) * unconditional.clamp_min(MIN_LOG_P)
        return torch.where(log_p.isneginf(), log_p, mixed)  # probabilities of 0 given the condition stay 0


class Guide(ABC):
    """Guidance by a classifier towards `labels`, one for each sequence; with strength 0 there is no guidance."""

    labels: Int64[Tensor, " B"]
    strength: float

    @abstractmethod
    def check_process(self, process: Process) -> None:
        """Raise UserError for a process that cannot be guided in this way."""

    @abstractmethod
    def with_counter(self, counter: NFECounter) -> "Guide":
        """The same with its evaluations counted; one evaluation with its gradient counts as one."""

    @abstractmethod
    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Guide":
        """The same for some of the sequences."""

    @abstractmethod
    def apply(self, process: Process, predict: Denoiser, stepper: Stepper) -> tuple[Denoiser, Stepper]:
        """The denoiser and the stepper, one of them guided."""

    def check(self, process: Process, n: int) -> None:
        """Raise UserError if n sequences of a process cannot be guided."""
        self.check_process(process)
        if not 0 <= self.strength < math.inf:
            raise UserError(f"The strength of guidance must be finite and at least 0, not {self.strength}.")
        if self.labels.shape != (n,):
            raise UserError(f"A guide needs one label for each of {n} sequences, not {self.labels.numel()}.")


@dataclass(frozen=True)
class DiscreteClassifierGuidance(Guide):
    """Guidance of discrete states by edits.

    With `exact` the classifier is evaluated for every edit, K times for each position; the edited position then has the
    time of the new state, so that p(z_s | z_t) p(y | z_s, other z_t) is Bayes' rule. Otherwise edits are estimated:

        log p(y | edit) - log p(y | z) ≈ ∂ log p(y | z)/∂(row of the new state) - ∂ log p(y | z)/∂(row of the old one)

    to first order in the one-hot rows, one backward pass for all positions. Both agree where log p is linear in them.
    """

    classifier: Classifier
    labels: Int64[Tensor, " B"]
    strength: float = 1.0
    exact: bool = False

    def __call__(
        self,
        process: Process,
        evaluate: Evaluate,
        log_p: Float[Tensor, "N K"],
        z: State,
        t: Times,
        s: Times,
        where: Positions,
    ) -> Float[Tensor, "N K"]:
        return log_p + self.log_weights(log_p.shape[-1], z, t, s, where).to(log_p.dtype)

    def log_weights(self, states: int, z: State, t: Times, then: Times, where: Positions) -> Float[Tensor, "N K"]:
        """strength · log p(y | edit), up to a constant, for edits of the positions `where` to every state."""
        log_p = self._exact(states, z, t, then, where) if self.exact else self._first_order(states, z, t, where)
        return self.strength * log_p

    def _first_order(self, states: int, z: State, t: Times, where: Positions) -> Float[Tensor, "N K"]:
        with torch.enable_grad():
            rows = F.one_hot(z, states).float().requires_grad_()
            log_p = self._label_log_p(rows, t, torch.arange(len(z), device=z.device))
            if not log_p.requires_grad:
                raise UserError(
                    "The classifier must be differentiable with respect to its one-hot input, or use exact=True."
                )
            (gradient,) = torch.autograd.grad(log_p.sum(), rows)
        return gradient[where] - gradient[where].gather(-1, z[where][:, None])

    def _exact(self, states: int, z: State, t: Times, then: Times, where: Positions) -> Float[Tensor, "N K"]:
        sequence, place = where.nonzero(as_tuple=True)
        each = torch.arange(len(place), device=z.device)
        edited, times = z[sequence], t[sequence]  # copies
        times[each, place] = then[where]
        found = []
        with torch.no_grad():
            for state in range(states):
                edited[each, place] = state
                found.append(self._label_log_p(F.one_hot(edited, states).float(), times, sequence))
        return torch.stack(found, -1)

    def _label_log_p(
        self, rows: Float[Tensor, "N L K"], t: Float[Tensor, "N L"], sequence: Tensor
    ) -> Float[Tensor, " N"]:
        log_p = self.classifier(rows, t)
        return log_p.gather(-1, self.labels.to(log_p.device)[sequence][:, None]).squeeze(-1)

    def with_counter(self, counter: NFECounter) -> "DiscreteClassifierGuidance":
        def counted(rows: Float[Tensor, "N L K"], t: Float[Tensor, "N L"]) -> Float[Tensor, "N C"]:
            counter.sequences += len(rows)
            return self.classifier(rows, t)

        return replace(self, classifier=counted)

    def part(self, rows: slice | Bool[Tensor, " B"]) -> "DiscreteClassifierGuidance":
        return replace(self, labels=_select(self.labels, rows))

    def check_process(self, process: Process) -> None:
        if not process.codec.is_discrete:
            raise UserError("Guidance by edits needs discrete diffusion such as mdlm or udlm; use Gradients.")

    def apply(self, process: Process, predict: Denoiser, stepper: Stepper) -> tuple[Denoiser, Stepper]:
        if process.guides_transitions:
            return predict, stepper.with_guide(self)
        return EditGuided(predict, self), stepper


@dataclass(frozen=True)
class Gradients(Guide):
    """Guidance of continuous states by the gradient of log p(y | x̂), where x̂ is the prediction.

    Token distributions become p'(x) ∝ p(x) exp(γ ∂ log p(y | p)/∂p), a first-order edit (GradientGuided); clean states
    are moved by γ (σ²/α) ∇_z log p(y | x̂(z)), the score of z given y (GradientGuidedState).
    """

    classifier: PredictionClassifier
    labels: Int64[Tensor, " B"]
    strength: float = 1.0

    def __call__(self, rows: Float[Tensor, "B M K"]) -> Float[Tensor, " B"]:
        """log p(y | rows) of the label y of each sequence: the objective of networks/guidance.py."""
        return self.classifier(rows).gather(-1, self.labels.to(rows.device)[:, None]).squeeze(-1)

    def with_counter(self, counter: NFECounter) -> "Gradients":
        def counted(rows: Float[Tensor, "B M K"]) -> Float[Tensor, "B C"]:
            counter.sequences += len(rows)
            return self.classifier(rows)

        return replace(self, classifier=counted)

    def part(self, rows: slice | Bool[Tensor, " B"]) -> "Gradients":
        return replace(self, labels=_select(self.labels, rows))

    def check_process(self, process: Process) -> None:
        if process.codec.is_discrete:
            raise UserError("Guidance by gradients needs continuous states; use DiscreteClassifierGuidance.")
        if not (process.predicts_tokens or process.predicts_states):
            raise UserError(
                "Guidance by gradients needs predicted tokens or states; this model predicts a velocity or score."
            )

    def apply(self, process: Process, predict: Denoiser, stepper: Stepper) -> tuple[Denoiser, Stepper]:
        if process.state_path is None:
            return GradientGuided(predict, self, self.strength), stepper
        return GradientGuidedState(predict, process, self, self.strength), stepper


def _select(labels: Int64[Tensor, " B"], rows: slice | Bool[Tensor, " B"]) -> Int64[Tensor, " N"]:
    """Labels of some sequences, on any device."""
    return labels[rows] if isinstance(rows, slice) else labels.to(rows.device)[rows]


def _as_field(where: Positions | Indices, like: State) -> Positions:
    """Selected positions as a Boolean field."""
    if isinstance(where, Tensor):
        return where
    return torch.zeros_like(like, dtype=torch.bool).index_put_(where, torch.ones((), dtype=torch.bool))


class EditGuided(Wrapper):
    """A masked model guided by edits: p(x | z) p(y | z with the mask replaced by x)^γ, Bayes' rule for γ = 1.

    When a position is unmasked does not depend on its token, so this serves every sampler of masked diffusion.
    """

    def __init__(self, inner: Denoiser, guidance: DiscreteClassifierGuidance):
        super().__init__(inner)
        self.guidance = guidance

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context, where)
        every = torch.ones_like(z, dtype=torch.bool) if where is None else _as_field(where, z)
        weights = self.guidance.log_weights(out.shape[-1] + 1, z, t, torch.zeros_like(t), every)[:, :-1].to(out.dtype)
        return out + (weights.view_as(out) if where is None else weights)

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return EditGuided(inner, self.guidance)

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return EditGuided(self.inner.select_rows(kept), self.guidance.part(kept))


@dataclass(frozen=True)
class GuidanceConfig:
    """All guidance of one sampling run."""

    scale: float
    """γ of classifier-free guidance."""
    unconditional: Denoiser | None
    """The network without the condition; None without classifier-free guidance."""
    temperature: float
    guide: Guide | None

    def apply(self, process: Process, conditional: Denoiser, stepper: Stepper) -> tuple[Denoiser, Stepper]:
        """The guided denoiser and stepper: guidance acts on predictions or on transitions, as the process declares."""
        predict = conditional
        if self.unconditional is not None and process.guides_transitions:
            stepper = stepper.with_guide(CFGTransition(LogitsFilter(self.unconditional, self.temperature), self.scale))
        elif self.unconditional is not None:
            predict = ClassifierFreeGuidance(conditional, self.unconditional, self.scale)
        return (predict, stepper) if self.guide is None else self.guide.apply(process, predict, stepper)
