"""Exact steppers: draws from the model itself, up to the error of finite steps or without any."""

from dataclasses import dataclass

import torch

from logosphere.processes.base import Process
from logosphere.rng import Noise, categorical
from logosphere.sampling.steppers.base import Ask, Stepper, Tilt, masked, require_transitions
from logosphere.types import State, Times


@dataclass(frozen=True)
class Ancestral(Stepper):
    """Draw z_s from the process's own backward step, right for every process; or from laws tilted by guidance.

    For a predicted token this is also the analytic sampler (Tweedie τ-leaping; Lou et al. 2024, SEDD eq. 19): with the
    score s_y = q(y | x̂)/q(z | x̂), (e^{-dQ} s)_y (e^{dQ})(y → z) is the posterior q(y | z, x̂). For raw scores, whose
    mass counts there, see scores.py.
    """

    tilts: tuple[Tilt, ...] = ()

    def tilted(self, tilt: Tilt) -> Stepper:
        return Ancestral((*self.tilts, tilt))

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, moved = ask(z, t, where), z.clone()
        if not self.tilts:
            moved[where] = process.step(out, z[where], t[where], s[where], noise.for_positions(where))
            return moved
        law = require_transitions(process).log_transition(out, z[where], t[where], s[where])
        for tilt in self.tilts:
            law = tilt(process, ask, law, z, t, s, where)
        moved[where] = categorical(law, noise.for_positions(where).uniform(len(law)))
        return moved


ancestral = Ancestral()


@dataclass(frozen=True)
class FirstHitting(Stepper):
    """Reveal one hidden position chosen at random: masked diffusion without any error of time (Zheng et al. 2024)."""

    time_free = True

    def check(self, process: Process) -> None:
        masked(process)

    def steps(self, length: int, steps: int) -> int:
        return length

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out = ask(z, t, where)
        scores = torch.where(where, noise.uniform(*where.shape), -1.0)
        chosen = torch.zeros_like(where).scatter(1, scores.argmax(1, keepdim=True), True) & where
        z = z.clone()
        z[chosen] = categorical(out[chosen[where]], noise.for_positions(chosen).uniform(int(chosen.sum())))
        return z


first_hitting = FirstHitting()
