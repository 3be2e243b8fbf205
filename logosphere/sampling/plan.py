"""Plans: at which time each position stands after each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.denoisers.base import check_block
from logosphere.errors import UserError
from logosphere.processes.base import uniform_grid
from logosphere.shapes import Float

Grid = Callable[[int], Float[Tensor, "n"]]


def cosine_grid(steps: int) -> Float[Tensor, "n"]:
    """t_i = cos(π/2 · i/n) (Shi et al. 2024, MD4): few tokens are revealed while little is known, more later."""
    return torch.sin(math.pi / 2 * uniform_grid(steps))


GRIDS: dict[str, Grid] = {"uniform": uniform_grid, "cosine": cosine_grid}


@dataclass(frozen=True)
class Plan:
    """Times [S + 1, L]: row 0 is all noise, the last row is all data, and no clock ever runs backwards."""

    times: Float[Tensor, "S L"]

    @staticmethod
    def diffuse(length: int, steps: int, grid: Grid = uniform_grid) -> "Plan":
        """All positions share one clock."""
        return Plan.blocks(length, length, steps, grid)

    @staticmethod
    def blocks(length: int, block: int, steps: int, grid: Grid = uniform_grid) -> "Plan":
        """One block after another, each in `steps` steps."""
        if steps < 1:
            raise UserError(f"Sampling needs at least 1 step, not {steps}.")
        check_block(length, block)
        falling = grid(steps)[1:]
        rows = [torch.ones(1, length)]
        for start in range(0, length, block):
            part = torch.ones(steps, length)
            part[:, :start], part[:, start : start + block] = 0.0, falling[:, None]
            rows.append(part)
        return Plan(torch.cat(rows))

    @staticmethod
    def left_to_right(length: int) -> "Plan":
        """One position after another: how autoregressive models write."""
        return Plan.blocks(length, 1, 1)
