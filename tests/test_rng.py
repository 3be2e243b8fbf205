"""Noise: a function of seed, step and sample, independent of batching; uniform, independent and exact in its tails."""

import math

import pytest
import torch
from scipy import stats
from statistical_checks import MIN_P_VALUE, chi_square_p_value, mean_and_error
from torch import Tensor
from toy_languages import generator

from logosphere.rng import CounterNoise, GeneratorNoise, Noise, _unit, categorical


def counter_noise(ids: Tensor, seed: int = 1, step: int = 2, total: int | None = None) -> CounterNoise:
    return CounterNoise(seed, step, ids, ids, len(ids) if total is None else total)


IDS = torch.arange(16)
CUTS = {"halves": [IDS[:8], IDS[8:]], "singles": list(IDS[:, None]), "reversed": [IDS.flip(0)]}


@pytest.mark.parametrize("parts", CUTS.values(), ids=CUTS)
def test_noise_does_not_depend_on_the_batching(parts: list[Tensor]) -> None:
    whole = counter_noise(IDS)
    expected = whole.uniform(16, 5), whole.uniform(16, 3, 2), whole.normal(16, 4), whole.low_discrepancy_times(3, 2)
    for ids in parts:
        part = counter_noise(ids, total=16)
        n = len(ids)
        for numbers, all_numbers in zip(
            (part.uniform(n, 5), part.uniform(n, 3, 2), part.normal(n, 4), part.low_discrepancy_times(3, 2)),
            expected,
            strict=True,
        ):
            assert torch.equal(numbers, all_numbers[ids])


def test_every_seed_step_sample_and_call_has_different_numbers() -> None:
    noise = counter_noise(IDS)
    streams = [noise.uniform(16, 50), noise.uniform(16, 50)]
    streams += [
        counter_noise(IDS, seed=2).uniform(16, 50),
        counter_noise(IDS, step=3).uniform(16, 50),
        counter_noise(IDS + 16).uniform(16, 50),
    ]
    streams += [counter_noise(IDS, seed=2, step=1).uniform(16, 50), counter_noise(IDS, seed=-1).uniform(16, 50)]
    assert len(torch.cat([stream.flatten() for stream in streams]).unique()) == len(streams) * 16 * 50


def test_generator_noise_is_a_function_of_the_seed() -> None:
    first, again, other = (GeneratorNoise(generator(seed), 4) for seed in (1, 1, 2))
    numbers = first.uniform(4, 9)
    assert torch.equal(numbers, again.uniform(4, 9)) and not torch.equal(numbers, other.uniform(4, 9))


SOURCES = {"keyed": lambda n: counter_noise(torch.arange(n)), "drawn": lambda n: GeneratorNoise(generator(3), n)}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_uniform_numbers_are_uniform_and_inside_the_interval(source) -> None:
    numbers = source(200).uniform(200, 500)
    assert numbers.dtype == torch.float64 and 0 < numbers.min() and numbers.max() < 1
    assert stats.kstest(numbers.flatten().numpy(), "uniform").pvalue > MIN_P_VALUE
    assert (
        chi_square_p_value(torch.histc((numbers * 2**20 % 1).float(), 64, 0, 1), torch.ones(64)) > MIN_P_VALUE
    )  # low bits too


def test_extreme_integers_stay_inside_the_interval() -> None:
    units = _unit(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert 0 < units.min() and units.max() < 1


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_neighbours_are_uncorrelated(source) -> None:
    """99 500 pairs each: a correlation has a standard error of 0.0032."""
    numbers = source(200).uniform(200, 500) - 0.5
    for one, other in (
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[1:], -numbers[:-1].abs()),
    ):
        pairs = torch.stack([one.flatten(), other.flatten()])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 3.5 / math.sqrt(pairs.shape[1])


def test_seeds_steps_and_calls_are_uncorrelated() -> None:
    """Consecutive seeds, steps, samples and calls form a grid without correlation along any axis."""
    grid = torch.stack(
        [
            torch.stack([counter_noise(torch.arange(20), seed, step).uniform(20, 25) for step in range(20)])
            for seed in range(10)
        ]
    ).double()
    for axis in range(4):
        size = grid.shape[axis]
        pairs = torch.stack([grid.narrow(axis, 0, size - 1).flatten(), grid.narrow(axis, 1, size - 1).flatten()])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 3.5 / math.sqrt(pairs.shape[1])


