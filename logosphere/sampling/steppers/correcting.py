"""Self-correction for processes whose tokens may change at any time (von Rütte et al. 2025, GIDD, section 5.4)."""

from dataclasses import dataclass

import torch

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper, best, field, log_probability, moving
from logosphere.types import State, Times


@dataclass(frozen=True)
class SelfCorrecting(Stepper):
    """While time stands still near 0: draw all tokens sharply, and change the one that is surest of a change.

    It climbs to what the model likes best; the result is not a draw from the model.
    """

    temperature: float = 0.1

    def check(self, process: Process) -> None:
        _spreading(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        path, active = _spreading(process), moving(t, s)
        if not active.any():
            return z
        out = path.add_evidence(path.context_probs(ask(z, t, active), z[active], t[active]).log(), z[active], t[active])
        drawn = categorical(out / self.temperature, noise.for_positions(active).uniform(len(out)))
        written = z.masked_scatter(active, drawn)
        surety = torch.where(written != z, field(active, log_probability(out, drawn), -torch.inf), -torch.inf)
        changed = best(surety, torch.ones_like(z[:, :1])) & (written != z)
        return torch.where(changed, written, z)


def _spreading(process: Process) -> DiscreteDiffusion:
    if not isinstance(process, DiscreteDiffusion) or not process.mixing.has_uniform:
        raise UserError("Self-correction needs tokens that may change, as in udlm or gidd; use remdm or star here.")
    return process
