"""Guidance of predictions: classifier-free, and by gradients of any differentiable objective.

An objective returns log c of the desired property of each sequence, from token probabilities or from x̂. It is the
argument `judge` of the wrappers.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.processes.base import Process
from logosphere.types import Bool, Float, Logits, Rows, State, Times, Where

LogObjective = Callable[[Tensor], Float[Tensor, " B"]]
"""Token probabilities [B, M, V], or clean states [B, M, d] -> log c [B]."""


@runtime_checkable
class RowSelectable(Protocol):
    """An objective that differs between the sequences of a batch, and can be restricted to some of them."""

    def part(self, rows: Bool[Tensor, " B"]) -> LogObjective: ...


class ClassifierFreeGuidance(Denoiser):
    """Classifier-free guidance (Ho and Salimans 2022; Schiff et al. 2024, D-CFG): out = u + w (c - u).

    c is the prediction with the condition, u the one without; w = 1 is the conditional model itself. Log-probabilities
    are combined without normalisation, which follows where tokens are sampled; predicted states likewise.
    """

    def __init__(self, conditional: Denoiser, unconditional: Denoiser, scale: float):
        super().__init__()
        self.conditional, self.unconditional, self.scale = conditional, unconditional, scale
        self.block, self.reads_time = conditional.block, conditional.reads_time

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        u = self.unconditional(z, t, context, where)
        return u + self.scale * (self.conditional(z, t, context, where) - u)

    def select_rows(self, kept: Rows) -> Denoiser:
        return ClassifierFreeGuidance(
            self.conditional.select_rows(kept), self.unconditional.select_rows(kept), self.scale
        )


class PromptGuidance(Denoiser):
    """Guidance by the known positions: out = u + (s + 1)(c - u), where u does not see them (Nie et al. 2025, LLaDA).

    s = 0 is the prediction itself. Tokens of probability 0 keep it.
    """

    def __init__(
        self, conditional: Denoiser, unconditional: Denoiser, known: Bool[Tensor, "B L"], mask: int, scale: float
    ):
        super().__init__()
        self.conditional, self.unconditional, self.known = conditional, unconditional, known
        self.mask, self.scale = mask, scale
        self.block, self.reads_time = conditional.block, conditional.reads_time

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        latest = torch.where(self.known, t.amax(1, keepdim=True), t)
        hidden, unseen = (z.masked_fill(self.known, self.mask) for z in (z, context))
        c, u = self.conditional(z, t, context, where), self.unconditional(hidden, latest, unseen, where)
        return torch.where(c.isneginf() | u.isneginf(), c, u + (self.scale + 1) * (c - u))

    def select_rows(self, kept: Rows) -> Denoiser:
        return PromptGuidance(
            self.conditional.select_rows(kept),
            self.unconditional.select_rows(kept),
            self.known[kept],
            self.mask,
            self.scale,
        )


class GradientGuided(Wrapper):
    """p'(x) ∝ p(x) exp(strength · ∂ log c / ∂p): Bayes' rule with log c linearised around p (Vignac et al. 2022).

    For every process whose network predicts tokens. It is exact where c is a product over positions.
    """

    def __init__(self, inner: Denoiser, judge: LogObjective, strength: float = 1.0):
        super().__init__(inner)
        self.judge, self.strength = judge, strength

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        out = self.inner(z, t, context)
        with torch.enable_grad():
            p = out.detach().softmax(-1).requires_grad_()
            gradient = _gradient(self.judge(p), p)
        out = out + self.strength * gradient.to(out.dtype)
        return out if where is None else out[where]

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return GradientGuided(inner, self.judge, self.strength)

    def select_rows(self, kept: Rows) -> Denoiser:
        return GradientGuided(self.inner.select_rows(kept), _select(self.judge, kept), self.strength)


class GradientGuidedState(Wrapper):
    """x̂' = x̂ + strength · (σ²/α) ∇_z log c(x̂(z)): the score of z given the property (Li et al. 2022, section 5.1).

    The gradient passes through the network, so that an evaluation costs about three. For Gaussian diffusion that
    predicts states; c is a function of the predicted clean states.
    """

    def __init__(self, inner: Denoiser, process: Process, judge: LogObjective, strength: float = 1.0):
        super().__init__(inner)
        if process.state_path is None:
            raise UserError("This model does not predict states; use GradientGuided with token probabilities.")
        self.judge, self.strength, self._process = judge, strength, [process]  # in a list: not a part of this module

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        path = self._process[0].state_path
        assert path is not None
        alpha, sigma = path.alpha_sigma(t)
        with torch.enable_grad():
            noisy = z.detach().requires_grad_()
            clean = path.predict_x0(self.inner(noisy, t, context), noisy, t)
            gradient = _gradient(self.judge(clean), noisy)
        guided = clean.detach() + self.strength * sigma.square() / alpha.clamp_min(1e-3) * gradient
        out = path.from_x0(guided, z, t)
        return out if where is None else out[where]

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return GradientGuidedState(inner, self._process[0], self.judge, self.strength)

    def select_rows(self, kept: Rows) -> Denoiser:
        inner, judge = self.inner.select_rows(kept), _select(self.judge, kept)
        return GradientGuidedState(inner, self._process[0], judge, self.strength)


def _select(judge: LogObjective, kept: Bool[Tensor, " B"]) -> LogObjective:
    return judge.part(kept) if isinstance(judge, RowSelectable) else judge


def _gradient(log_c: Tensor, of: Tensor) -> Tensor:
    if not log_c.requires_grad:
        raise UserError("The objective (judge) must be differentiable: compute it from the tensor that it receives.")
    (gradient,) = torch.autograd.grad(log_c.sum(), of)
    return gradient
