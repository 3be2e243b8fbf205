"""Steppers on the sphere."""

from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.noise import Noise
from logosphere.processes.base import Process
from logosphere.processes.moves import Move
from logosphere.processes.spherical import Spherical
from logosphere.types import Logits, Positions, State, Times


@dataclass(frozen=True)
class Moved:
    """A rule: step by another move than the process's own (processes.moves)."""

    move: Move

    def __call__(
        self, process: Process, out: Logits, z: State, t: Times, s: Times, where: Positions, noise: Noise
    ) -> State:
        if not isinstance(process, Spherical):
            raise UserError(
                "This sampler moves on a sphere and needs rdlm or rdlm-heat; use the ancestral sampler here."
            )
        z = z.clone()
        z[where] = process.moved(self.move, out, z[where], t[where], s[where], noise.at(where))
        return z
