"""Steppers on the sphere."""

from dataclasses import dataclass

from torch import Tensor

from logosphere.errors import UserError
from logosphere.noise import Noise
from logosphere.processes.base import Process
from logosphere.processes.moves import Move
from logosphere.processes.spherical import Spherical
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.shapes import Float
from logosphere.types import Positions, State, Times


@dataclass(frozen=True)
class Moved(Stepper):
    """Moves positions together, by one of the moves of processes.moves, whatever path the process takes by itself."""

    move: Move

    def check(self, process: Process) -> None:
        _spherical(process)

    def grid(self, process: Process, steps: int) -> Float[Tensor, "n"]:
        return _spherical(process).travel_grid(steps)

    def clocks(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, "S #B M"]:
        return _spherical(process).travel_clocks(rows, free, noise)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, where = _spherical(process), process.wanted(z, t > s)
        if not where.any():
            return z
        moved = z.clone()
        moved[where] = path.moved(self.move, ask(z, t, where), z[where], t[where], s[where], noise.at(where))
        return moved


def _spherical(process: Process) -> Spherical:
    if not isinstance(process, Spherical):
        raise UserError("This sampler moves on a sphere and needs rdlm or rdlm-heat; use the ancestral sampler here.")
    return process
