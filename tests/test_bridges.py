"""Bridges on the sphere: the heat kernel against its series, the tabulated law against a simulation in full."""

import math

import numpy as np
import pytest
import torch
from scipy import special
from toy_languages import generator

from logosphere.errors import UserError
from logosphere.geometry import sphere
from logosphere.geometry.bridge_tables import tabulate_bridges
from logosphere.geometry.bridges import (
    Bridge,
    BridgeTable,
    HeatBridge,
    LogBridge,
    chi_square_quantiles,
    simulate_bridge,
    walk_step,
)
from logosphere.geometry.sphere import tabulate_heat_kernel
from logosphere.systems.spherical_parts import default_noise


def series(n: int, tau: float, theta: np.ndarray) -> np.ndarray:
    """log p_τ(θ) · (2πτ)^(n/2) on S^n from its Gegenbauer expansion, which holds while p is not too small to cancel."""
    degree = np.arange(600)
    weight = np.exp(-degree * (degree + n - 1) * tau / 2) * (2 * degree + n - 1) / (n - 1)
    volume = math.log(2) + (n + 1) / 2 * math.log(math.pi) - special.gammaln((n + 1) / 2)
    terms = [weight * special.eval_gegenbauer(degree, (n - 1) / 2, math.cos(angle)) for angle in theta]
    return np.log([term.sum() for term in terms]) - volume + n / 2 * math.log(2 * math.pi * tau)


@pytest.mark.parametrize(
    ("n", "largest"),
    [
        (2, 0.3),
        (2, 1.0),
        (2, 3.0),
        (3, 0.3),
        (3, 1.0),
        (5, 1.5),
        (8, 2.0),
        (9, 0.3),
        (27, 0.0376),
        (27, 0.15),
        (255, 0.01),
    ],
)
def test_the_heat_kernel_is_its_series(n: int, largest: float) -> None:
    kernel = tabulate_heat_kernel(n, 0.05 * largest, largest)
    for tau in (0.3 * largest, largest):
        theta = np.linspace(0.05, min(2.5, math.sqrt(2 * tau * 22)), 15)
        cosine, time = torch.tensor(np.cos(theta))[None], torch.tensor([tau], dtype=torch.float64)
        truth = series(n, tau, theta)
        np.testing.assert_allclose(kernel.log_p(cosine, time)[0].numpy(), truth, atol=2e-3)
        slope = (series(n, tau, theta + 1e-4) - series(n, tau, theta - 1e-4)) / (2e-4 * -np.sin(theta))
        np.testing.assert_allclose(kernel.cosine_gradient(cosine, time)[0].numpy(), slope, rtol=1e-3)


def test_tables_are_read_where_the_states_are() -> None:
    """On a device that only knows shapes: whatever is asked for there is answered there."""
    cosine, time = torch.zeros(2, 3, device="meta"), torch.full((2,), 0.1, device="meta")
    kernel = tabulate_heat_kernel(5, 0.05, 0.3)
    assert kernel.cosine_gradient(cosine, time).device.type == kernel.log_p(cosine, time).device.type == "meta"
    assert chi_square_quantiles(4)(torch.rand(7, dtype=torch.float64, device="meta")).device.type == "meta"


@pytest.mark.parametrize("d", [28, 1025, 4097])
def test_the_heat_kernel_is_a_density_in_many_dimensions(d: int) -> None:
    """∫ p_τ = 1 over S^n with the default noise, where most of the mass is as far away as the other vertices."""
    n, largest = d - 1, default_noise(d)
    kernel = tabulate_heat_kernel(n, 0.1 * largest, largest)
    theta = torch.linspace(1e-3, math.pi - 1e-3, 100_001, dtype=torch.float64)
    log_area = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
    for tau in kernel.times[[0, 48, 95]].exp():
        log_p = kernel.log_p(theta.cos()[None], tau[None])[0] - n / 2 * (2 * math.pi * tau).log()
        mass = (log_p + (n - 1) * theta.sin().log() + log_area).logsumexp(0).exp() * theta.diff()[0]
        assert abs(float(mass) - 1) < 0.03


