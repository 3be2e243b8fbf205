"""How the optimiser is set and how its step size goes up and down."""

import math
from dataclasses import dataclass

from logosphere.errors import UserError


@dataclass(frozen=True)
class Optim:
    """AdamW with a linear warm-up and a cosine decay."""

    lr: float = 2e-3
    """Largest step size."""
    warmup: int = 100
    """Steps until it is reached."""
    final: float = 0.05
    """Share of the largest step size that is left at the end."""
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01
    """Applied to matrices only."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    spike: float | None = None
    """Skip steps whose gradient is this many times larger than usual; off by default."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.clip <= 0:
            raise UserError("The learning rate and the gradient clip must be above 0.")
        if self.spike is not None and self.spike <= 1:
            raise UserError(f"spike is a multiple of the usual gradient and must be above 1, not {self.spike}.")
        if self.warmup < 0 or not 0 <= self.final <= 1:
            raise UserError("warmup must be at least 0, and final a share between 0 and 1.")

    def rate(self, step: int, done: float) -> float:
        """The step size of step `step` (from 0), when the share `done` of the whole training lies behind."""
        rising = min(1.0, (step + 1) / (self.warmup + 1))
        falling = self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return self.lr * rising * falling
