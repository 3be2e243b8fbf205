"""Plans: at which time each position stands after each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from logosphere.errors import UserError, suggest
from logosphere.networks.base import check_block
from logosphere.processes.base import uniform_grid
from logosphere.types import Float

Grid = Callable[[int], Float[Tensor, " n"]]


def cosine_grid(steps: int) -> Float[Tensor, " n"]:
    """t_i = cos(π/2 · i/n) (Shi et al. 2024, MD4): few tokens are revealed while little is known, more later."""
    return torch.sin(math.pi / 2 * uniform_grid(steps))


@dataclass(frozen=True)
class Loop:
    """Falls to the time `level`, stands there from `on` to `off` of the way, then falls to 0 (Wang et al. 2025).

    Remasking goes on while time stands still. The published path (ReMDM-loop) is on = 0.55, off = 0.05, and the time at
    which a tenth is masked.
    """

    level: float
    on: float = 0.55
    off: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.off < self.on < 1 or not 0 < self.level < 1:
            raise UserError("A loop needs 1 > on > off > 0 and a level between 0 and 1.")

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        left = uniform_grid(steps)
        before = self.level + (1 - self.level) * (left - self.on) / (1 - self.on)
        return torch.where(left > self.on, before, self.level * (left / self.off).clamp_max(1.0))


@dataclass(frozen=True)
class StandingEnd:
    """Equal steps to `level`, where time stands for a share of the steps; the very last step goes to 0."""

    level: float
    share: float

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        if steps == 1:
            return uniform_grid(1)
        standing = min(int(steps * self.share), steps - 2)
        falling = 1 - (1 - self.level) * (1 - uniform_grid(steps - standing - 1))  # from 1 to the level
        return torch.cat([falling, torch.full((standing,), self.level), torch.zeros(1)])


@dataclass(frozen=True)
class FinalStep:
    """A grid of one step less that ends at `eps`, and a last step from there to 0, which removes what noise is left."""

    eps: float
    inner: Grid = uniform_grid

    def __call__(self, steps: int) -> Float[Tensor, " n"]:
        if steps == 1:
            return uniform_grid(1)
        return torch.cat([self.eps + (1 - self.eps) * self.inner(steps - 1), torch.zeros(1)])


GRIDS: dict[str, Grid] = {"uniform": uniform_grid, "cosine": cosine_grid}


def find_grid(grid: Grid | str | None) -> Grid | None:
    """A grid, by its name or as it is; None stays None."""
    if not isinstance(grid, str):
        return grid
    if grid not in GRIDS:
        raise UserError(f"There is no grid '{grid}'.{suggest(grid, GRIDS)}")
    return GRIDS[grid]


@dataclass(frozen=True)
class Plan:
    """Times [S + 1, L]: row 0 is all noise, the last row is all data, and no clock ever runs backwards.

    A clock may stand: at 1 before its block begins, at 0 when it is done, in between while tokens are hidden and
    written again.
    """

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
