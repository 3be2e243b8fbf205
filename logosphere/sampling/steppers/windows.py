"""Steppers made of steppers: one inside a window of time and another outside, or with a greedy end."""

from dataclasses import dataclass, field

from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.rng import Noise
from logosphere.sampling.steppers.ancestral import ancestral
from logosphere.sampling.steppers.base import Ask, Stepper, Tilt, moving
from logosphere.types import Float, Logits, Positions, Predict, State, Times

ROUNDING = 1e-6
"""Times are float32."""


@dataclass(frozen=True)
class Windowed(Stepper):
    """Steps within first >= t >= s >= last are taken by `inside`, the others by `outside`."""

    inside: Stepper
    first: float
    last: float = 0.0
    outside: Stepper = field(default_factory=lambda: ancestral)

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first <= 1:
            raise UserError(f"A window of time must lie within 1 >= first >= last >= 0, not {self.first}, {self.last}.")

    def session(self) -> Stepper:
        return Windowed(self.inside.session(), self.first, self.last, self.outside.session())

    def check(self, process: Process) -> None:
        self.inside.check(process)
        self.outside.check(process)

    def tilted(self, tilt: Tilt) -> Stepper:
        return Windowed(self.inside.tilted(tilt), self.first, self.last, self.outside.tilted(tilt))

    @property
    def asked(self) -> int:
        return self.inside.asked + self.outside.asked

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        active = moving(t, s)
        if not active.any():
            return z
        within = float(t[active].max()) <= self.first + ROUNDING and float(s[active].max()) >= self.last - ROUNDING
        return (self.inside if within else self.outside)(process, ask, z, t, s, noise)


@dataclass(frozen=True)
class GreedyEnd(Stepper):
    """In the last step of each position the likeliest token instead of a draw: cleaner, and less varied."""

    inner: Stepper

    def session(self) -> Stepper:
        return GreedyEnd(self.inner.session())

    def check(self, process: Process) -> None:
        self.inner.check(process)

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        return self.inner.grid(process, steps)

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        return self.inner.position_times(process, rows, free, noise)

    @property
    def adaptive(self) -> bool:
        return self.inner.adaptive

    def steps(self, length: int, steps: int) -> int:
        return self.inner.steps(length, steps)

    @property
    def asked(self) -> int:
        return self.inner.asked

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        ends = bool((s == 0)[t > s].all())
        return self.inner(process, _likeliest(ask) if ends else ask, z, t, s, noise)


def _likeliest(ask: Ask) -> Ask:
    """All doubt taken from a prediction."""

    def answer(z: State, t: Times, where: Positions, of: Predict | None = None) -> Logits:
        out = ask(z, t, where, of)
        return out.new_full(out.shape, -float("inf")).scatter(-1, out.argmax(-1, keepdim=True), 0.0)

    return answer
