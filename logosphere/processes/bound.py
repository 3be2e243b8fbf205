"""Bounds of several draws, or of several mixture components, as one bound."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from logosphere.types import Bound, Float

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
