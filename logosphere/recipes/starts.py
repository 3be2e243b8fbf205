"""Where bridges on the sphere begin: points, and how likely each of them is over time."""

import math

import torch
from torch import Tensor

from logosphere.errors import UserError, suggest
from logosphere.processes.spherical.published import UniformProbability
from logosphere.processes.spherical.times import rdlm_time


def shares(uniform: UniformProbability, times: Tensor) -> Tensor:
    """The shares [N, 2] of mask and uniform at tabulated times of the bridge."""
    share = uniform(rdlm_time("geometric", times.double()))
    return torch.stack([1 - share, share], 1)


def starts(start: str | float, tokens: int) -> tuple[list[Tensor], UniformProbability | None]:
    """The points where bridges begin, and the share of the uniform one over time unless shares are constant.

    The paper's mixture paths begin at the uniform point with the probability 1 before the threshold and 0 after it
    (step), 1 - t (linear), or 1 - √t (sqrt), in its own time t.
    """
    both = [start_point("mask", tokens), start_point("uniform", tokens)]
    if start == "mask+uniform":
        return both, None
    kind, _, threshold = str(start).partition(":")
    if kind not in ("step", "linear", "sqrt"):
        return [start_point(start, tokens)], None
    try:
        switch = float(threshold) if kind == "step" else 0.0
    except ValueError:
        raise UserError(f"A step path needs its time, for example step:0.35, not '{start}'.") from None

    def uniform(t: Tensor) -> Tensor:
        return {"step": (t < switch).double(), "linear": 1 - t, "sqrt": 1 - t.sqrt()}[kind]

    return both, uniform


def start_point(start: str | float, tokens: int) -> Tensor:
    """Where bridges begin: 'mask', 'uniform' (the centre of the orthant, mask included), or a share λ of the tokens.

    λ puts √(λ/V) on every token and √(1 - λ) on the mask.
    """
    if isinstance(start, str):
        named = {"mask": 0.0, "uniform": tokens / (tokens + 1)}
        if start not in named:
            known = [*named, "mask+uniform", "step", "linear", "sqrt"]
            raise UserError(f"There is no start '{start}'.{suggest(start, known)}")
        start = named[start]
    if not 0 <= start <= 1:
        raise UserError(
            f"A start between the mask (0) and the tokens' centre (1) is a number from 0 to 1, not {start}."
        )
    point = torch.full((tokens + 1,), math.sqrt(start / tokens))
    point[-1] = math.sqrt(1 - start)
    return point
