"""Schedules of the log-signal-to-noise ratio: slopes, inverses and shifts."""

import math

import pytest
import torch

from logosphere.errors import UserError
from logosphere.schedules.learned import LearnedTanh
from logosphere.schedules.logsnr import (
    Cosine,
    Linear,
    LinearBeta,
    LogSNR,
    Restricted,
    Shifted,
    Sigmoid,
    Sqrt,
    find_logsnr,
)


def bent() -> LearnedTanh:
    """A learned schedule with an arbitrary shape."""
    schedule = LearnedTanh(4.0, -7.0)
    with torch.no_grad():
        schedule.heights += torch.randn(len(schedule.heights), generator=torch.Generator().manual_seed(1))
    return schedule


ALL: dict[str, LogSNR] = {
    "cosine": Cosine(),
    "sqrt": Sqrt(),
    "linear-beta": LinearBeta(),
    "ld4lg-beta": LinearBeta(0.0, 20.0, 1e-4),
    "sigmoid": Sigmoid(),
    "linear": Linear(6.0, -8.0),
    "shifted": Shifted(Cosine(), -2.0),
    "between": Restricted(Cosine(), 5.0, -9.0),
    "learned": bent(),
}
T = torch.linspace(0.01, 0.99, 197, dtype=torch.float64)


@pytest.mark.parametrize("schedule", ALL.values(), ids=ALL)
def test_slopes_and_inverses_are_consistent(schedule: LogSNR) -> None:
    t = T.clone().requires_grad_()
    if isinstance(schedule, LearnedTanh):  # its times carry no gradient
        h = 1e-6
        difference = (schedule.logsnr(T + h) - schedule.logsnr(T - h)).detach() / (2 * h)
    else:
        (difference,) = torch.autograd.grad(schedule.logsnr(t).sum(), t)
    slope = schedule.slope(T).detach()
    assert (slope > 0).all()
    torch.testing.assert_close(slope, -difference, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(schedule.time(schedule.logsnr(T).detach()), T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "name, signal",
    [
        ("cosine", [0.994, 0.976, 0.854, 0.500, 0.146, 0.024]),
        ("sqrt", [0.776, 0.684, 0.500, 0.293, 0.134, 0.051]),
        ("linear-beta", [0.971, 0.896, 0.524, 0.079, 0.003, 0.000]),
    ],
)
def test_signals_match_the_papers(name: str, signal: list[float]) -> None:
    """α² at t = .05, .1, .25, .5, .75, .9; Diffusion-LM's f(0) = 0.99 is divided out, as its betas do."""
    t = torch.tensor([0.05, 0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    start = 0.99 if name == "sqrt" else 1.0
    assert (start * torch.sigmoid(ALL[name].logsnr(t)) - torch.tensor(signal)).abs().max() < 1.5e-3


@pytest.mark.parametrize("d", [3.0, 5.0, 9.0])
def test_tan_d_is_a_shift_of_the_cosine(d: float) -> None:
    """α² = 1/(1 + d² tan²(πt/2)) is λ - 2 log d."""
    tan_d = 1 / (1 + d**2 * torch.tan(math.pi / 2 * T).square())
    torch.testing.assert_close(torch.sigmoid(find_logsnr("cosine", shift=-2 * math.log(d)).logsnr(T)), tan_d)


def test_diffusion_lm_initial_noise_level() -> None:
    """σ_0 = 0.121 after the first of 2000 steps."""
    first = torch.tensor(1 / 2000, dtype=torch.float64)
    assert float(torch.sigmoid(-Sqrt().logsnr(first)).sqrt()) == pytest.approx(0.1210, abs=1e-4)


def test_schedule_endpoints() -> None:
    ends = torch.tensor([0.0, 1.0])
    assert Cosine().logsnr(ends).tolist() == [math.inf, -math.inf]
    assert Sigmoid().logsnr(ends).tolist() == [math.inf, -math.inf]
    assert Sqrt().logsnr(ends).tolist() == [math.inf, -math.inf]
    assert Restricted(Cosine(), 5.0).logsnr(ends).tolist() == [pytest.approx(5), -math.inf]
    assert Restricted(Sqrt(), 5.0, -3.0).logsnr(ends).tolist() == [pytest.approx(5), pytest.approx(-3)]
    assert bent().logsnr(ends).tolist() == [pytest.approx(4), pytest.approx(-7)]


def test_variance_loss_has_the_gradient_of_the_second_moment() -> None:
    """`variance_loss` has the gradient of E[nats²] for nats = f(λ(t)) |λ'(t)|, without differentiating f."""
    schedule, t = bent().double(), (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000

    def nats() -> torch.Tensor:
        position, steep, _ = schedule.shape(t)
        return torch.exp(-0.5 * (4 - 11 * position).square()) * 11 * steep

    parameters = [schedule.heights, schedule.rates, schedule.centres]
    expected = torch.autograd.grad(nats().square().mean(), parameters)
    found = torch.autograd.grad(schedule.variance_loss(t, nats()).mean(), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_learned_schedule_separates_endpoint_and_shape_gradients() -> None:
    schedule = bent()
    schedule.logsnr(T).sum().backward()
    assert schedule.ends.grad is not None and schedule.heights.grad is None
    schedule.ends.grad = None
    schedule.variance_loss(T, torch.ones_like(T)).sum().backward()
    assert schedule.ends.grad is None and bool(schedule.heights.grad.any())


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: find_logsnr("cosinus"), "Did you mean 'cosine'"),
        (lambda: find_logsnr("linear"), "highest and the lowest"),
        (lambda: Linear(-1.0, 1.0), "must fall"),
        (lambda: LearnedTanh(math.inf, 1.0), "finite"),
        (lambda: Restricted(Linear(3.0, -3.0), 5.0), "cannot run from 5"),
        (lambda: Sigmoid(0.0), "above 0"),
        (lambda: LinearBeta(2.0, 1.0), "first < last"),
    ],
)
def test_invalid_schedules_are_refused(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
