"""Steppers: how one step of the walk moves the positions whose clocks fall.

A stepper gets the prediction `out` packed for the positions `where`, and returns the new states of all positions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from logosphere.errors import UserError
from logosphere.noise import Noise, categorical
from logosphere.processes.base import Process
from logosphere.processes.interpolating import Interpolating
from logosphere.processes.moves import Move
from logosphere.processes.spherical import Spherical
from logosphere.shapes import Float, Int64
from logosphere.types import Logits, Positions, State, Times

Stepper = Callable[[Process, Logits, State, Times, Times, Positions, Noise], State]


def ancestral(process: Process, out: Logits, z: State, t: Times, s: Times, where: Positions, noise: Noise) -> State:
    """Draw z_s from the process's own backward step; right for every process."""
    z = z.clone()
    z[where] = process.step(out, z[where], t[where], s[where], noise)
    return z


def first_hitting(process: Process, out: Logits, z: State, t: Times, s: Times, where: Positions, noise: Noise) -> State:
    """Reveal one hidden position chosen at random: masked diffusion without any error of time (Zheng et al. 2024)."""
    _masked(process)
    scores = torch.where(where, noise.uniform(*where.shape), -1.0)
    chosen = torch.zeros_like(where).scatter(1, scores.argmax(1, keepdim=True), True) & where
    z = z.clone()
    z[chosen] = categorical(out[chosen[where]], noise.uniform(int(chosen.sum())))
    return z


def likelihood_order(out: Logits, drawn: Int64[torch.Tensor, "N"]) -> Float[torch.Tensor, "N"]:
    """The probability of the token drawn (LLaDA's low-confidence remasking)."""
    return out.log_softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)


def entropy_order(out: Logits, drawn: Int64[torch.Tensor, "N"]) -> Float[torch.Tensor, "N"]:
    """How little doubt there is at a position, whatever was drawn there (Dream's entropy order)."""
    log_p = out.log_softmax(-1).clamp_min(-CLIPPED)
    return (log_p.exp() * log_p).sum(-1)


CLIPPED = 100.0
"""Log-probabilities below -100 add nothing to an entropy, but 0 · (-inf) would spoil it."""


@dataclass(frozen=True)
class Ordered:
    """Reveal the best positions first, as many in each step as the schedule asks for.

    Good text in few steps, but not a draw from the model: it prefers what is likely.
    """

    score: Callable[[Logits, Int64[torch.Tensor, "N"]], Float[torch.Tensor, "N"]] = likelihood_order

    def __call__(
        self, process: Process, out: Logits, z: State, t: Times, s: Times, where: Positions, noise: Noise
    ) -> State:
        schedule = _masked(process).schedule
        drawn = categorical(out, noise.uniform(len(out)))
        worst = torch.full(where.shape, -torch.inf, dtype=out.dtype, device=out.device)
        scores = worst.masked_scatter(where, self.score(out, drawn))
        moving = t > s
        level = schedule.noise(torch.where(moving, s, 0.0).amax(1, keepdim=True))
        # Times are rounded to float32, so 7/13 of 13 may come out a little above 7 and must not become 8.
        stay_hidden = (level.double() * moving.sum(1, keepdim=True) - 1e-4).ceil().long()
        reveal = (where.sum(1, keepdim=True) - stay_hidden).clamp_min(0)
        rank = scores.argsort(1, descending=True).argsort(1)
        return torch.where(where & (rank < reveal), torch.zeros_like(z).masked_scatter(where, drawn), z)


@dataclass(frozen=True)
class Moved:
    """On the sphere: step by another move than the process's own (processes.moves)."""

    move: Move

    def __call__(
        self, process: Process, out: Logits, z: State, t: Times, s: Times, where: Positions, noise: Noise
    ) -> State:
        if not isinstance(process, Spherical):
            raise UserError(
                "This sampler moves on a sphere and needs rdlm or rdlm-heat; use the ancestral sampler here."
            )
        z = z.clone()
        z[where] = process.moved(self.move, out, z[where], t[where], s[where], noise)
        return z


def _masked(process: Process) -> Interpolating:
    if not isinstance(process, Interpolating) or process.law.spreads:
        raise UserError("This sampler reveals masks and needs masked diffusion; use the ancestral sampler here.")
    return process
