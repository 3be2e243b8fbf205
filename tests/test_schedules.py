"""Schedules: signal and noise add up, ends are exact, time runs one way, and slope and inverse are what they say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logosphere.errors import UserError
from logosphere.schedules import SCHEDULES, Cosine, Polynomial, Schedule, schedule

schedules = st.one_of(st.just(Cosine()), st.floats(0.25, 4).map(Polynomial))
times = st.floats(0, 1)
inner_times = st.floats(0.001, 0.999)


def number(t: float) -> torch.Tensor:
    return torch.tensor(t, dtype=torch.float64)


@given(schedules, times)
def test_signal_and_noise_add_up_to_one(curve: Schedule, t: float) -> None:
    assert float(curve.signal(number(t)) + curve.noise(number(t))) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("curve", [*SCHEDULES.values(), Polynomial(0.7)], ids=str)
def test_both_ends_are_exact(curve: Schedule, dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert curve.signal(ends).tolist() == [1, 0]
    assert curve.noise(ends).tolist() == [0, 1]


@given(schedules, times, times)
def test_noise_never_falls(curve: Schedule, t: float, s: float) -> None:
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
    assert float(curve.noise(curve.time(number(t)))) == pytest.approx(t, rel=1e-9, abs=1e-12)


@given(inner_times)
def test_small_noise_keeps_its_digits(t: float) -> None:
    """1 - cos(x) would have none left here."""
    small = t * 1e-6
    assert float(Cosine().noise(number(small))) == pytest.approx((torch.pi * small) ** 2 / 8, rel=1e-9)


def test_a_misspelt_schedule_is_met_with_the_right_name() -> None:
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        schedule("cosin")


@pytest.mark.parametrize("power", [0.0, -1.0])
def test_a_schedule_must_rise(power: float) -> None:
    with pytest.raises(UserError, match="positive"):
        Polynomial(power)
