"""Settings of the optimiser and its learning-rate schedule."""

import math
from dataclasses import dataclass
from typing import Any

from logosphere.errors import UserError, check_number
from logosphere.networks.config import PRECISIONS

DECAYS = ("cosine", "linear")
OPTIMIZERS = ("adamw", "muon", "auto")
MAX_DRAWS = 64
"""More noisy copies of a sequence in a step come from typing errors: they cost as much as further sequences."""


def check_finite(prefix: str, settings: dict[str, Any]) -> None:
    """Raise for settings that are infinite or NaN."""
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"--{prefix}{name.replace('_', '-')} must be a finite number, not {value}.")


def check_training(ema: float | None, cond_dropout: float, accumulate: int, precision: str, draws: int = 1) -> None:
    """Raise for settings of a training outside their range."""
    if ema is not None:
        check_number("ema", ema)
    check_number("cond_dropout", cond_dropout)
    if ema is not None and not 0 <= ema < 1:
        raise UserError(f"The decay of the average (ema) must be at least 0 and below 1, not {ema}.")
    if not 0 <= cond_dropout <= 1:
        raise UserError(f"cond_dropout must be a fraction between 0 and 1, not {cond_dropout}.")
    if accumulate < 1:
        raise UserError(f"accumulate must be at least 1, not {accumulate}.")
    if not 1 <= draws <= MAX_DRAWS:
        raise UserError(f"draws must be from 1 to {MAX_DRAWS}, not {draws}.")
    if precision not in PRECISIONS:
        raise UserError(f"precision must be auto, float32 or bfloat16, not '{precision}'.")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon with a linear warm-up and a cosine or linear decay."""

    name: str = "adamw"
    """adamw; muon: Muon for the matrices of blocks, AdamW for all other parameters; auto: muon where the network has
    such matrices and is not sharded, else adamw."""
    lr: float = 2e-3
    """Largest learning rate."""
    warmup: int = 100
    """Steps until it is reached."""
    min_lr_ratio: float = 0.05
    """Learning rate at the end, as a fraction of the largest."""
    decay: str = "cosine"
    """Shape of its decay: cosine or linear."""
    matrix_lr: float | None = None
    """Largest learning rate of the matrices of blocks, for muon; None: twice lr."""
    codec_lr: float | None = None
    """Largest learning rate of learned embeddings; None: lr."""
    schedule_lr: float | None = None
    """Largest learning rate of a learned noise schedule; None: lr."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.99
    """Decay of the mean of their squares."""
    momentum: float = 0.95
    """Decay of the mean of gradients of the matrices of blocks, for muon."""
    weight_decay: float = 0.01
    """Applied to matrices only."""
    eps: float = 1e-8
    """Added to the root of the mean square, against division by zero."""
    clip: float | None = 1.0
    """Largest norm of the gradient; None: any."""
    grad_spike_factor: float | None = None
    """Skip steps whose gradient norm exceeds its running average by this factor; None: never."""

    def __post_init__(self) -> None:
        check_finite("optim.", vars(self))
        if self.name not in OPTIMIZERS:
            raise UserError(
                f"The optimiser (name) must be {', '.join(OPTIMIZERS[:-1])} or {OPTIMIZERS[-1]}, not '{self.name}'."
            )
        if self.matrix_lr is not None and self.name == "adamw":
            raise UserError("matrix_lr is a setting of muon; give --optim.name muon too, or leave it out.")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum must be at least 0 and below 1, not {self.momentum}.")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UserError("The decays of the optimiser, beta1 and beta2, must be at least 0 and below 1.")
        if self.weight_decay < 0:
            raise UserError(f"The weight decay must not be negative, but is {self.weight_decay}.")
        if self.lr <= 0 or self.eps <= 0 or (self.clip is not None and self.clip <= 0):
            raise UserError("The learning rate, eps and the gradient clip must be above 0.")
        rates = {"matrix_lr": self.matrix_lr, "codec_lr": self.codec_lr, "schedule_lr": self.schedule_lr}
        for name, rate in rates.items():
            if rate is not None and rate <= 0:
                raise UserError(f"{name} must be above 0, not {rate}.")
        if self.decay not in DECAYS:
            raise UserError(f"decay must be {' or '.join(DECAYS)}, not '{self.decay}'.")
        if self.grad_spike_factor is not None and self.grad_spike_factor <= 1:
            raise UserError(f"grad_spike_factor must be above 1, not {self.grad_spike_factor}.")
        if self.warmup < 0:
            raise UserError(f"warmup must be at least 0, not {self.warmup}.")
        if not 0 <= self.min_lr_ratio <= 1:
            raise UserError(f"min_lr_ratio must be a fraction between 0 and 1, not {self.min_lr_ratio}.")

    def check_sharding(self, sharded: bool) -> None:
        """Raise if this optimiser cannot train weights of which every process keeps a shard."""
        if sharded and self.name == "muon":
            raise UserError("muon needs whole matrices and --shard divides them; use adamw, or leave out --shard.")
