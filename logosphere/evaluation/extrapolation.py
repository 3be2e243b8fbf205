"""Extrapolation of learning curves: a power law fitted to validation bounds, and how far it can be trusted.

The fit describes the curve that was measured. It assumes that the same law goes on, which nothing in the curve proves:
where a longer training exists, its number is the check.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logosphere.errors import UserError

Array = NDArray[np.float64]

EXPONENTS = np.geomspace(0.03, 3.0, 400)
"""The exponents that a fit chooses from."""
LEAST_POINTS = 5
"""Points of a fit: three parameters, and two to see how well they describe the curve."""


@dataclass(frozen=True)
class PowerLaw:
    """bits(C) = floor + scale · (C / unit)^(−exponent), with floor and scale at least 0."""

    floor: float
    scale: float
    exponent: float
    unit: float
    """The geometric mean of the fitted C, in whose units the law is written."""
    residual: float
    """Standard deviation of the points around the law, with n − 3 degrees of freedom."""
    at: tuple[float, ...]
    """The C that it was fitted at."""

    def predict(self, cost: float | int) -> float:
        return self.floor + self.scale * (cost / self.unit) ** -self.exponent


@dataclass(frozen=True)
class Prediction:
    """An extrapolated number with its interval."""

    cost: float
    value: float
    low: float
    high: float


def fit_power_law(costs: Array | Sequence[float | int], bits: Array | Sequence[float | int]) -> PowerLaw:
    """The power law with the least squared errors; for each exponent, floor and scale are a linear problem."""
    x, y = np.asarray(costs, dtype=np.float64), np.asarray(bits, dtype=np.float64)
    if len(x) != len(y) or len(x) < LEAST_POINTS:
        raise UserError(f"A curve needs at least {LEAST_POINTS} points to be extrapolated, not {len(x)}.")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and (x > 0).all()):
        raise UserError("The points of a curve must be finite, and their costs above 0.")
    unit = float(np.exp(np.log(x).mean()))
    floors, scales, exponents, errors = _fit_all(x / unit, y[None, :])
    residual = float(np.sqrt(errors[0] / (len(x) - 3)))
    return PowerLaw(float(floors[0]), float(scales[0]), float(exponents[0]), unit, residual, tuple(x.tolist()))


def _fit_all(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Fit each row of `y`; floor, scale, exponent and squared error of each."""
    best = tuple(np.full(len(y), np.inf if i == 3 else 0.0) for i in range(4))
    for exponent in EXPONENTS:
        z = x**-exponent
        centred = z - z.mean()
        scale = np.maximum(y @ centred / (centred @ centred), 0.0)
        floor = y.mean(1) - scale * z.mean()
        scale = np.where(floor < 0, y @ z / (z @ z), scale)
        floor = np.maximum(floor, 0.0)
        error = np.square(y - floor[:, None] - scale[:, None] * z).sum(1)
        better = error < best[3]
        for kept, new in zip(best, (floor, scale, np.full(len(y), exponent), error), strict=True):
            kept[better] = new[better]
    return best[0], best[1], best[2], best[3]


def extrapolate(law: PowerLaw, cost: float | int, level: float = 0.95, draws: int = 400, seed: int = 0) -> Prediction:
    """The number that the law predicts at a cost, with an interval for a number measured there.

    A parametric bootstrap: points drawn around the law are fitted again, and noise of the same size is added to their
    predictions. The size of the noise is drawn as well, because n − 3 degrees of freedom do not determine it.
    """
    if not cost > 0:
        raise UserError(f"A curve is extrapolated to a cost above 0, not {cost:g}.")
    rng = np.random.default_rng(seed)
    x = np.array(law.at) / law.unit
    freedom = len(x) - 3
    size = law.residual * np.sqrt(freedom / rng.chisquare(freedom, draws))
    curve = law.floor + law.scale * x**-law.exponent
    floors, scales, exponents, _ = _fit_all(x, curve + size[:, None] * rng.standard_normal((draws, len(x))))
    found = floors + scales * (cost / law.unit) ** -exponents + size * rng.standard_normal(draws)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Prediction(float(cost), law.predict(cost), float(low), float(high))