def test_on_the_three_sphere_the_kernel_is_known() -> None:
    """S³: p ∝ Σ over windings; the main term is θ/sin θ · exp(τ/2 - θ²/2τ)."""
    kernel, theta = tabulate_heat_kernel(3, 0.01, 0.2), torch.linspace(0.1, 2.5, 20).double()
    for tau in (0.02, 0.2):
        truth = -theta.square() / (2 * tau) + (theta / theta.sin()).log() + tau / 2
        found = kernel.log_p(theta.cos()[None], torch.tensor([tau]).double())[0]
        torch.testing.assert_close(found, truth, atol=2e-3, rtol=0)


def simulated(bridge: Bridge, origin: torch.Tensor, times: torch.Tensor, n: int) -> torch.Tensor:
    """X at the last time by a geodesic random walk in all d dimensions, towards the first axis."""
    rng, d = generator(3), len(origin)
    x, vertex = origin.double().expand(n, -1), torch.eye(d, dtype=torch.float64)[0]
    for s, ds in zip(times[:-1].tolist(), times.diff().tolist(), strict=True):
        pull = bridge.drift_strength(x[:, :1], torch.full((n,), s).double())
        noise = torch.randn(n, d, generator=rng, dtype=torch.float64)
        v = pull * ds * (vertex - x[:, :1] * x) + (bridge.total_noise * ds) ** 0.5 * sphere.project(x, noise)
        x = sphere.exp(x, v)
    return x


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["log", "heat"])
@pytest.mark.parametrize(("d", "total_noise"), [(3, 0.2), (4, 0.1), (28, 0.0376)])
@pytest.mark.parametrize("share", [0.0, 0.9])
def test_two_numbers_carry_the_whole_law(kind: str, d: int, total_noise: float, share: float) -> None:
    """Moments of (a, b) and of the rest agree with the simulation within 4 standard errors of 20,000 particles."""
    bridge = LogBridge(total_noise) if kind == "log" else HeatBridge.on(d, total_noise)
    origin = torch.full((d,), math.sqrt(share / (d - 1)))
    origin[-1] = math.sqrt(1 - share)
    cosine = float(origin[0])
    times = torch.linspace(0, 0.3, 41, dtype=torch.float64)
    law, x = simulate_bridge(bridge, d, cosine, times, particles=4096), simulated(bridge, origin, times, 20_000)
    a, across = x[:, 0], (origin.double() - cosine * torch.eye(d)[0]) / math.sqrt(1 - cosine**2)
    b = x @ across
    ours = (law.a[-1].double(), law.b[-1].double())
    for moment in (lambda a, b: a, lambda a, b: b, lambda a, b: a * a, lambda a, b: a * b, lambda a, b: b**3):
        truth = moment(a, b)
        assert abs(float(truth.mean() - moment(*ours).mean())) < 4 * float(truth.std()) / 20_000**0.5


PUBLISHED_CLOCK = 200.0
"""β₁/β₀ of the paper's schedule: s = (200^t - 1)/199, with V = 0.0376."""
REFERENCE = {
    "mask": {
        0.1: (0.0057, 0.0116), 0.2: (0.0151, 0.0188), 0.3: (0.0310, 0.0265), 0.4: (0.0572, 0.0361),
        0.5: (0.1014, 0.0472), 0.6: (0.1749, 0.0593), 0.7: (0.2932, 0.0705),
        0.8: (0.4769, 0.0740), 0.9: (0.7270, 0.0556),
    },
    "uniform": {
        0.1: (0.1934, 0.0112), 0.2: (0.2007, 0.0180), 0.3: (0.2132, 0.0260), 0.4: (0.2349, 0.0353),
        0.5: (0.2701, 0.0452), 0.6: (0.3284, 0.0569), 0.7: (0.4208, 0.0663),
        0.8: (0.5633, 0.0690), 0.9: (0.7617, 0.0525),
    },
}  # fmt: skip
"""Mean and deviation of <X, e> for d = 28: 8,192 walkers in all dimensions, 1,000 equal steps in t, Euler's rule."""


