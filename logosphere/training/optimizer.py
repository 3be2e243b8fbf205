"""How the optimiser is set and how its step size goes up and down."""

import math
from dataclasses import dataclass
from typing import Any

from logosphere.errors import UserError

PRECISIONS = ("auto", "float32", "bfloat16")
DECAYS = ("cosine", "linear")


def check_finite(prefix: str, settings: dict[str, Any]) -> None:
    """Refuse settings that are infinite or no numbers."""
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{prefix}{name.replace('_', '-')} must be a finite number, not {value}.")


def check_training(ema: float | None, withhold: float, accumulate: int, precision: str) -> None:
    """Refuse settings of a training that cannot be."""
    if ema is not None and not 0 <= ema < 1:
        raise UserError(f"The decay of the average (ema) must be at least 0 and below 1, not {ema}.")
    if not 0 <= withhold <= 1:
        raise UserError(f"withhold must be a share between 0 and 1, not {withhold}.")
    if accumulate < 1:
        raise UserError(f"accumulate must be at least 1, not {accumulate}.")
    if precision not in PRECISIONS:
        raise UserError(f"precision must be auto, float32 or bfloat16, not '{precision}'.")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a linear warm-up and a cosine or linear decay."""

    lr: float = 2e-3
    """Largest step size."""
    warmup: int = 100
    """Steps until it is reached."""
    final: float = 0.05
    """Fraction of the largest step size that is left at the end."""
    decay: str = "cosine"
    """How it falls: cosine or linear."""
    codec_lr: float | None = None
    """Largest step size of learned embeddings; None: lr."""
    schedule_lr: float | None = None
    """Largest step size of a learned noise schedule; None: lr."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.99
    """Decay of the mean of their squares."""
    weight_decay: float = 0.01
    """Applied to matrices only."""
    eps: float = 1e-8
    """Added to the root of the mean square, against division by zero."""
    clip: float | None = 1.0
    """Largest norm of the gradient; None: any."""
    spike: float | None = None
    """Skip steps whose gradient is this many times larger than usual; off by default."""

    def __post_init__(self) -> None:
        check_finite("optim.", vars(self))
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UserError("The decays of the optimiser, beta1 and beta2, must be at least 0 and below 1.")
        if self.weight_decay < 0:
            raise UserError(f"The weight decay must not be negative, but is {self.weight_decay}.")
        if self.lr <= 0 or self.eps <= 0 or (self.clip is not None and self.clip <= 0):
            raise UserError("The learning rate, eps and the gradient clip must be above 0.")
        for name, rate in (("codec_lr", self.codec_lr), ("schedule_lr", self.schedule_lr)):
            if rate is not None and rate <= 0:
                raise UserError(f"{name} must be above 0, not {rate}.")
        if self.decay not in DECAYS:
            raise UserError(f"decay must be {' or '.join(DECAYS)}, not '{self.decay}'.")
        if self.spike is not None and self.spike <= 1:
            raise UserError(f"spike is a multiple of the usual gradient and must be above 1, not {self.spike}.")
        if self.warmup < 0 or not 0 <= self.final <= 1:
            raise UserError("warmup must be at least 0, and final a share between 0 and 1.")

    @property
    def largest_norm(self) -> float:
        """The norm to which gradients are clipped; infinite without clipping."""
        return math.inf if self.clip is None else self.clip

    def rate(self, step: int, done: float) -> float:
        """The step size of step `step` (from 0), when the share `done` of the whole training lies behind."""
        rising = min(1.0, (step + 1) / (self.warmup + 1))
        done = min(done, 1.0)
        left = 1 - done if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.lr * rising * (self.final + (1 - self.final) * left)