def test_normal_numbers_are_normal() -> None:
    numbers = counter_noise(torch.arange(300)).normal(300, 300)
    assert numbers.dtype == torch.float32
    assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > MIN_P_VALUE
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        mean, error = mean_and_error(numbers.double() ** power)
        assert abs(mean - moment) < 3.5 * error


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_low_discrepancy_times_fill_every_stratum_once(source, draws: int) -> None:
    for times in source(8).low_discrepancy_times(draws, 5).unbind(2):
        shifted = (times - times.min()).flatten() * 8 * draws
        assert torch.equal(shifted.round().sort().values, torch.arange(8 * draws).double())
        assert torch.allclose(shifted, shifted.round(), atol=1e-9)
        assert 0 <= times.min() and times.max() < 1


def test_the_draws_of_each_sequence_are_spread_evenly() -> None:
    for row in counter_noise(torch.arange(8)).low_discrepancy_times(4, 1)[..., 0]:
        around = torch.cat([row.sort().values, row.min()[None] + 1])  # the strata are cyclic
        assert around.diff().tolist() == pytest.approx([0.25] * 4)


def test_low_discrepancy_times_are_uniform_and_independent_across_blocks() -> None:
    w = torch.cat([counter_noise(torch.arange(2), step=step).low_discrepancy_times(1, 2) for step in range(2000)])[
        ::2, 0
    ]
    assert stats.kstest(w[:, 0].numpy(), "uniform").pvalue > MIN_P_VALUE
    assert abs(float(torch.corrcoef(w.T)[0, 1])) < 3.5 / math.sqrt(len(w))


def test_categorical_has_exact_frequencies() -> None:
    log_p = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025]).log()
    drawn = categorical(log_p.expand(50_000, -1), GeneratorNoise(generator(5), 1).uniform(50_000))
    assert chi_square_p_value(drawn.bincount(minlength=5), log_p.exp()) > MIN_P_VALUE


def test_categorical_needs_no_normalisation() -> None:
    log_p, u = torch.randn(300, 7, generator=generator(1)), GeneratorNoise(generator(2), 1).uniform(300)
    assert torch.equal(categorical(log_p, u), categorical(log_p + 40, u))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zero_probability_is_never_drawn(dtype: torch.dtype) -> None:
    log_p = torch.tensor([-torch.inf, 0, -torch.inf, -torch.inf, 0, -torch.inf], dtype=dtype)
    edges = torch.tensor([0, 1e-300, 0.25, 0.5, 0.5 + 1e-16, 1 - 2**-53], dtype=torch.float64)
    assert categorical(log_p.expand(6, -1), edges).tolist() == [1, 1, 1, 4, 4, 4]
    steps = torch.linspace(0, 1 - 1e-9, 9999, dtype=torch.float64)
    assert set(categorical(log_p.expand(9999, -1), steps).tolist()) == {1, 4}


def tail_mass_and_nll(drawn: Tensor, log_p: Tensor, tail: Tensor) -> tuple[tuple[float, float], tuple[float, float]]:
    return mean_and_error(tail[drawn].double()), mean_and_error(-log_p[drawn])


def test_the_tail_of_a_zipf_distribution_is_not_truncated() -> None:
    """One draw per token at T = 1000 multiplies probabilities by 1/1000, where a float32 Gumbel draw loses the tail.

    Here the distribution is scaled down next to a state of probability 0.999, and the other draws must still have
    the Zipf distribution: the tail of 8192 words has mass 0.15, the standard error is 0.005.
    """
    log_p = -torch.arange(1, 8193).double().log()
    log_p = log_p.log_softmax(0)
    tail = torch.arange(8192) >= 2000
    u = GeneratorNoise(generator(6), 1).uniform(6000)
    with_rest = torch.cat([log_p + math.log(1e-3), torch.tensor([math.log1p(-1e-3)]).double()]).float()
    drawn = torch.cat([categorical(with_rest.expand(1000, -1), part * 1e-3) for part in u.split(1000)])
    assert drawn.max() < 8192
    (mass, mass_error), (nll, nll_error) = tail_mass_and_nll(drawn, log_p, tail)
    assert abs(mass - float(log_p[tail].exp().sum())) < 3.5 * mass_error
    assert abs(nll - float(-(log_p.exp() * log_p).sum())) < 3.5 * nll_error < 0.15


def test_both_noise_classes_have_the_same_interface() -> None:
    for source in SOURCES.values():
        noise: Noise = source(3)
        assert noise.uniform(3, 2).shape == noise.normal(3, 2).shape == (3, 2)
        assert noise.low_discrepancy_times(2, 4).shape == (3, 2, 4)