def eulers_walk(bridge: Bridge, d: int, cosine: float, particles: int) -> dict[float, torch.Tensor]:
    """<X, e> at t = 0.1 … 0.9 by 1,000 equal steps whose drift and noise are those of their left end."""
    rng, dt = generator(3), 1e-3
    a = torch.full((particles,), cosine, dtype=torch.float64)
    b, rows = (1 - a.square()).sqrt(), {}
    for i in range(900):
        s = (PUBLISHED_CLOCK ** (i * dt) - 1) / (PUBLISHED_CLOCK - 1)
        ds = math.log(PUBLISHED_CLOCK) * PUBLISHED_CLOCK ** (i * dt) / (PUBLISHED_CLOCK - 1) * dt  # less than s' - s
        z = torch.randn(particles, 3, generator=rng, dtype=torch.float64).unbind(1)
        rest = 2 * torch._standard_gamma(torch.full((particles,), (d - 3) / 2, dtype=torch.float64), generator=rng)
        a, b = walk_step(bridge, a, b, s, ds, (bridge.total_noise * ds) ** 0.5, z, rest)
        if (i + 1) % 100 == 0:
            rows[(i + 1) / 1000] = a
    return rows


@pytest.mark.thorough
@pytest.mark.parametrize("start", REFERENCE)
def test_reference_moments_are_reproduced(start: str) -> None:
    """Within 3 s.e. of both simulations and half a unit of the last digit, at every time.

    The tabulated law itself is ahead of Euler's walk: its clock is 0.26% faster, which shows at t = 0.9.
    """
    d, particles, bridge = 28, 8192, LogBridge(0.0376)
    cosine = 0.0 if start == "mask" else d**-0.5
    walked = eulers_walk(bridge, d, cosine, particles)
    times = torch.tensor([(PUBLISHED_CLOCK**t - 1) / (PUBLISHED_CLOCK - 1) for t in np.linspace(0, 0.9, 181)])
    law = simulate_bridge(bridge, d, cosine, times.double(), particles=4096)
    for t, (mean, deviation) in REFERENCE[start].items():
        error = deviation / particles**0.5
        assert float(walked[t].mean()) == pytest.approx(mean, abs=3 * 2**0.5 * error + 5e-5)
        assert float(walked[t].std()) == pytest.approx(deviation, abs=3 * error + 5e-5)  # each has error / √2
        row = law.a[round(200 * t)].double()
        assert float(row.mean()) == pytest.approx(mean, abs=3 * error + 0.004 * mean + 5e-5)
        assert float(row.std()) == pytest.approx(deviation, abs=3 * error + 0.02 * deviation)


def test_tables_are_kept_and_damaged_ones_are_made_again(tmp_path: object) -> None:
    import os
    from pathlib import Path

    def make(total_noise: float = 0.1) -> BridgeTable:
        (law,) = tabulate_bridges(LogBridge(total_noise), 5, [0.0], steps=16, particles=64)
        return law

    first, folder = make(), Path(os.environ["LOGOSPHERE_CACHE"]) / "bridge_tables"
    (path,) = folder.iterdir()
    again = make()
    assert torch.equal(first.a, again.a) and torch.equal(first.times, again.times)
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="cannot be read.*computed again"):
        assert torch.equal(make().b, first.b)
    make(0.2)
    (other,) = set(folder.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    with pytest.warns(UserWarning, match="other settings"):
        assert torch.equal(make().b, first.b)
    assert torch.equal(make().b, first.b)


def test_noise_must_be_positive() -> None:
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="total_noise"):
            LogBridge(bad)
        with pytest.raises(UserError, match="total_noise"):
            HeatBridge.on(5, bad)
