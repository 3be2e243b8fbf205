"""What a stepper is: one move of the walk, from times t to times s."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.capabilities import DiscreteTransitions, PositionTimes
from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.rng import Noise
from logosphere.schedules.signal import Schedule
from logosphere.types import Float, Int64, Logits, Positions, Predict, State, Times


@runtime_checkable
class Ask(Protocol):
    """(states, times, positions wanted) -> their predictions, packed as [N, V]: one evaluation of the network.

    `of` asks another network than the walk's own, in the same way.
    """

    def __call__(self, z: State, t: Times, where: Positions, of: Predict | None = None) -> Logits: ...


Tilt = Callable[[Process, Ask, Float[Tensor, "N K"], State, Times, Times, Positions], Float[Tensor, "N K"]]
"""(process, ask, log p(z_s | z_t) of the positions `where`, z, t, s, where) -> a distribution in its place, up to a
constant: how guidance enters a step (sampling/guidance.py)."""

Rule = Callable[[Process, Logits, State, Times, Times, Positions, Noise], State]
"""The simple case: (process, prediction packed for `where`, z, t, s, where, noise) -> z_s. One look, one move."""


class Stepper(ABC):
    """Moves the states of all positions from t to s, and asks the network as often as it likes."""

    time_free: bool = False
    """Does it need a denoiser that does not read the time?"""

    unfiltered: bool = False
    """Does it need predictions as they are, without temperature or filters?"""

    @abstractmethod
    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State: ...

    def check(self, process: Process) -> None:  # noqa: B027 (most steppers fit every process)
        """Refuse a process that this stepper does not fit, with a sentence that says which does."""

    @property
    def adaptive(self) -> bool:
        """Do sequences finish at different steps? Then only those that are not finished are asked about."""
        return False

    def steps(self, length: int, steps: int) -> int:
        """Steps the plan must have when `steps` were asked for."""
        return steps

    def tilted(self, tilt: Tilt) -> "Stepper":
        """The same stepper with other laws of its steps."""
        raise UserError("This sampler cannot be guided step by step; use the ancestral sampler.")

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        """Times of the common clock that suit this stepper: the process's own, unless it takes another path."""
        return process.grid(steps)

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """What the clock of each position shows when the common one shows `rows`."""
        return process.position_times(rows, free, noise) if isinstance(process, PositionTimes) else rows[:, None]

    def session(self) -> "Stepper":
        """A stepper for one walk, free to remember what it has seen; by default itself."""
        return self

    @property
    def asked(self) -> int:
        """Sequences that networks other than the denoiser were asked about in this walk."""
        return 0


@dataclass(frozen=True)
class Ruled(Stepper):
    """Asks once about the undetermined positions whose clocks fall, and moves them by a rule."""

    rule: Rule

    def __call__(self, process: Process, ask: Ask, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        return self.rule(process, ask(z, t, where), z, t, s, where, noise)


def as_stepper(given: "Stepper | Rule") -> Stepper:
    return given if isinstance(given, Stepper) else Ruled(given)


def require_transitions(process: Process) -> DiscreteTransitions:
    """The distributions of steps of a process, or an error."""
    if not isinstance(process, DiscreteTransitions):
        raise UserError("A step can be guided state by state in discrete diffusion only, such as mdlm or udlm.")
    return process


def guides_transitions(process: Process) -> bool:
    """Whether guidance acts on the distribution of a step instead of the prediction."""
    return isinstance(process, DiscreteTransitions) and process.guides_transitions


def masked(process: Process) -> tuple[Schedule, int]:
    """The schedule and the mask of masked diffusion, or a sentence."""
    if not isinstance(process, DiscreteDiffusion) or process.mixing.has_uniform or process.mask is None:
        raise UserError(
            "This sampler reveals masks and needs masked diffusion such as mdlm; use the ancestral sampler here."
        )
    return process.schedule, process.mask


def moving(t: Times, s: Times) -> Positions:
    """Positions whose clocks fall, or stand between the ends: remasking goes on while time stands still."""
    return (t > s) | ((t > 0) & (t < 1))


Level = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]
"""Time -> the share of positions that is hidden then."""


def still_hidden(level: Level, s: Times, among: Positions) -> Int64[Tensor, "B 1"]:
    """ceil((1 - a_s) n): how many of the n positions `among` are left hidden at time s."""
    share = level(torch.where(among, s, 0.0).amax(1, keepdim=True))
    # Times are rounded to float32, so 7/13 of 13 may come out a little above 7 and must not become 8.
    return (share.double() * among.sum(1, keepdim=True) - 1e-4).ceil().long()


def field(where: Positions, values: Float[Tensor, " N"], elsewhere: float) -> Float[Tensor, "B L"]:
    """Packed values back at their positions."""
    return torch.full(where.shape, elsewhere, dtype=values.dtype, device=values.device).masked_scatter(where, values)


def perturbed(scores: Float[Tensor, "B L"], temperature: float, noise: Noise) -> Float[Tensor, "B L"]:
    """scores/τ + Gumbel noise: the n best of them are n draws from softmax(scores/τ) without replacement.

    τ = 0 is the plain order (Kool et al. 2019).
    """
    if temperature == 0:
        return scores
    return scores.double() / temperature - (-noise.uniform(*scores.shape).log()).log()


def best(scores: Float[Tensor, "B L"], count: Int64[Tensor, "B 1"]) -> Positions:
    """The `count` positions of each row with the highest scores."""
    return scores.argsort(dim=1, descending=True, stable=True).argsort(1) < count


def log_probability(out: Logits, drawn: Int64[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log p of the tokens drawn."""
    return out.log_softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
