"""Rates and losses of predictions over large vocabularies, computed a few rows at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from logosphere.types import Float, LogitChunks, Logits

Evaluate = Callable[[Logits, slice], tuple[Float[Tensor, " n"], Float[Tensor, " n"]]]
"""(logits of some rows, these rows) -> their rates and losses."""


def evaluate_chunks(
    chunks: LogitChunks, evaluate: Evaluate, size: int, *, recompute: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return rates and losses of all rows, of which `size` are computed at a time.

    By default the gradient of each chunk is computed with it, so that its logits are needed only once. With `recompute`
    the backward pass computes them again: for losses that depend on other parameters than those of the chunks, and
    for devices that should not be read in a step.
    """
    count = len(chunks.features)
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (chunks.features, *chunks.parameters))
    if needs_gradient and not recompute:
        rates, losses = _GradientInForward.apply(chunks, evaluate, parts, chunks.features, *chunks.parameters)
        return rates, losses
    found = [checkpoint(lambda rows: evaluate(chunks(rows), rows), rows, use_reentrant=False) for rows in parts]
    return torch.cat([rate for rate, _ in found]), torch.cat([loss for _, loss in found])


class _GradientInForward(torch.autograd.Function):
    """Rates and losses of rows; the gradient of the sum of all losses is computed in the forward pass.

    In the backward pass it is multiplied by the gradient of the losses, which is one number for all rows if their mean
    is minimised. Otherwise the rows are evaluated again. Rates have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, chunks: LogitChunks, evaluate: Evaluate, parts: list[slice], features: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.chunks, ctx.evaluate, ctx.parts = chunks, evaluate, parts
        sums = _GradientSums(features, parameters)
        found = [sums.add(chunks, evaluate, rows, None) for rows in parts]
        ctx.save_for_backward(sums.features, *sums.parameters)
        rates = torch.cat([rate for rate, _ in found])
        ctx.mark_non_differentiable(rates)
        return rates, torch.cat([loss for _, loss in found])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, grad: Float[Tensor, " N"]) -> tuple[Tensor | None, ...]:
        if bool((grad == grad[0]).all()):
            return None, None, None, *(grad[0] * tensor for tensor in ctx.saved_tensors)
        sums = _GradientSums(ctx.chunks.features, ctx.chunks.parameters)
        for rows in ctx.parts:
            sums.add(ctx.chunks, ctx.evaluate, rows, grad[rows])
        return None, None, None, sums.features, *sums.parameters


class _GradientSums:
    """Gradients of losses by features, row by row, and by parameters, summed over chunks of rows."""

    def __init__(self, features: Tensor, parameters: tuple[Tensor, ...]):
        self.features = torch.empty_like(features)
        self.parameters = [torch.zeros_like(parameter) for parameter in parameters]

    def add(
        self, chunks: LogitChunks, evaluate: Evaluate, rows: slice, weights: Float[Tensor, " n"] | None
    ) -> tuple[Tensor, Tensor]:
        """Evaluate some rows, add the gradient of their losses (times `weights`), and return rates and losses."""
        h = chunks.features[rows].detach().requires_grad_()
        with torch.enable_grad():
            rate, loss = evaluate(chunks.project(h, rows), rows)
            found = torch.autograd.grad(
                loss, (h, *chunks.parameters), torch.ones_like(loss) if weights is None else weights
            )
        self.features[rows] = found[0]
        for total, part in zip(self.parameters, found[1:], strict=True):
            total += part
        return rate.detach(), loss.detach()
