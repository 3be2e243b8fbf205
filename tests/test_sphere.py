"""Geometry of the sphere: exp and log are inverse, norms are distances, tangents are orthogonal, at all angles."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_languages import generator

from logosphere.geometry import sphere

DIMENSIONS = [2, 3, 28, 513, 30_001]


def points(d: int, n: int = 32, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return sphere.normalise(torch.randn(n, d, generator=generator(seed), dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_exp_and_log_are_inverse(d: int, dtype: torch.dtype) -> None:
    x, y = points(d, seed=1, dtype=dtype), points(d, seed=2, dtype=dtype)
    tolerance = 30 * torch.finfo(dtype).eps ** (1 if dtype == torch.float64 else 0.9)
    v = sphere.log(x, y)
    assert sphere.dot(x, v).abs().max() < tolerance * 4
    torch.testing.assert_close(sphere.exp(x, v), y, atol=tolerance, rtol=0)
    torch.testing.assert_close(v.norm(dim=-1), sphere.distance(x, y), atol=tolerance, rtol=0)
    torch.testing.assert_close(sphere.exp(x, v).norm(dim=-1), torch.ones(32, dtype=dtype), atol=tolerance, rtol=0)


@given(angle=st.floats(1e-12, math.pi - 1e-6), d=st.sampled_from([2, 3, 28, 512]), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_distances_are_precise_near_zero_and_near_the_antipode(angle: float, d: int, seed: int) -> None:
    x = points(d, n=1, seed=seed)
    across = sphere.normalise(sphere.project(x, points(d, n=1, seed=seed + 10)))
    y = math.cos(angle) * x + math.sin(angle) * across
    assert float(sphere.distance(x, y)) == pytest.approx(angle, rel=1e-7, abs=1e-15)
    torch.testing.assert_close(sphere.log(x, y), angle * across, rtol=1e-5, atol=1e-14)


def test_log_of_the_antipode_has_length_pi() -> None:
    x = points(5)
    v = sphere.log(x, -x)
    torch.testing.assert_close(v.norm(dim=-1), torch.full((32,), math.pi).double())
    torch.testing.assert_close(sphere.exp(x, v), -x, atol=1e-12, rtol=0)
    assert torch.equal(sphere.log(x, x), torch.zeros_like(x))


def test_gradients_are_finite_at_singular_points() -> None:
    x = points(4).requires_grad_()
    for y in (x.detach().clone(), points(4, seed=3)):
        sphere.log(x, y).sum().backward()
        sphere.exp(x, torch.zeros_like(x)).sum().backward()
        sphere.distance(x, points(4, seed=4)).sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_geodesics_have_proportional_distances() -> None:
    x, y = points(7, seed=1), points(7, seed=2)
    for fraction in (0.0, 0.3, 1.0):
        z = sphere.geodesic(x, y, torch.full((32,), fraction).double())
        torch.testing.assert_close(sphere.distance(x, z), fraction * sphere.distance(x, y), atol=1e-7, rtol=0)


def test_maps_commute_with_rotations() -> None:
    """Rotations commute with exp, log and projection."""
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator(5), dtype=torch.float64))[0]
    x, y = points(6, seed=1), points(6, seed=2)
    v = sphere.project(x, torch.randn(32, 6, generator=generator(6), dtype=torch.float64))
    torch.testing.assert_close(sphere.log(x @ rotation, y @ rotation), sphere.log(x, y) @ rotation)
    torch.testing.assert_close(sphere.exp(x @ rotation, v @ rotation), sphere.exp(x, v) @ rotation)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_angle_over_sine_is_smooth_at_the_vertex(dtype: torch.dtype) -> None:
    theta = torch.cat([torch.logspace(-6, -1, 40), torch.linspace(0.1, 3.1, 40)]).double()
    found = sphere.angle_over_sine(theta.cos().to(dtype)).double()
    torch.testing.assert_close(found, theta / theta.sin(), rtol=1e-9 if dtype == torch.float64 else 2e-4, atol=0)


def test_tangent_noise_is_standard_in_the_tangent_space() -> None:
    x = points(4, n=1)
    noise = sphere.project(x, torch.randn(40_000, 4, generator=generator(9), dtype=torch.float64))
    covariance = noise.T @ noise / len(noise)
    expected = torch.eye(4).double() - x.T @ x
    assert (covariance - expected).abs().max() < 5 * (2 / 40_000) ** 0.5
