"""Intervals for ranks: which rows may be first, given errors over sequences and the spread between trainings.

Rows are measured on the same sequences, so the errors of two of them are correlated, and their difference is more
certain than either. Trainings with other seeds differ, too; the variance between them is pooled over all rows, because
two or three seeds of one row say little about it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logosphere.errors import UserError

Array = NDArray[np.float64]

DRAWS = 4000
"""Draws from which the critical values of the intervals are taken."""


@dataclass(frozen=True)
class MeasuredRow:
    """A row with the number of each of its trainings, all on the same sequences."""

    name: str
    bits: tuple[float, ...]
    """Bits per unit of text of each training."""
    error: float
    """Standard error over sequences of the mean over trainings."""
    influence: Array | None = None
    """How much each sequence adds to the mean of its numbers, which is 0 for all together; None where not recorded."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.bits))

    @property
    def spread(self) -> float | None:
        """Standard deviation between trainings; None with one."""
        return float(np.std(self.bits, ddof=1)) if len(self.bits) > 1 else None


@dataclass(frozen=True)
class RankedRow:
    """A row with its difference to the best one and the interval of its rank."""

    row: MeasuredRow
    above: float
    """Bits above the first row."""
    above_error: float
    """Standard error of that over sequences (paired where both rows have them) and trainings."""
    lowest: int
    highest: int
    """The best and the worst rank that the errors allow."""


def pool_variance(rows: Sequence[MeasuredRow]) -> tuple[float, int]:
    """The variance between trainings of a row, pooled over all rows, and its degrees of freedom; 0 and 0 if unknown."""
    freedom = sum(len(row.bits) - 1 for row in rows)
    if freedom == 0:
        return 0.0, 0
    return sum((len(row.bits) - 1) * float(np.var(row.bits, ddof=1)) for row in rows if len(row.bits) > 1) / freedom, (
        freedom
    )


def covary_sequences(rows: Sequence[MeasuredRow]) -> Array:
    """The covariance of the rows' numbers over sequences.

    Rows without recorded sequences are taken as independent of the others. The errors of systems on the same sequences
    have a positive correlation, so this overstates the error of their difference.
    """
    covariance = np.diag([row.error**2 for row in rows])
    paired = [i for i, row in enumerate(rows) if row.influence is not None]
    if paired:
        columns = [row.influence for row in rows if row.influence is not None]
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            raise UserError(f"Rows to rank must have the same sequences, not {min(lengths)} and {max(lengths)}.")
        count = lengths.pop()
        influence = np.stack(columns)
        covariance[np.ix_(paired, paired)] = influence @ influence.T / (count * max(count - 1, 1))
    return covariance


def rank_rows(rows: Sequence[MeasuredRow], level: float = 0.95, draws: int = DRAWS, seed: int = 0) -> list[RankedRow]:
    """Rank rows from the lowest number on, each with an interval of its rank that has this probability.

    For each row i the differences d_ij to all other rows are tested together: the critical value is the quantile of
    max_j |d_ij| / s_ij over draws from a normal distribution with the covariance over sequences plus σ²/n between
    trainings, where σ² itself is known as well as its degrees of freedom allow. The rank of i is at least 1 + the
    number of rows below it by more than that, and at most the number of rows that are not above it by more. (Mogstad,
    Romano, Shaikh and Wilhelm 2024, "Inference for Ranks", marginal intervals.)
    """
    if not rows:
        raise UserError("There is nothing to rank: no rows were given.")
    if not 0 < level < 1:
        raise UserError(f"The level of an interval must be between 0 and 1, not {level:g}.")
    rows = sorted(rows, key=lambda row: row.mean)
    means = np.array([row.mean for row in rows])
    sequences, (pooled, freedom) = covary_sequences(rows), pool_variance(rows)
    over_seeds = np.array([1 / len(row.bits) for row in rows])
    spread = _add_pairs(np.diag(sequences)) - 2 * sequences
    errors = np.sqrt(np.maximum(spread + pooled * _add_pairs(over_seeds), 0.0))
    critical = _critical_values(sequences, pooled, freedom, over_seeds, level, draws, seed)
    ranked = []
    for i, row in enumerate(rows):
        differences = means - means[i]
        limit = critical[i] * errors[i]
        below, above = int((differences < -limit).sum()), int((differences > limit).sum())
        ranked.append(RankedRow(row, float(means[i] - means[0]), float(errors[i, 0]), 1 + below, len(rows) - above))
    return ranked


def _add_pairs(values: Array) -> Array:
    return values[:, None] + values[None, :]


def _critical_values(
    sequences: Array, pooled: float, freedom: int, over_seeds: Array, level: float, draws: int, seed: int
) -> Array:
    """For each row, the quantile of the largest of its studentised differences where all rows are equal."""
    rng = np.random.default_rng(seed)
    count = len(over_seeds)
    values, vectors = np.linalg.eigh(sequences)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    noise = rng.standard_normal((draws, count)) @ root.T
    noise += rng.standard_normal((draws, count)) * np.sqrt(pooled * over_seeds)
    estimated = pooled * rng.chisquare(freedom, draws) / freedom if freedom else np.zeros(draws)
    spread = np.maximum(_add_pairs(np.diag(sequences)) - 2 * sequences, 0.0)
    found = np.zeros(count)
    for i in range(count):
        error = np.sqrt(spread[i][None, :] + estimated[:, None] * (over_seeds[i] + over_seeds)[None, :])
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.abs(noise - noise[:, i : i + 1]) / error
        ratios[:, i] = 0.0
        found[i] = np.quantile(np.nan_to_num(ratios, posinf=math.inf).max(1), level)
    return found


def find_influence(nats: Array, counts: Array, bits: float) -> Array:
    """How much each sequence adds to a number of bits per unit, as a deviation from its mean.

    The number is scale · Σ nats / Σ counts, a ratio, whose linear part in sequence i is
    scale · (nats_i − r · counts_i) / mean(counts) with r = Σ nats / Σ counts (the delta method).
    """
    ratio = nats.sum() / counts.sum()
    if ratio == 0:
        return np.zeros_like(nats)
    return bits / ratio * (nats - ratio * counts) / counts.mean()
