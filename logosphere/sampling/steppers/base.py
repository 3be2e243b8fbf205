"""The interface of a stepper, which makes one transition of the sampling loop, and the steppers for every process."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from logosphere.errors import UserError
from logosphere.processes.base import Process
from logosphere.processes.capabilities import DiscreteTransitions, PositionTimes
from logosphere.rng import Noise, categorical
from logosphere.types import Float, Int64, Logits, Positions, Predict, State, Times

TIME_TOLERANCE = 1e-6
"""Times are float32."""
C = TypeVar("C")


@runtime_checkable
class Evaluate(Protocol):
    """(states, times, positions) -> predictions at these positions, packed as [N, V]: one evaluation of the network.

    `denoiser` evaluates another network than that of the sampling loop, in the same way.
    """

    def __call__(self, z: State, t: Times, where: Positions, denoiser: Predict | None = None) -> Logits: ...


PredictionUse = Literal["draws", "means", "order"]
"""What a stepper does with predictions, under a constraint on whole texts (sampling/structured): it draws tokens or
moves towards them; averages over tokens; or draws tokens and orders positions by their probabilities."""


class JointDraws(ABC):
    """Evaluations that also draw the tokens of all positions together (sampling/structured/stepper.py)."""

    @abstractmethod
    def __call__(self, z: State, t: Times, where: Positions, denoiser: Predict | None = None) -> Logits: ...

    @abstractmethod
    def draw(self, out: Logits, where: Positions, noise: Noise) -> Int64[Tensor, " N"]:
        """The tokens at these positions in the joint draw of the last evaluation."""


def draw_tokens(evaluate: Evaluate, out: Logits, where: Positions, noise: Noise) -> Int64[Tensor, " N"]:
    """A token for each position of a prediction: independently, or from the joint draw under a constraint."""
    if isinstance(evaluate, JointDraws):
        return evaluate.draw(out, where, noise)
    return categorical(out, noise.for_positions(where).uniform(len(out)))


TransitionGuide = Callable[
    [Process, Evaluate, Float[Tensor, "N K"], State, Times, Times, Positions], Float[Tensor, "N K"]
]
"""(process, evaluate, log p(z_s | z_t) at the positions `where`, z, t, s, where) -> the logits of a guided transition
distribution (sampling/guidance.py)."""

Rule = Callable[[Process, Logits, State, Times, Times, Positions, Noise], State]
"""The simple case: (process, prediction packed for `where`, z, t, s, where, noise) -> z_s, from one evaluation."""


@dataclass(frozen=True)
class Requirement:
    """What a sampler needs of a process, and how messages describe it."""

    description: str
    is_met: Callable[[Process], bool] = lambda process: True

    def error(self, subject: str, model: str) -> UserError:
        """The error for a model that does not meet the requirement."""
        return UserError(f"{subject} needs {self.description}; this model is {model}. Use ancestral.")


ANY = Requirement("any system")
TRANSITIONS = Requirement(
    "discrete diffusion such as mdlm or udlm", lambda process: isinstance(process, DiscreteTransitions)
)


def require(process: Process, kind: type[C], needs: Requirement) -> C:
    """The process as an instance of a capability or of a family's class; an error if it is none."""
    if not needs.is_met(process) or not isinstance(process, kind):
        raise needs.error("This sampler", type(process).__name__)
    return process


class Stepper(ABC):
    """Moves the states of all positions from times t to times s, with any number of evaluations of the network."""

    needs: Requirement = ANY
    time_free: bool = False
    """Whether it needs a denoiser without time conditioning."""
    unfiltered: bool = False
    """Whether it needs predictions without temperature and filters."""
    keeps_tokens: bool = False
    """Whether masked diffusion never changes a token once it is unmasked, so that it can be shown as final."""

    @abstractmethod
    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State: ...

    def supports(self, process: Process) -> bool:
        """Whether this stepper can sample from a process."""
        return self.needs.is_met(process)

    def check(self, process: Process) -> None:
        """Raise UserError for a process that is not supported."""
        if not self.supports(process):
            raise self.needs.error(f"The stepper {type(self).__name__}", type(process).__name__)

    @property
    def adaptive(self) -> bool:
        """Whether sequences finish at different steps. Then only unfinished ones are evaluated."""
        return False

    @property
    def prediction_use(self) -> PredictionUse:
        """What it does with predictions."""
        return "draws"

    def with_constraint(self, constrain: Callable[["Stepper"], "Stepper"]) -> "Stepper":
        """The same stepper under a constraint, which a function puts around the stepper that reads predictions."""
        return constrain(self)

    def steps(self, length: int, steps: int) -> int:
        """The number of steps of the time grid for the requested number."""
        return steps

    def with_filters(self, temperature: float, top_p: float, top_k: int | None) -> "Stepper | None":
        """The same stepper with filters of its own; None if the denoiser's predictions are filtered instead."""
        return None

    def with_guide(self, guide: TransitionGuide) -> "Stepper":
        """The same stepper with guided transition distributions."""
        raise UserError(f"The stepper {type(self).__name__} has no transitions that can be guided; use ancestral.")

    def grid(self, process: Process, steps: int) -> Float[Tensor, " n"]:
        """The times of the steps: those of the process by default."""
        return process.grid(steps)

    def position_times(
        self, process: Process, rows: Float[Tensor, "S M"], free: Positions, noise: Noise
    ) -> Float[Tensor, " S #B M"]:
        """The time of each position for each row of the time grid."""
        return process.position_times(rows, free, noise) if isinstance(process, PositionTimes) else rows[:, None]

    def begin_sampling(self) -> "Stepper":
        """A stepper for one sampling loop, which may keep state between steps; by default itself."""
        return self

    @property
    def extra_nfe(self) -> int:
        """Sequences on which networks other than the denoiser were evaluated in this loop."""
        return 0


