"""Schedules: signal and noise add up to one, end points are exact, noise is monotone, and slopes and inverses match."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logosphere.errors import UserError
from logosphere.processes.discrete.mixing import HybridSchedule
from logosphere.schedules.signal import (
    SCHEDULES,
    Cosine,
    Geometric,
    Polynomial,
    Schedule,
    SineNoise,
    Squeezed,
    Tabulated,
    Truncated,
    cosine_betas,
    find_schedule,
    from_betas,
    mutual_information,
)

CHAIN = from_betas(cosine_betas(50))
SKEWED = mutual_information([0.6, 0.3, 0.1], points=50)
schedules = st.one_of(
    st.sampled_from(
        [Cosine(), Truncated(Cosine(), 0.01), Geometric(), Geometric(0.01, 5.0), CHAIN, SKEWED, SineNoise()]
    ),
    st.floats(0.1, 3).map(lambda strength: HybridSchedule(Cosine(), strength)),
    st.floats(0.25, 4).map(Polynomial),
)
times = st.floats(0, 1)
inner_times = st.floats(0.001, 0.999)


def number(t: float) -> torch.Tensor:
    return torch.tensor(t, dtype=torch.float64)


@given(schedules, times)
def test_signal_and_noise_add_up_to_one(curve: Schedule, t: float) -> None:
    assert float(curve.signal(number(t)) + curve.noise(number(t))) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "curve, final_signal",
    [
        *[(SCHEDULES[name], 0.0) for name in ("linear", "quadratic", "cosine", "md4-cosine")],
        *[(Polynomial(0.7), 0.0), (SKEWED, 0.0), (HybridSchedule(Cosine(), 0.5), 0.0)],
        *[(SCHEDULES["log-linear"], 1e-3), (Geometric(), math.exp(-20)), (Truncated(Cosine(), 0.2), 0.2)],
        (CHAIN, math.prod(1 - beta for beta in cosine_betas(50))),
    ],
    ids=lambda value: str(value)[:24],
)
def test_both_ends_are_exact(curve: Schedule, final_signal: float, dtype: torch.dtype) -> None:
    """All schedules start clean; the signal at t = 1 is the stated one, mostly zero."""
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert curve.signal(ends)[0] == 1 and curve.noise(ends)[0] == 0
    assert float(curve.signal(ends)[1]) == pytest.approx(final_signal, rel=1e-4, abs=1e-15)
    assert float(curve.noise(ends)[1]) == pytest.approx(1 - final_signal, rel=1e-6)


@given(schedules, times, times)
def test_noise_is_monotone(curve: Schedule, t: float, s: float) -> None:
    earlier, later = sorted([t, s])
    assert curve.noise(number(earlier)) <= curve.noise(number(later))
    assert curve.signal(number(earlier)) >= curve.signal(number(later))


@given(schedules, inner_times)
def test_slope_is_the_derivative_of_the_noise(curve: Schedule, t: float) -> None:
    at = number(t).requires_grad_()
    (derivative,) = torch.autograd.grad(curve.noise(at), at)
    assert float(curve.slope(number(t))) == pytest.approx(float(derivative), rel=1e-9)
    (falling,) = torch.autograd.grad(curve.signal(at), at)
    assert float(curve.slope(number(t))) == pytest.approx(-float(falling), rel=1e-9)
    assert curve.slope(number(t)) >= 0


@given(schedules, times)
def test_time_is_the_inverse_of_the_noise(curve: Schedule, t: float) -> None:
    assert float(curve.time(curve.noise(number(t)))) == pytest.approx(t, rel=1e-6, abs=1e-7)
    level = t * curve.noise(number(1.0))  # the signal that remains at t = 1 is never lost
    assert float(curve.noise(curve.time(level))) == pytest.approx(float(level), rel=1e-9, abs=1e-12)


@given(inner_times)
def test_small_noise_keeps_its_precision(t: float) -> None:
    """1 - cos(x) would cancel to zero here."""
    small = t * 1e-6
    assert float(Cosine().noise(number(small))) == pytest.approx((torch.pi * small) ** 2 / 8, rel=1e-9)


def test_an_unknown_schedule_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        find_schedule("cosin")


@pytest.mark.parametrize("power", [0.0, -1.0])
def test_a_power_that_is_not_positive_is_refused(power: float) -> None:
    with pytest.raises(UserError, match="positive"):
        Polynomial(power)


@pytest.mark.parametrize("levels", [(1.0, 0.5, 0.6, 0.0), (0.9, 0.0), (1.0, -0.1), (1.0,)])
def test_a_table_that_does_not_fall_is_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="fall monotonically"):
        Tabulated(levels)


@pytest.mark.parametrize(
    "name, curve",
    [
        ("polynomial:3", Polynomial(3.0)),
        ("log-linear", Truncated(Polynomial(1.0), 1e-3)),
        ("log-linear:0.01", Truncated(Polynomial(1.0), 0.01)),
        ("geometric", Geometric(1e-4, 20.0)),
        ("geometric:0.001,10", Geometric(1e-3, 10.0)),
        ([0.5, 1.0], Tabulated((1.0, 0.5, 0.0))),
    ],
)
def test_schedule_names_take_parameters(name, curve: Schedule) -> None:
    assert find_schedule(name) == curve


@pytest.mark.parametrize("name", ["polynomial", "polynomial:x", "geometric:1", "linear:3"])
def test_invalid_schedule_parameters_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="There is no schedule"):
        find_schedule(name)


def test_the_log_linear_schedule_is_the_published_one() -> None:
    t = torch.linspace(0, 1, 11).double()
    torch.testing.assert_close(-find_schedule("log-linear").signal(t).log(), -torch.log1p(-(1 - 1e-3) * t))


def test_a_mutual_information_schedule_loses_information_evenly() -> None:
    """I(z_t; x) = (1 - t) H(x) under uniform noise, the information taken from the joint table of x and z."""
    p = torch.tensor([0.6, 0.3, 0.1]).double()
    for t in (0.1, 0.5, 0.8):
        a = mutual_information(p.tolist()).signal(number(t))
        joint = p[:, None] * (a * torch.eye(3).double() + (1 - a) / 3)
        information = (joint * (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()).sum()
        assert float(information) == pytest.approx((1 - t) * float(torch.special.entr(p).sum()), rel=1e-3)


def test_published_betas_approximate_the_cosine() -> None:
    """D3PM's betas at T = 1000: the cosine except for the offset and the clipped last step."""
    betas = cosine_betas(1000)
    assert max(betas) == 0.999 and betas[0] < 1e-4
    t = torch.linspace(0.01, 0.99, 50).double()
    assert (from_betas(betas).signal(t) - Cosine().signal(t)).abs().max() < 0.01


