"""Control by gradients: any differentiable judge of what is being written steers what is written next.

A judge returns log c, how well each sequence has the wanted property, from the law of its tokens or from x̂.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.denoisers.base import Denoiser, Wrapper
from logosphere.errors import UserError
from logosphere.processes.gaussian import Gaussian
from logosphere.shapes import Bool, Float
from logosphere.types import Logits, Positions, State, Times

Judge = Callable[[Tensor], Float[Tensor, " B"]]
"""Law of the tokens [B, M, V], or clean states [B, M, d] -> log c [B]."""


@runtime_checkable
class Divisible(Protocol):
    """A judge who wants something else of every sequence, and can be cut as the batch is cut."""

    def part(self, rows: Bool[Tensor, " B"]) -> Judge: ...


class Steered(Wrapper):
    """p'(x) ∝ p(x) exp(strength · ∂ log c / ∂p): Bayes' rule with log c taken for linear around p (Vignac et al. 2022).

    For every process whose networks answer with tokens. It is exact where c is a product over positions.
    """

    def __init__(self, inner: Denoiser, judge: Judge, strength: float = 1.0):
        super().__init__()
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.judge, self.strength = judge, strength

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        out = self.inner(z, t, context)
        with torch.enable_grad():
            p = out.detach().softmax(-1).requires_grad_()
            pull = _gradient(self.judge(p), p)
        out = out + self.strength * pull.to(out.dtype)
        return out if where is None else out[where]

    def around(self, inner: Denoiser) -> Denoiser:
        return Steered(inner, self.judge, self.strength)

    def rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return Steered(self.inner.rows(kept), _part(self.judge, kept), self.strength)


class SteeredState(Wrapper):
    """x̂' = x̂ + strength · (σ²/α) ∇_z log c(x̂(z)): the score of z given the property (Li et al. 2022, section 5.1).

    The gradient passes through the network, so that a look costs about three. For Gaussian diffusion that predicts
    states; log c is that of the clean states which the network expects.
    """

    def __init__(self, inner: Denoiser, process: Gaussian, judge: Judge, strength: float = 1.0):
        super().__init__()
        if process.predicts is None:
            raise UserError("This model predicts tokens; steer it by Steered, whose judge reads their law.")
        self.inner, self.block, self.reads_time = inner, inner.block, inner.reads_time
        self.judge, self.strength, self._process = judge, strength, [process]

    def forward(self, z: State, t: Times, context: State, where: Positions | None = None) -> Logits:
        process, (alpha, sigma) = self._process[0], self._process[0].levels(t)
        assert process.predicts is not None
        with torch.enable_grad():
            noisy = z.detach().requires_grad_()
            clean = process.clean(self.inner(noisy, t, context), noisy, t)
            pull = _gradient(self.judge(clean), noisy)
        aim = clean.detach() + self.strength * sigma.square() / alpha.clamp_min(1e-3) * pull
        out = process.predicts.answer(aim, z, alpha, sigma)
        return out if where is None else out[where]

    def around(self, inner: Denoiser) -> Denoiser:
        return SteeredState(inner, self._process[0], self.judge, self.strength)

    def rows(self, kept: Bool[Tensor, " B"]) -> Denoiser:
        return SteeredState(self.inner.rows(kept), self._process[0], _part(self.judge, kept), self.strength)


def _part(judge: Judge, kept: Bool[Tensor, " B"]) -> Judge:
    return judge.part(kept) if isinstance(judge, Divisible) else judge


def _gradient(log_c: Tensor, of: Tensor) -> Tensor:
    if not log_c.requires_grad:
        raise UserError("The judge must be differentiable: compute its answer from the tensor it is given.")
    (gradient,) = torch.autograd.grad(log_c.sum(), of)
    return gradient