class PointwiseStepper(Stepper):
    """Evaluates the network once, and moves each position by its own prediction."""

    @abstractmethod
    def move(self, process: Process, out: Logits, z: State, t: Tensor, s: Tensor, noise: Noise) -> State:
        """z_s for the positions that need a prediction; all arguments are packed."""

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, moved = evaluate(z, t, where), z.clone()
        moved[where] = self.move(process, out, z[where], t[where], s[where], noise.for_positions(where))
        return moved


@dataclass(frozen=True)
class RuleStepper(Stepper):
    """Evaluates the network once at the positions that need a prediction, and moves them by a rule."""

    rule: Rule

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        return self.rule(process, evaluate(z, t, where), z, t, s, where, noise)


def as_stepper(given: "Stepper | Rule") -> Stepper:
    return given if isinstance(given, Stepper) else RuleStepper(given)


@dataclass(frozen=True)
class Ancestral(Stepper):
    """Samples z_s from the process's own reverse step, or from guided transition distributions.

    For a predicted token this is also the analytic sampler (Tweedie τ-leaping; Lou et al. 2024, SEDD eq. 19): with the
    score s_y = q(y | x̂)/q(z | x̂), (e^{-dQ} s)_y (e^{dQ})(y → z) is the posterior q(y | z, x̂). For raw scores, which
    need not be normalised, see jumps.py.
    """

    keeps_tokens = True

    guides: tuple[TransitionGuide, ...] = ()

    def with_guide(self, guide: TransitionGuide) -> Stepper:
        return Ancestral((*self.guides, guide))

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        where = process.needs_prediction(z, t > s)
        if not where.any():
            return z
        out, moved = evaluate(z, t, where), z.clone()
        if not self.guides:
            moved[where] = process.step(out, z[where], t[where], s[where], noise.for_positions(where))
            return moved
        log_p = require(process, DiscreteTransitions, TRANSITIONS).log_transition(out, z[where], t[where], s[where])
        for guide in self.guides:
            log_p = guide(process, evaluate, log_p, z, t, s, where)
        moved[where] = categorical(log_p, noise.for_positions(where).uniform(len(log_p)))
        return moved


ancestral = Ancestral()


def is_active(t: Times, s: Times) -> Positions:
    """Positions whose time decreases, or is held between the ends: remasking continues while it is held."""
    return (t > s) | ((t > 0) & (t < 1))


@dataclass(frozen=True)
class Windowed(Stepper):
    """Steps within first >= t >= s >= last are made by `inside`, the others by `outside`."""

    inside: Stepper
    first: float
    last: float = 0.0
    outside: Stepper = field(default_factory=lambda: ancestral)

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first <= 1:
            raise UserError(f"A time window needs 1 >= first >= last >= 0, not first={self.first}, last={self.last}.")

    def begin_sampling(self) -> Stepper:
        return Windowed(self.inside.begin_sampling(), self.first, self.last, self.outside.begin_sampling())

    def with_constraint(self, constrain: Callable[[Stepper], Stepper]) -> Stepper:
        inside, outside = self.inside.with_constraint(constrain), self.outside.with_constraint(constrain)
        return Windowed(inside, self.first, self.last, outside)

    def supports(self, process: Process) -> bool:
        return self.inside.supports(process) and self.outside.supports(process)

    def check(self, process: Process) -> None:
        self.inside.check(process)
        self.outside.check(process)

    def with_guide(self, guide: TransitionGuide) -> Stepper:
        return Windowed(self.inside.with_guide(guide), self.first, self.last, self.outside.with_guide(guide))

    @property
    def extra_nfe(self) -> int:
        return self.inside.extra_nfe + self.outside.extra_nfe

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        active = is_active(t, s)
        if not active.any():
            return z
        begins = float(t[active].max()) <= self.first + TIME_TOLERANCE
        ends = float(s[active].max()) >= self.last - TIME_TOLERANCE
        return (self.inside if begins and ends else self.outside)(process, evaluate, z, t, s, noise)


class StepperWrapper(Stepper, ABC):
    """A stepper around another one, whose grid, times and costs it has."""

    inner: Stepper

    def supports(self, process: Process) -> bool:
        return super().supports(process) and self.inner.supports(process)

    def check(self, process: Process) -> None:
        super().check(process)
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

    @property
    def prediction_use(self) -> PredictionUse:
        return self.inner.prediction_use

    def steps(self, length: int, steps: int) -> int:
        return self.inner.steps(length, steps)

    @property
    def extra_nfe(self) -> int:
        return self.inner.extra_nfe


@dataclass(frozen=True)
class GreedyLastStep(StepperWrapper):
    """Takes the likeliest token in the last step of each position instead of a draw, which reduces diversity."""

    inner: Stepper

    def begin_sampling(self) -> Stepper:
        return GreedyLastStep(self.inner.begin_sampling())

    def __call__(self, process: Process, evaluate: Evaluate, z: State, t: Times, s: Times, noise: Noise) -> State:
        is_last = bool((s == 0)[t > s].all())
        return self.inner(process, _greedy(evaluate) if is_last else evaluate, z, t, s, noise)


def _greedy(evaluate: Evaluate) -> Evaluate:
    """Predictions with all probability on the likeliest token."""

    def evaluate_greedily(z: State, t: Times, where: Positions, denoiser: Predict | None = None) -> Logits:
        out = evaluate(z, t, where, denoiser)
        return out.new_full(out.shape, -float("inf")).scatter(-1, out.argmax(-1, keepdim=True), 0.0)

    return evaluate_greedily
