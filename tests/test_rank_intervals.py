"""Intervals of ranks and extrapolated curves: known answers, and coverage where the truth is known."""

import numpy as np
import pytest

from logosphere.errors import UserError
from logosphere.evaluation.extrapolation import extrapolate, fit_power_law
from logosphere.evaluation.rank_intervals import MeasuredRow, find_influence, pool_variance, rank_rows


def simulate(
    means: list[float], rng: np.random.Generator, *, sequences: int = 200, seeds: int = 2, seed_sd: float = 0.02
) -> list[MeasuredRow]:
    """Rows on the same sequences, whose difficulty all share, with trainings that differ."""
    shared = rng.normal(0, 0.4, sequences)
    rows = []
    for i, mean in enumerate(means):
        own = shared + rng.normal(0, 0.1, sequences)
        bits = tuple(mean + own.mean() + rng.normal(0, seed_sd, seeds))
        influence = own - own.mean()
        rows.append(MeasuredRow(f"row {i}", bits, float(own.std(ddof=1) / sequences**0.5), influence))
    return rows


def test_rows_far_apart_have_certain_ranks() -> None:
    ranked = rank_rows(simulate([3.0, 1.0, 2.0], np.random.default_rng(0)))
    assert [row.row.name for row in ranked] == ["row 1", "row 2", "row 0"]
    assert [(row.lowest, row.highest) for row in ranked] == [(1, 1), (2, 2), (3, 3)]
    assert ranked[0].above == 0 and ranked[1].above == pytest.approx(1.0, abs=0.1)


def test_equal_rows_may_have_any_rank() -> None:
    rows = [MeasuredRow(name, (2.0, 2.02), 0.01, None) for name in "abcd"]
    assert all((row.lowest, row.highest) == (1, 4) for row in rank_rows(rows))


def test_pairing_separates_rows_that_errors_alone_do_not() -> None:
    """The sequences are difficult for all rows alike; without them the same numbers cannot be distinguished."""
    rows = simulate([2.0, 2.05], np.random.default_rng(1), seed_sd=0.0)
    alone = [MeasuredRow(row.name, row.bits, row.error) for row in rows]
    assert [row.highest for row in rank_rows(rows)] == [1, 2] and [row.highest for row in rank_rows(alone)] == [2, 2]


def test_the_error_of_a_difference_is_that_of_paired_sequences_and_seeds() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(0, 1, 50), rng.normal(0, 1, 50)
    rows = [
        MeasuredRow("a", (1.0, 1.2), 0.1, a - a.mean()),
        MeasuredRow("b", (2.0, 2.4), 0.1, b - b.mean()),
    ]
    pooled, freedom = pool_variance(rows)
    assert (pooled, freedom) == (pytest.approx((0.02 + 0.08) / 2), 2)
    expected = np.var(a - b, ddof=1) / 50 + pooled
    assert rank_rows(rows)[1].above_error == pytest.approx(expected**0.5)


def test_one_seed_gives_no_variance_between_trainings() -> None:
    assert pool_variance([MeasuredRow("a", (1.0,), 0.1), MeasuredRow("b", (2.0,), 0.1)]) == (0.0, 0)
    ranked = rank_rows([MeasuredRow("a", (1.0,), 0.1)])
    assert (ranked[0].lowest, ranked[0].highest, ranked[0].row.spread) == (1, 1, None)


def test_influence_is_the_delta_method_of_a_ratio() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(50, 100, 400).astype(float)
    nats = counts * rng.normal(1.4, 0.2, 400)
    ratio = nats.sum() / counts.sum()
    influence = find_influence(nats, counts, ratio / np.log(2))
    assert influence.mean() == pytest.approx(0, abs=1e-12)
    left_out = [(nats.sum() - nats[i]) / (counts.sum() - counts[i]) / np.log(2) for i in range(400)]
    assert np.allclose(influence, 399 * (ratio / np.log(2) - np.array(left_out)), rtol=0.02, atol=0.01)  # jackknife


def test_rows_of_other_sequences_and_levels_outside_of_0_and_1_are_refused() -> None:
    rows = [MeasuredRow("a", (1.0,), 0.1, np.zeros(3)), MeasuredRow("b", (1.0,), 0.1, np.zeros(4))]
    with pytest.raises(UserError, match="same sequences, not 3 and 4"):
        rank_rows(rows)
    with pytest.raises(UserError, match="between 0 and 1, not 1"):
        rank_rows(rows[:1], level=1.0)
    with pytest.raises(UserError, match="nothing to rank"):
        rank_rows([])


@pytest.mark.slow
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover_the_true_rank(paired: bool) -> None:
    """95% intervals hold the true rank of each row at least 93% of the time, and are not all the whole range."""
    means, repetitions = [2.0, 2.01, 2.03, 2.06, 2.12, 2.5], 300
    covered, widths = np.zeros(len(means)), np.zeros(len(means))
    for repetition in range(repetitions):
        rows = simulate(means, np.random.default_rng([7, repetition]))
        rows = rows if paired else [MeasuredRow(row.name, row.bits, row.error) for row in rows]
        for ranked in rank_rows(rows, draws=1000):
            true = int(ranked.row.name.split()[1])
            covered[true] += ranked.lowest <= true + 1 <= ranked.highest
            widths[true] += ranked.highest - ranked.lowest
    assert (covered / repetitions >= 0.93).all(), covered / repetitions
    assert widths[-1] == 0 and (not paired or widths[0] / repetitions < 4)


def curve(costs: np.ndarray, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    return 1.5 + 2.0 * (costs / 30) ** -0.4 + np.random.default_rng(seed).normal(0, noise, len(costs))


def test_a_power_law_is_recovered() -> None:
    costs = np.geomspace(10, 1200, 12)
    law = fit_power_law(costs, curve(costs))
    assert law.floor == pytest.approx(1.5, abs=0.02) and law.exponent == pytest.approx(0.4, abs=0.02)
    assert law.predict(7200) == pytest.approx(curve(np.array([7200.0]))[0], abs=0.01) and law.residual < 2e-3


def test_a_curve_that_does_not_fall_is_flat() -> None:
    law = fit_power_law([1, 2, 4, 8, 16], [1.0, 1.1, 1.2, 1.3, 1.4])
    assert law.scale == 0 and law.predict(1e6) == pytest.approx(1.2)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UserError, match="at least 5 points to be extrapolated, not 4"):
        fit_power_law([1, 2, 3, 4], [4, 3, 2, 1])
    with pytest.raises(UserError, match="finite"):
        fit_power_law([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])


def test_intervals_widen_with_the_distance() -> None:
    costs = np.geomspace(10, 1200, 10)
    law = fit_power_law(costs, curve(costs, 0.01))
    near, far = extrapolate(law, 1500), extrapolate(law, 50_000)
    assert near.low < near.value < near.high and far.high - far.low > near.high - near.low
    assert extrapolate(law, 1500) == near


@pytest.mark.slow
def test_prediction_intervals_cover_a_later_measurement() -> None:
    costs, noise, repetitions, covered = np.geomspace(10, 1200, 10), 0.01, 200, 0
    for repetition in range(repetitions):
        law = fit_power_law(costs, curve(costs, noise, repetition))
        found = extrapolate(law, 7200, draws=300, seed=repetition)
        later = curve(np.array([7200.0]), noise, 10_000 + repetition)[0]
        covered += found.low <= later <= found.high
    assert covered / repetitions >= 0.9
