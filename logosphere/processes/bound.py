"""The bound of a process, its evaluation over large vocabularies, and bounds of several draws or mixture components."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from logosphere.processes.base import Encoded, ForwardSample, Process, check_prediction, mark_shared_time
from logosphere.processes.capabilities import AutoencoderStage, LearnedCodec, LearnedForward, OnlineStatistics
from logosphere.rng import Noise
from logosphere.types import (
    Batch,
    Bound,
    ChunkedPredict,
    Float,
    Indices,
    LogitChunks,
    Logits,
    Positions,
    Predict,
    Where,
    pack,
)

CHUNK = 6 << 20
"""Logits computed at a time where rows can be computed in chunks: 24 MiB of float32.

A few arrays of this size are alive at once, and glibc's malloc keeps freed blocks of up to 32 MiB, so it should be
small; but the gradient of the head, as large as its weights, is added to once for every chunk.
"""


class _Draw(NamedTuple):
    """One draw of the states of a batch, before the network is evaluated."""

    encoded: Encoded
    free: Positions
    sample: ForwardSample
    needs: Positions
    """Positions that need a prediction."""
    everywhere: bool
    """Whether these are all positions, as far as the host knows."""


def bound(process: Process, predict: Predict, batch: Batch, w: Float[Tensor, "B J"], noise: Noise) -> Bound:
    """An unbiased draw of the bound (Sohl-Dickstein et al. 2015; continuous time: Kingma et al. 2021, VDM):

        -log p(x) <= E[-log p(x | z_recon)] + ∫ E[elbo_rate(t)] dt + KL(q(z_1 | x) || p(z_1))

    The time integral and the reconstruction are both averages over the quantile w, so one evaluation serves them.
    """
    return bounds(process, predict, batch, [w], noise)[0]


def bounds(
    process: Process, predict: Predict, batch: Batch, quantiles: Sequence[Float[Tensor, "B J"]], noise: Noise
) -> list[Bound]:
    """Draws of the bound at these quantiles. All states are drawn first, so that the device is read once for all."""
    draws = [_draw(process, batch, w, noise) for w in quantiles]
    found = []
    for draw, where in zip(draws, _select_positions(process, predict, draws), strict=True):
        rate, loss = _evaluate(process, predict, draw, where)
        found.append(_sum_terms(process, batch, draw, where, rate, loss, noise))
    return found


def _draw(process: Process, batch: Batch, w: Float[Tensor, "B J"], noise: Noise) -> _Draw:
    encoded = process.encode(batch, noise)
    free = process.codec.expand_to_states(batch.free)
    z, t, weight = process.sample_zt(encoded.u, w, free, noise)
    if w.shape[1] == 1 and batch.all_free and process.shares_times:
        t = mark_shared_time(t)
    needs = process.needs_prediction(z, free)
    return _Draw(encoded, free, ForwardSample(z, t, weight), needs, batch.all_free and needs is free)


def _select_positions(process: Process, predict: Predict, draws: Sequence[_Draw]) -> Sequence[Indices | None]:
    """The positions at which each draw is evaluated: None for all, or their indices.

    A device has to be read for the number of indices. One reading serves all draws: with the numbers known, a stable
    sort of each field gives its indices without another.
    """
    needs = [draw.needs for draw in draws]
    if isinstance(process, AutoencoderStage) and not process.denoiser_active:
        empty = torch.zeros(0, dtype=torch.long, device=needs[0].device)
        return [(empty, empty)] * len(draws)
    everywhere = all(draw.everywhere for draw in draws) or (process.static_shapes and not _observes(process))
    if everywhere and isinstance(predict, ChunkedPredict):
        return [None] * len(draws)
    if len(draws) == 1 or needs[0].device.type == "cpu":
        return [(index[0], index[1]) for index in (field.nonzero(as_tuple=True) for field in needs)]
    counts = torch.stack([field.sum() for field in needs]).tolist()
    order = [(~field).flatten().byte().argsort(stable=True)[:count] for field, count in zip(needs, counts, strict=True)]
    return [(index // field.shape[1], index % field.shape[1]) for index, field in zip(order, needs, strict=True)]


def _observes(process: Process) -> bool:
    """Whether the process measures statistics of what it evaluates, to which further positions would be added."""
    return process.training and isinstance(process, OnlineStatistics) and len(process.accumulators()) > 0


def _sum_terms(
    process: Process, batch: Batch, draw: _Draw, where: Indices | None, rate: Tensor, loss: Tensor, noise: Noise
) -> Bound:
    """The bound of a draw of states, given rate and loss at these positions."""
    (u, recon, recon_loss), (z, t, weight), free = draw.encoded, draw.sample, draw.free
    last = pack(t, where) <= process.recon_time

    def per_sequence(values: Float[Tensor, " N"]) -> Float[Tensor, " B"]:
        if where is None:
            return values.view(free.shape).sum(1)
        return torch.zeros(free.shape, dtype=values.dtype, device=values.device).index_put_(where, values).sum(1)

    weights = pack(weight, where)
    diffusion = per_sequence(torch.where(last, 0, rate) * weights)
    total_loss = recon_loss + per_sequence(loss)
    if process.training and isinstance(process, LearnedCodec):
        total_loss = total_loss + process.auxiliary_loss(batch, u, t, diffusion.detach(), noise)
    return Bound(
        recon=recon + per_sequence(torch.where(last, rate, 0) * weights),
        diffusion=diffusion,
        prior=(process.prior_kl(u) * free).sum(1),
        loss=total_loss,
        count=batch.scored_tokens,
        kind=process.kind,
        log_q=process.log_q(u, z, t, free) if isinstance(process, LearnedForward) else None,
    )


def _evaluate(
    process: Process, predict: Predict, draw: _Draw, where: Indices | None
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The rate of the bound and the loss at the selected positions; 0 at those that need no prediction.

    For large vocabularies logits are computed a few rows at a time, so that neither they nor their softmax
    are in memory as a whole.
    """
    u, (z, t, weight) = draw.encoded.u, draw.sample
    x, picked, times, weights = (pack(field, where) for field in (u, z, t, weight))
    counted = draw.needs.flatten() if where is None and not draw.everywhere else None
    if counted is not None:  # values that no formula turns into an infinite number
        times = torch.where(counted, times, 1.0)
    asked: Where = where if isinstance(predict, ChunkedPredict) else draw.needs

    def evaluate(out: Logits, rows: slice) -> tuple[Tensor, Tensor]:
        with torch.autocast(z.device.type, enabled=False):  # half precision is for networks, not for divergences
            if counted is not None:
                out = torch.where(counted[rows, None], out, 0.0)
            rate, loss = process.rate_and_loss(out, x[rows], picked[rows], times[rows], weights[rows])
        if counted is None:
            return rate, loss
        return torch.where(counted[rows], rate, 0.0), torch.where(counted[rows], loss, 0.0)

    if isinstance(process, AutoencoderStage) and not process.denoiser_active:
        return evaluate(torch.zeros(0, process.codec.num_classes, device=z.device), slice(None))
    count, size = len(times), max(1, CHUNK // process.codec.num_classes)
    if count <= size or not process.chunkable or not isinstance(predict, ChunkedPredict):
        out = predict(z, t, context=u, where=asked)
        out = pack(out, None) if asked is None else out
        check_prediction(process, out, count)
        return evaluate(out, slice(None))
    chunks = predict.logit_chunks(z, t, context=u, where=where)
    learned = any(p.requires_grad for p in process.parameters())
    return evaluate_chunks(chunks, evaluate, size, recompute=learned or z.device.type != "cpu")


# ---- large vocabularies --------------------------------------------------------------------------------------

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


# ---- several draws and components ----------------------------------------------------------------------------

TERMS = ("recon", "diffusion", "prior", "loss")


def mean_bound(draws: list[Bound]) -> Bound:
    """The mean of draws of one bound."""
    if len(draws) == 1:
        return draws[0]
    terms = {name: torch.stack([getattr(draw, name) for draw in draws]).mean(0) for name in TERMS}
    return Bound(**terms, count=draws[0].count, kind=draws[0].kind)


def leave_one_out_bound(first: Bound, second: Bound) -> Bound:
    """The mean of two draws at the same times, with a gradient for the forward process they were drawn from.

    ∇E[f] = E[∇f] + E[f ∇log q]. The baseline of each draw's f is that of the other, which leaves the mean of the second
    term unchanged and removes most of its variance (Kool et al. 2019, RLOO): ½ (f₁ - f₂) (∇log q₁ - ∇log q₂).
    """
    mean = mean_bound([first, second])
    if first.log_q is None or second.log_q is None:
        return mean
    term = (first.loss - second.loss).detach() * (first.log_q - second.log_q) / 2
    return replace(mean, loss=mean.loss + term - term.detach())  # a gradient, not a value


def mixture_bound(first: list[list[Bound]], second: list[list[Bound]]) -> Bound:
    """-log Σ_c π_c exp(-B_c) for equally likely components with bounds B_c, each drawn in two independent groups.

    Estimates in place of B_c would make it too small (-log Σ exp(-·) is concave). But for any q

        -log Σ_c π_c exp(-B_c) ≤ Σ_c q_c (B_c + log q_c / π_c)

    with equality for q_c ∝ π_c exp(-B_c). So q is estimated from one group of draws and B from the other, and vice
    versa: an unbiased estimate of a bound, because the groups are independent and each covers the whole time.
    log q_c / π_c counts as prior.
    """
    return mean_bound([_weighted_bound(_log_weights(first), second), _weighted_bound(_log_weights(second), first)])


def _log_weights(components: list[list[Bound]]) -> Float[Tensor, "C B"]:
    """log q of estimated bounds, shrunk by the fraction of their differences that is noise (James and Stein)."""
    totals = torch.stack([torch.stack([draw.total for draw in draws]) for draws in components])  # [C, draws, B]
    draws, means = totals.shape[1], totals.mean(1)
    if draws < 2:
        return torch.full_like(means, -math.log(len(means)))
    noise = totals.var(1).mean(0) / draws
    trust = (1 - noise / means.var(0).clamp_min(1e-12)).clamp_min(0)
    return (-trust * means).log_softmax(0)


def _weighted_bound(log_q: Float[Tensor, "C B"], components: list[list[Bound]]) -> Bound:
    means, q = [mean_bound(draws) for draws in components], log_q.exp()
    terms = {name: (q * torch.stack([getattr(mean, name) for mean in means])).sum(0) for name in TERMS}
    terms["prior"] = terms["prior"] + (q * (log_q + math.log(len(means)))).sum(0)
    return Bound(**terms, count=means[0].count, kind=means[0].kind)
