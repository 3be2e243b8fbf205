"""Bounds of several draws, and of several processes of which one is drawn for each sequence, as one bound."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from logosphere.types import Bound, Float


def averaged(parts: list[Bound]) -> Bound:
    """The mean of draws of one bound."""
    if len(parts) == 1:
        return parts[0]
    terms = {name: torch.stack([getattr(part, name) for part in parts]).mean(0) for name in TERMS}
    return Bound(**terms, count=parts[0].count, kind=parts[0].kind)


def leave_one_out(first: Bound, second: Bound) -> Bound:
    """The mean of two draws that share their times, with a gradient for the noise they were drawn from.

    ∇E[f] = E[∇f] + E[f ∇log q]; each draw's f is held against the other's, which leaves the mean of the second term as
    it is and takes out most of its variance (Kool et al. 2019, RLOO): ½ (f₁ - f₂) (∇log q₁ - ∇log q₂).
    """
    mean = averaged([first, second])
    if first.log_q is None or second.log_q is None:
        return mean
    better = (first.loss - second.loss).detach() * (first.log_q - second.log_q) / 2
    return replace(mean, loss=mean.loss + better - better.detach())  # a gradient, not a value


TERMS = ("recon", "diffusion", "prior", "loss")


def mixed(first: list[list[Bound]], second: list[list[Bound]]) -> Bound:
    """-log Σ_c π_c exp(-B_c) for equally likely processes with bounds B_c, each of which was drawn in two lots.

    Estimates put for B_c would make it too small (-log Σ exp(-·) is concave). But for any q

        -log Σ_c π_c exp(-B_c) ≤ Σ_c q_c (B_c + log q_c / π_c)

    with equality for q_c ∝ π_c exp(-B_c). So q is taken from one lot of the draws and B from the other, and the other
    way round: an unbiased estimate of a bound, as the lots are drawn independently and each over the whole time.
    log q_c / π_c counts as prior.
    """
    return averaged([_weighted(_shares(first), second), _weighted(_shares(second), first)])


def _shares(branches: list[list[Bound]]) -> Float[Tensor, "C B"]:
    """log q: that of estimated bounds, drawn together by as much as their differences are noise (James and Stein)."""
    totals = torch.stack([torch.stack([part.total for part in parts]) for parts in branches])  # [C, draws, B]
    draws, means = totals.shape[1], totals.mean(1)
    if draws < 2:
        return torch.full_like(means, -math.log(len(means)))
    noise = totals.var(1).mean(0) / draws
    trust = (1 - noise / means.var(0).clamp_min(1e-12)).clamp_min(0)
    return (-trust * means).log_softmax(0)


def _weighted(log_q: Float[Tensor, "C B"], branches: list[list[Bound]]) -> Bound:
    parts, q = [averaged(draws) for draws in branches], log_q.exp()
    terms = {name: (q * torch.stack([getattr(part, name) for part in parts])).sum(0) for name in TERMS}
    terms["prior"] = terms["prior"] + (q * (log_q + math.log(len(parts)))).sum(0)
    return Bound(**terms, count=parts[0].count, kind=parts[0].kind)
