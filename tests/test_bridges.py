"""Bridges on the sphere: the heat kernel against its series, the tabulated law against a simulation in full."""

import math

import numpy as np
import pytest
import torch
from laws import generator
from scipy import special

from logosphere.errors import UserError
from logosphere.geometry import sphere
from logosphere.geometry.bridges import Bridge, HeatBridge, Law, LogBridge, simulate
from logosphere.geometry.heat import heat_kernel
from logosphere.geometry.laws import bridge_laws


def series(n: int, tau: float, theta: np.ndarray) -> np.ndarray:
    """log p_τ(θ) · (2πτ)^(n/2) on S^n from its Gegenbauer expansion, which holds while p is not too small to cancel."""
    degree = np.arange(600)
    weight = np.exp(-degree * (degree + n - 1) * tau / 2) * (2 * degree + n - 1) / (n - 1)
    volume = math.log(2) + (n + 1) / 2 * math.log(math.pi) - special.gammaln((n + 1) / 2)
    terms = [weight * special.eval_gegenbauer(degree, (n - 1) / 2, math.cos(angle)) for angle in theta]
    return np.log([term.sum() for term in terms]) - volume + n / 2 * math.log(2 * math.pi * tau)


@pytest.mark.parametrize(("n", "largest"), [(2, 0.3), (3, 0.3), (9, 0.3), (27, 0.0376), (27, 0.15), (255, 0.01)])
def test_the_heat_kernel_is_its_series(n: int, largest: float) -> None:
    kernel = heat_kernel(n, 0.05 * largest, largest)
    for tau in (0.3 * largest, largest):
        theta = np.linspace(0.05, min(2.5, math.sqrt(2 * tau * 22)), 15)
        cosine, time = torch.tensor(np.cos(theta))[None], torch.tensor([tau], dtype=torch.float64)
        truth = series(n, tau, theta)
        np.testing.assert_allclose(kernel.log_p(cosine, time)[0].numpy(), truth, atol=2e-3)
        slope = (series(n, tau, theta + 1e-4) - series(n, tau, theta - 1e-4)) / (2e-4 * -np.sin(theta))
        np.testing.assert_allclose(kernel.pull(cosine, time)[0].numpy(), slope, rtol=1e-3)


def test_on_the_three_sphere_the_kernel_is_known() -> None:
    """S³: p ∝ Σ over windings; the main term is θ/sin θ · exp(τ/2 - θ²/2τ)."""
    kernel, theta = heat_kernel(3, 0.01, 0.2), torch.linspace(0.1, 2.5, 20).double()
    for tau in (0.02, 0.2):
        truth = -theta.square() / (2 * tau) + (theta / theta.sin()).log() + tau / 2
        found = kernel.log_p(theta.cos()[None], torch.tensor([tau]).double())[0]
        torch.testing.assert_close(found, truth, atol=2e-3, rtol=0)


def simulated(bridge: Bridge, origin: torch.Tensor, times: torch.Tensor, n: int) -> torch.Tensor:
    """X at the last time by a geodesic random walk in all d dimensions, towards the first axis."""
    rng, d = generator(3), len(origin)
    x, vertex = origin.double().expand(n, -1), torch.eye(d, dtype=torch.float64)[0]
    for s, ds in zip(times[:-1].tolist(), times.diff().tolist(), strict=True):
        pull = bridge.pull(x[:, :1], torch.full((n,), s).double())
        noise = torch.randn(n, d, generator=rng, dtype=torch.float64)
        v = pull * ds * (vertex - x[:, :1] * x) + (bridge.total_noise * ds) ** 0.5 * sphere.project(x, noise)
        x = sphere.exp(x, v)
    return x


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
    law, x = simulate(bridge, d, cosine, times, particles=4096), simulated(bridge, origin, times, 20_000)
    a, across = x[:, 0], (origin.double() - cosine * torch.eye(d)[0]) / math.sqrt(1 - cosine**2)
    b = x @ across
    ours = (law.a[-1].double(), law.b[-1].double())
    for moment in (lambda a, b: a, lambda a, b: b, lambda a, b: a * a, lambda a, b: a * b, lambda a, b: b**3):
        truth = moment(a, b)
        assert abs(float(truth.mean() - moment(*ours).mean())) < 4 * float(truth.std()) / 20_000**0.5


def test_the_table_of_the_notes_is_reproduced() -> None:
    """Mean and deviation of <X, e> for d = 28 in the paper's clock s = (200^t - 1)/199 (V = 0.0376), mask start."""
    reference = {0.2: (0.0151, 0.0188), 0.4: (0.0572, 0.0361), 0.6: (0.1749, 0.0593)}
    times = torch.tensor([(200**t - 1) / 199 for t in np.linspace(0, 0.6, 121)], dtype=torch.float64)
    law = simulate(LogBridge(0.0376), 28, 0.0, times, particles=4096)
    for t, (mean, deviation) in reference.items():
        row = law.a[round(t / 0.6 * 120)]
        assert float(row.mean()) == pytest.approx(mean, abs=0.0012)
        assert float(row.std()) == pytest.approx(deviation, rel=0.04)


def test_tables_are_kept_and_damaged_ones_are_made_again(tmp_path: object) -> None:
    import os
    from pathlib import Path

    def make(total_noise: float = 0.1) -> Law:
        (law,) = bridge_laws(LogBridge(total_noise), 5, [0.0], steps=16, particles=64)
        return law

    first, folder = make(), Path(os.environ["LOGOSPHERE_CACHE"]) / "laws"
    (path,) = folder.iterdir()
    again = make()
    assert torch.equal(first.a, again.a) and torch.equal(first.times, again.times)
    path.write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="cannot be read.*made again"):
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
