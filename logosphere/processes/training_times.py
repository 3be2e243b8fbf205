"""Which times a training step sees."""

from dataclasses import dataclass

from torch import Tensor

from logosphere.errors import UserError, suggest
from logosphere.rng import Noise
from logosphere.types import Float

TIMES = ("low-variance", "uniform", "independent")


@dataclass(frozen=True)
class TrainingTimes:
    """How training draws times; bounds are always measured with the low-variance sampler over all of (0, 1].

    "low-variance" spreads times evenly over the batch, and in continuous time draws more of them near 0, where the
    bound grows like 1/t, with weights dt/dw in return. "uniform" spreads them evenly over [low, high] without weights
    (MDLM, MD4). "independent" draws each for itself (D3PM, SEDD, LLaDA).
    """

    kind: str = "low-variance"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in TIMES:
            raise UserError(f"There is no time sampler '{self.kind}'.{suggest(self.kind, TIMES)}")
        if not 0 <= self.low < self.high <= 1:
            raise UserError(f"t_min must be at least 0 and below 1, not {self.low}.")
        if self.kind == TIMES[0] and (self.low, self.high) != (0, 1):
            raise UserError(f"t_min={self.low} needs times=uniform or times=independent, not {self.kind}.")

    @property
    def plain(self) -> bool:
        """Are times drawn uniformly, and not weighted?"""
        return self.kind != TIMES[0]

    def quantiles(self, w: Float[Tensor, "B J"], noise: Noise) -> Float[Tensor, "B J"]:
        """Independent numbers in place of the stratified w, where that is asked for."""
        return noise.uniform(*w.shape) if self.kind == "independent" else w

    def at(self, w: Float[Tensor, "B J"]) -> Float[Tensor, "B J"]:
        """Times of quantiles."""
        return self.low + (self.high - self.low) * w


LOW_VARIANCE = TrainingTimes()
