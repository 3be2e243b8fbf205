"""The one bound that all processes share, and bounds of several draws or mixture components as one bound."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from logosphere.processes.base import ForwardSample, Process
from logosphere.processes.capabilities import AutoencoderStage, LearnedCodec, LearnedForward
from logosphere.rng import Noise
from logosphere.types import Batch, Bound, ChunkedPredict, Float, Logits, Positions, Predict, State

CHUNK = 9 << 20
"""Logits computed at a time where rows can be computed in chunks: 36 MiB of float32.

A few arrays of this size are alive at once, so it should be small; but blocks of up to 32 MiB may be kept by glibc's
malloc when they are freed (its largest mmap threshold), while larger ones are returned to the system.
"""


def bound(process: Process, predict: Predict, batch: Batch, w: Float[Tensor, "B J"], noise: Noise) -> Bound:
    """An unbiased draw of the bound (Sohl-Dickstein et al. 2015; continuous time: Kingma et al. 2021, VDM):

        -log p(x) <= E[-log p(x | z_recon)] + ∫ E[elbo_rate(t)] dt + KL(q(z_1 | x) || p(z_1))

    The time integral and the reconstruction are both averages over the quantile w, so one evaluation serves them.
    """
    u, recon, recon_loss = process.encode(batch, noise)
    free = process.codec.expand_to_states(batch.free)
    z, t, weight = process.sample_zt(u, w, free, noise)
    where = process.needs_prediction(z, free)
    rate, loss = _evaluate(process, predict, u, ForwardSample(z, t, weight), where)
    last = t[where] <= process.recon_time

    def per_sequence(values: Float[Tensor, " N"]) -> Float[Tensor, " B"]:
        field = torch.zeros(where.shape, dtype=values.dtype, device=values.device)
        return field.masked_scatter(where, values).sum(1)

    diffusion = per_sequence(torch.where(last, 0, rate) * weight[where])
    total_loss = recon_loss + per_sequence(loss)
    if process.training and isinstance(process, LearnedCodec):
        total_loss = total_loss + process.auxiliary_loss(batch, u, t, diffusion.detach(), noise)
    return Bound(
        recon=recon + per_sequence(torch.where(last, rate, 0) * weight[where]),
        diffusion=diffusion,
        prior=(process.prior_kl(u) * free).sum(1),
        loss=total_loss,
        count=batch.scored_tokens,
        kind=process.kind,
        log_q=process.log_q(u, z, t, free) if isinstance(process, LearnedForward) else None,
    )


def _evaluate(
    process: Process, predict: Predict, u: State, sample: ForwardSample, where: Positions
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The rate of the bound and the loss at the positions that need a prediction.

    For large vocabularies logits are computed a few rows at a time, and again for the gradient, so that neither they
    nor their softmax are in memory as a whole.
    """
    z, t, weight = sample
    x, picked, times, weights = u[where], z[where], t[where], weight[where]

    def evaluate(out: Logits, rows: slice) -> tuple[Tensor, Tensor]:
        with torch.autocast(z.device.type, enabled=False):  # half precision is for networks, not for divergences
            rate = process.elbo_rate(out, x[rows], picked[rows], times[rows])
            return rate, process.loss(rate, out, x[rows], picked[rows], times[rows], weights[rows])

    count, size = len(times), max(1, CHUNK // process.codec.num_classes)
    if isinstance(process, AutoencoderStage) and not process.denoiser_active:
        return evaluate(torch.zeros(0, process.codec.num_classes, device=z.device), slice(None))
    if count <= size or not process.chunkable or not isinstance(predict, ChunkedPredict):
        return evaluate(predict(z, t, context=u, where=where), slice(None))
    chunk = predict.logit_chunks(z, t, context=u, where=where)
    found = []
    for start in range(0, count, size):
        rows = slice(start, start + size)
        found.append(checkpoint(lambda rows: evaluate(chunk(rows), rows), rows, use_reentrant=False))
    rates, losses = zip(*found, strict=True)
    return torch.cat(rates), torch.cat(losses)


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
