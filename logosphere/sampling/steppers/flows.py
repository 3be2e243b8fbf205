"""Steppers along flows of the simplex that are sampled without noise."""

from dataclasses import dataclass

from logosphere.errors import UserError
from logosphere.noise import Noise
from logosphere.processes.base import Process
from logosphere.processes.flow import Flow, Transport
from logosphere.sampling.steppers.base import Ask, Stepper
from logosphere.types import State, Times


def transported(process: Process) -> tuple[Flow, Transport]:
    """A flow without noise, or a sentence."""
    if isinstance(process, Flow):
        path: object = process.path
        if isinstance(path, Transport) and path.deterministic:
            return process, path
    raise UserError(
        "This sampler follows a flow without noise: fisher-flow, or dirichlet-flow with churn=0; "
        "use the ancestral sampler here."
    )


@dataclass(frozen=True)
class Downstream(Stepper):
    """Heun's method: the mean of the velocities at both ends of a step; two looks at the network for each but the last.

    The mean is taken in the space around the states, and the point then brought back onto them: of second order too.
    """

    def check(self, process: Process) -> None:
        transported(process)

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        (flow, path), where = transported(process), process.wanted(z, t > s)
        if not where.any():
            return z
        out, ahead = ask(z, t, where), z.clone()
        # Where s = 0 this reads the token off.
        ahead[where] = flow.step(out, z[where], t[where], s[where], noise.at(where))
        again = where & (s > 0)
        if not again.any():
            return ahead
        now, then, here = flow.share(t[again]), flow.share(s[again]), z[again]
        first = path.flow(out[again[where]], here, now)
        second = path.flow(ask(ahead, s, again), ahead[again], then)
        moved = ahead.clone()
        moved[again] = path.onto(here + (then - now)[:, None] * (first + second) / 2)
        return moved
