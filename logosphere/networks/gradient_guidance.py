"""Guidance by gradients of any differentiable objective of the prediction.

An objective returns log c, how well each sequence has the wanted property, from token probabilities or from x̂. It is
the argument `judge` of the wrappers.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.processes.gaussian.diffusion import GaussianDiffusion
from logosphere.shapes import Bool, Float
from logosphere.types import Logits, Positions, State, Times

LogObjective = Callable[[Tensor], Float[Tensor, " B"]]
"""Token probabilities [B, M, V], or clean states [B, M, d] -> log c [B]."""


@runtime_checkable
class RowSelectable(Protocol):
    """An objective that differs between the sequences of a batch, and can be restricted to some of them."""

    def part(self, rows: Bool[Tensor, " B"]) -> LogObjective: ...


class GradientGuided(Wrapper):
    """p'(x) ∝ p(x) exp(strength · ∂ log c / ∂p): Bayes' rule with log c linearised around p (Vignac et al. 2022).

    For every process whose network predicts tokens. It is exact where c is a product over positions.
    """

    def __init__(self, inner: Denoiser, judge: LogObjective, strength: float = 1.0):
        super().__init__(inner)
        self.judge, self.strength = judge, strength

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context)
        with torch.enable_grad():
            p = out.detach().softmax(-1).requires_grad_()
            gradient = _gradient(self.judge(p), p)
        out = out + self.strength * gradient.to(out.dtype)
        return out if where is None else out[where]

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return GradientGuided(inner, self.judge, self.strength)

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return GradientGuided(self.inner.select_rows(kept), _select(self.judge, kept), self.strength)


class GradientGuidedState(Wrapper):
    """x̂' = x̂ + strength · (σ²/α) ∇_z log c(x̂(z)): the score of z given the property (Li et al. 2022, section 5.1).

    The gradient passes through the network, so that an evaluation costs about three. For Gaussian diffusion that
    predicts states; c is a function of the predicted clean states.
    """

    def __init__(self, inner: Denoiser, process: GaussianDiffusion, judge: LogObjective, strength: float = 1.0):
        super().__init__(inner)
        if process.predicts_tokens:
            raise UserError("This model predicts tokens; guide it by Steered, whose judge reads their probabilities.")
        self.judge, self.strength, self._process = judge, strength, [process]

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        process, (alpha, sigma) = self._process[0], self._process[0].alpha_sigma(t)
        with torch.enable_grad():
            noisy = z.detach().requires_grad_()
            clean = process.predict_x0(self.inner(noisy, t, context), noisy, t)
            gradient = _gradient(self.judge(clean), noisy)
        guided = clean.detach() + self.strength * sigma.square() / alpha.clamp_min(1e-3) * gradient
        out = process.from_x0(guided, z, t)
        return out if where is None else out[where]

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return GradientGuidedState(inner, self._process[0], self.judge, self.strength)

    def select_rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        inner, judge = self.inner.select_rows(kept), _select(self.judge, kept)
        return GradientGuidedState(inner, self._process[0], judge, self.strength)


def _select(judge: LogObjective, kept: Bool[Tensor, " B"]) -> LogObjective:
    return judge.part(kept) if isinstance(judge, RowSelectable) else judge


def _gradient(log_c: Tensor, of: Tensor) -> Tensor:
    if not log_c.requires_grad:
        raise UserError("The judge must be differentiable: compute its answer from the tensor it is given.")
    (gradient,) = torch.autograd.grad(log_c.sum(), of)
    return gradient