@given(schedules, inner_times)
def test_weights_of_drawn_times_are_the_inverse_density(curve: Schedule, w: float) -> None:
    """dt/dw by a finite difference; times lie between 0 and 1."""
    t, weight = curve.times_at(number(w))
    step = 1e-6
    slope = (curve.times_at(number(w + step))[0] - curve.times_at(number(w - step))[0]) / (2 * step)
    if not isinstance(curve, Tabulated | Geometric):  # these are not smooth
        assert float(weight) == pytest.approx(float(slope), rel=1e-4)
    assert 0 < t < 1 and weight > 0


def test_geometric_times_are_stratified_in_noise() -> None:
    w = torch.linspace(0.01, 0.99, 50).double()
    t, weight = Geometric().times_at(w)
    torch.testing.assert_close(Geometric().noise(t), w**2 * Geometric().noise(number(1.0)), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(weight * Geometric().slope(t), 2 * w * Geometric().noise(number(1.0)))


@pytest.mark.parametrize(
    "curve", [Squeezed(Polynomial(1.0), 1e-4), Squeezed(SineNoise(), 1e-2), Geometric(1e-4, 20.0, 0.0)]
)
def test_schedules_with_initial_noise_jump_at_zero(curve: Schedule) -> None:
    """Clean exactly at t = 0 and `start` right after it; slopes integrate to the remaining noise."""
    t = torch.tensor([0.0, 1e-12, 0.3, 1.0], dtype=torch.float64)
    noise = curve.noise(t)
    assert noise[0] == 0 and curve.signal(t)[0] == 1
    assert float(noise[1]) == pytest.approx(curve.start, rel=1e-6) and curve.start > 0
    torch.testing.assert_close(curve.signal(t) + noise, torch.ones(4).double())
    torch.testing.assert_close(curve.time(noise[1:]), t[1:], rtol=1e-6, atol=1e-9)
    w = (torch.arange(20_000).double() + 0.5) / 20_000
    drawn, weight = curve.times_at(w)
    assert float((curve.slope(drawn) * weight).mean()) == pytest.approx(float(noise[3]) - curve.start, rel=1e-6)


def test_invalid_eps_and_ramp_are_refused() -> None:
    for eps in (0.0, 0.5, -1.0):
        with pytest.raises(UserError, match="eps"):
            Squeezed(Polynomial(1.0), eps)
    with pytest.raises(UserError, match="ramp"):
        find_schedule("geometric:0.1,2,1")
