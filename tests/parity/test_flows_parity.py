"""Bayesian flow networks, Fisher-Flow and Dirichlet flow matching against the equations of their papers.

References are float64 numpy implementations of the equations; the package gets doubles where it accepts them.
Integrands, forward distributions and sampler steps agree to 1e-6 unless a test states another tolerance.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import Tensor

import logosphere as ls
from logosphere.processes.simplex.bfn import BFNPath
from logosphere.processes.simplex.dirichlet import DirichletPath
from logosphere.processes.simplex.flow_matching import GeodesicPath, TangentFlow
from logosphere.rng import GeneratorNoise, Noise, normal_rows

N = 40


class FixedNoise(Noise):
    """Precomputed noise, shared by both sides."""

    device = torch.device("cpu")

    def __init__(self, normal: np.ndarray | None = None, uniform: np.ndarray | None = None):
        self._normal, self._uniform = normal, uniform

    def uniform(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.broadcast_to(self._uniform if self._uniform is not None else 0.5, shape).copy())

    def normal(self, *shape: int) -> Tensor:
        assert self._normal is not None
        return torch.from_numpy(self._normal).reshape(shape)

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        raise NotImplementedError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


def close(found: Tensor, expected: np.ndarray, rtol: float = 1e-6, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=rtol, atol=atol)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.asarray(special.softmax(x, axis=-1))


def corners(x: np.ndarray, num_classes: int) -> np.ndarray:
    return np.eye(num_classes)[x]


# ---- Bayesian flow networks (Graves et al. 2023) -------------------------------------------------------------------


@pytest.mark.parametrize("accuracy", [0.5625, 0.93])
def test_bfn_continuous_time_loss(accuracy: float) -> None:
    """Equation 205: L∞ = K β₁ E_t[t |e_x - ê(θ, t)|²]."""
    K, g = 27, rng()
    x, out, t = g.integers(K, size=N), g.normal(size=(N, K)), g.uniform(size=N)
    expected = K * accuracy * t * ((corners(x, K) - softmax(out)) ** 2).sum(-1)
    path = BFNPath(K, accuracy)
    theta = softmax(g.normal(size=(N, K)))
    close(path.elbo_term(tensor(out), tensor(corners(x, K)), tensor(theta), tensor(t), 1.0), expected)


def test_bfn_loss_of_n_messages() -> None:
    """Equation 195: log N(y | α (K e_x - 1), αK) - log Σ_k p_k N(y | α (K e_k - 1), αK), α_i = β₁ (2i - 1)/n²."""
    K, n, accuracy, g = 5, 12, 0.5625, rng(1)
    x, out, seed, i = g.integers(K, size=N), g.normal(size=(N, K)), g.uniform(size=N), g.integers(1, n + 1, size=N)
    noise = (
        normal_rows((torch.from_numpy(seed) * 2.0**52).long(), K).double().numpy()
    )  # the same draw, not the formula under test
    alpha = accuracy * (2 * i - 1) / n**2

    def mean(k: np.ndarray) -> np.ndarray:
        return np.asarray(alpha[:, None] * (K * corners(k, K) - 1))

    y = mean(x) + np.sqrt(alpha * K)[:, None] * noise
    log_p = np.log(softmax(out))

    def log_normal(k: np.ndarray) -> np.ndarray:
        return np.asarray(stats.norm.logpdf(y, mean(k), np.sqrt(alpha * K)[:, None]).sum(-1))

    receiver = special.logsumexp(np.stack([log_p[:, k] + log_normal(np.full(N, k)) for k in range(K)], -1), axis=-1)
    expected = log_normal(x) - receiver
    z = np.concatenate([softmax(g.normal(size=(N, K))), seed[:, None]], -1)
    u = np.concatenate([corners(x, K), np.zeros((N, 1))], -1)
    path = BFNPath(K, accuracy, chain=True)
    close(path.elbo_term(tensor(out), tensor(u), tensor(z), tensor((i - 1) / n), 1 / n), expected, atol=1e-9)


def test_bfn_flow_distribution() -> None:
    """Equation 182: θ = softmax(y), y ~ N(β (K e_x - 1), βK I), β = β₁ t²."""
    K, g = 7, rng(2)
    x, noise, t = g.integers(K, size=(N, 1)), g.normal(size=(N, 1, K)), g.uniform(size=(N, 1))
    beta = (0.5625 * t**2)[..., None]
    expected = softmax(beta * (K * corners(x, K) - 1) + np.sqrt(beta * K) * noise)
    close(BFNPath(K, 0.5625).q_sample(tensor(corners(x, K)), tensor(t), FixedNoise(noise)), expected)


def test_bfn_sampler_step() -> None:
    """θ ← θ e^y / Σ θ e^y with y ~ N(α (K e_k - 1), αK I) for a token k of the output distribution."""
    K, n, g = 7, 10, rng(3)
    theta, noise, k, i = softmax(g.normal(size=(N, K))), g.normal(size=(N, K)), g.integers(K, size=N), 4
    alpha = 0.5625 * (2 * i - 1) / n**2
    grown = theta * np.exp(alpha * (K * corners(k, K) - 1) + math.sqrt(alpha * K) * noise)
    s, then = np.full(N, (i - 1) / n), np.full(N, i / n)
    found = BFNPath(K, 0.5625).step(
        tensor(500 * corners(k, K)), tensor(theta), tensor(s), tensor(then), FixedNoise(noise)
    )
    close(found, grown / grown.sum(-1, keepdims=True))


# ---- Fisher-Flow (Davis et al. 2024), statistical flow matching (Cheng et al. 2024) ----------------------------------


def slerp(start: np.ndarray, end: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The geodesic between unit vectors at r, and its velocity."""
    angle = np.arccos((start * end).sum(-1, keepdims=True))
    r = r[..., None]
    point = (np.sin((1 - r) * angle) * start + np.sin(r * angle) * end) / np.sin(angle)
    return point, angle * (-np.cos((1 - r) * angle) * start + np.cos(r * angle) * end) / np.sin(angle)


def orthant(g: np.random.Generator, *shape: int) -> np.ndarray:
    x = np.abs(g.normal(size=shape))
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def tangent_flow(num_classes: int, **options: Any) -> TangentFlow:
    process = ls.build(
        "fisher-flow", vocab_size=num_classes, length=1, denoiser=None, preset="paper", **options
    ).process
    assert isinstance(process, TangentFlow)
    return process


def test_fisher_flow_forward_path() -> None:
    """x_t = exp_{x₀}(t log_{x₀} e_x) from |N(0, I)| / |·|. Float32 normals: 1e-5."""
    K, g = 6, rng(4)
    normal, x, r = g.normal(size=(N, 1, K)), g.integers(K, size=(N, 1)), g.uniform(0.01, 0.99, size=(N, 1))
    start = np.abs(normal) / np.linalg.norm(normal, axis=-1, keepdims=True)
    found = tangent_flow(K).corrupt(tensor(corners(x, K)), tensor(1 - r), FixedNoise(normal.astype(np.float32)))
    close(found, slerp(start, corners(x, K), r)[0], rtol=1e-5, atol=1e-6)


def test_statistical_flow_matching_starts() -> None:
    """√Dirichlet(1, …, 1): squares of coordinates are uniform on the simplex, so each is Beta(1, K - 1)."""
    K = 5
    start = GeodesicPath(K, 1.0).sample_prior(3000, 1, GeneratorNoise(torch.Generator().manual_seed(1), 3000))
    assert stats.kstest(start[:, 0, 2].double().square().numpy(), stats.beta(1, K - 1).cdf).pvalue > 1e-3
    sphere = GeodesicPath(K, 0.5).sample_prior(3000, 1, GeneratorNoise(torch.Generator().manual_seed(1), 3000))
    assert stats.kstest(sphere[:, 0, 2].double().square().numpy(), stats.beta(0.5, (K - 1) / 2).cdf).pvalue > 1e-3


def test_fisher_flow_loss() -> None:
    """|w - <x_t, w> x_t - ẋ_t|² for the raw network output w."""
    K, g = 6, rng(5)
    x, r, raw = g.integers(K, size=N), g.uniform(0.01, 0.95, size=N), g.normal(size=(N, K))
    z, velocity = slerp(orthant(g, N, K), corners(x, K), r)
    projected = raw - (z * raw).sum(-1, keepdims=True) * z
    expected = ((projected - velocity) ** 2).sum(-1)
    process = tangent_flow(K).train()
    found = process.elbo_rate(tensor(raw), tensor(corners(x, K)), tensor(z), tensor(1 - r))
    close(found, expected)
    close(process.loss(found, tensor(raw), tensor(corners(x, K)), tensor(z), tensor(1 - r), tensor(r)), expected)


def test_fisher_flow_euler_step() -> None:
    """|cos|h v| x + sin|h v| / |h v| h v|, coordinate by coordinate."""
    K, g, h = 6, rng(6), 0.04
    z, raw = orthant(g, N, K), 3 * g.normal(size=(N, K))
    move = h * (raw - (z * raw).sum(-1, keepdims=True) * z)
    length = np.linalg.norm(move, axis=-1, keepdims=True)
    expected = np.abs(np.cos(length) * z + np.sin(length) / length * move)
    t = np.full(N, 0.5)
    close(tangent_flow(K).step(tensor(raw), tensor(z), tensor(t), tensor(t - h), FixedNoise()), expected)
    last = tangent_flow(K).step(tensor(raw), tensor(z), tensor(np.full(N, h)), tensor(np.zeros(N)), FixedNoise())
    close(last, corners(expected.argmax(-1), K))


def test_fisher_flow_velocity_of_tokens() -> None:
    """The default: v = Σ_k p_k log_z(e_k) / (1 - r), with log_z(e) = φ (e - cos φ z) / sin φ."""
    K, g = 6, rng(7)
    z, p, r = orthant(g, N, K), softmax(g.normal(size=(N, K))), 0.3
    angle = np.arccos(z)
    logs = angle[..., None] * (np.eye(K) - z[..., None] * z[:, None]) / np.sin(angle)[..., None]  # [N, k, coordinate]
    expected = np.einsum("nk,nkc->nc", p, logs) / (1 - r)
    close(GeodesicPath(K).mean_velocity(tensor(p), tensor(z), tensor(np.full(N, 2 * r))), expected)
    close(tangent_flow(K).logits(tensor(expected), tensor(z), tensor(np.full(N, 1 - r))), np.log(p), atol=1e-4)


@pytest.mark.parametrize("concentration", [0.5, 1.0])
def test_geodesic_log_likelihood_is_the_density_of_the_path(concentration: float) -> None:
    """q(z | k) = p₀(start) / |det ∂z/∂start| on the sphere, by differences, K = 3."""
    r, h, g = 0.2, 1e-5, rng(8)
    z = orthant(g, 30, 3)
    angle = np.arccos(z)
    z = z[(angle / (1 - r) < 1.5).all(-1)]
    assert len(z) > 3
    expected = np.empty_like(z)
    for n, point in enumerate(z):
        for k in range(3):
            e = np.eye(3)[k]

            def start(at: np.ndarray, e: np.ndarray = e) -> np.ndarray:
                """The other end of the geodesic through `at` to e."""
                phi = np.arccos(at @ e)
                across = (at - (at @ e) * e) / np.sin(phi)
                return np.asarray(np.cos(phi / (1 - r)) * e + np.sin(phi / (1 - r)) * across)

            basis = np.linalg.svd(point[None])[2][1:]
            moved = [
                (start(np.cos(h) * point + np.sin(h) * b) - start(np.cos(h) * point - np.sin(h) * b)) / (2 * np.sin(h))
                for b in basis
            ]
            frame = np.linalg.svd(start(point)[None])[2][1:]
            jacobian = abs(np.linalg.det(np.array(moved) @ frame.T))
            expected[n, k] = (2 * concentration - 1) * np.log(start(point)).sum() + math.log(jacobian)
    found = GeodesicPath(3, concentration).log_likelihood(tensor(z), tensor(np.full(len(z), 2 * r))).numpy()
    np.testing.assert_allclose(found - found[:, :1], expected - expected[:, :1], atol=1e-5)


# ---- Dirichlet flow matching (Stark et al. 2024) -------------------------------------------------------------------


def speed(y: np.ndarray, alpha: float, num_classes: int) -> np.ndarray:
    """C(y, α) = -∂_α I_y(α, K - 1) B(α, K - 1) / ((1 - y)^(K-1) y^(α-1)), by a quadrature of ∂_α I · B."""
    b = num_classes - 1
    mean = special.digamma(alpha) - special.digamma(alpha + b)
    points, weights = np.polynomial.legendre.leggauss(400)
    q = 30 / alpha * (points + 1)[:, None]  # x = y e^-q
    x = y.ravel() * np.exp(-q)
    terms = (mean - np.log(y.ravel()) + q) * np.exp(-alpha * q) * (1 - x) ** (b - 1)
    found = (30 / alpha * weights[:, None] * terms).sum(0) * y.ravel() / (1 - y.ravel()) ** b
    return np.asarray(found.reshape(y.shape))


def dirichlet(num_classes: int, **options: Any) -> DirichletPath:
    path = ls.build(
        "dirichlet-flow", vocab_size=num_classes, length=1, denoiser=None, preset="paper", **options
    ).process.path
    assert isinstance(path, DirichletPath)
    return path


def test_dirichlet_velocity() -> None:
    """Σ_k p_k C(z_k, α) (e_k - z). C is tabulated and linear between entries: 3e-4, and 1e-6 at the entries."""
    K, g, node = 4, rng(9), 64
    path, alpha = dirichlet(K), 1 + 7 * node / 128
    entries = np.exp(-20 + 20 * np.array([300, 400, 450, 490, 505]) / 512)
    s = tensor(np.full(1, node / 128))
    close(path.speed(tensor(entries[None]), s)[0], speed(entries, alpha, K))
    z, p = g.dirichlet(np.ones(K), size=N), softmax(g.normal(size=(N, K)))
    factor = p * speed(z, alpha, K)
    expected = factor - factor.sum(-1, keepdims=True) * z
    found = path.velocity(tensor(np.log(p)), tensor(z), tensor(np.full(N, node / 128))) / 7  # per unit of α
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-4, atol=1e-4)


def test_dirichlet_forward_distribution() -> None:
    """z_x ~ Beta(α, K - 1), and the other coordinates are uniform over the rest."""
    K, n = 5, 4000
    u = tensor(corners(np.full((n, 1), 2), K)).float()
    z = (
        dirichlet(K)
        .q_sample(u, torch.full((n, 1), 0.4), GeneratorNoise(torch.Generator().manual_seed(2), n))
        .double()
        .numpy()[:, 0]
    )
    assert stats.kstest(z[:, 2], stats.beta(1 + 7 * 0.4, K - 1).cdf).pvalue > 1e-3
    assert stats.kstest(z[:, 0] / (1 - z[:, 2]), stats.beta(1, K - 2).cdf).pvalue > 1e-3


def test_dirichlet_surrogate_and_noisy_bound() -> None:
    """∫ C (α - 1)(1 - p_x) / z_x dα; and |u_x - Σ p u|² / 2h in the metric pinv(diag z - z zᵀ), u = w (e - z)."""
    K, g, node = 4, rng(10), 96
    alpha, s = 1 + 7 * node / 128, tensor(np.full(N, node / 128))
    z, out, x = g.dirichlet(np.ones(K), size=N), g.normal(size=(N, K)), g.integers(K, size=N)
    p, u, factor = softmax(out), corners(x, K), speed(z, alpha, K)
    rows = np.arange(N)
    expected = factor[rows, x] * (alpha - 1) * (1 - p[rows, x]) / z[rows, x]
    found = dirichlet(K).elbo_term(tensor(out), tensor(u), tensor(z), s, 0.01) / (0.01 * 7)
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-4)
    noisy = DirichletPath(K, 8.0)
    h = float(noisy.noise_rate(s)[0])
    drifts = (factor + 0.5 * h * (alpha - 1))[..., None] * (np.eye(K) - z[:, None])
    missed = drifts[rows, x] - np.einsum("nk,nkc->nc", p, drifts)
    metric = np.stack([np.linalg.pinv(np.diag(row) - np.outer(row, row), rcond=1e-10) for row in z])
    expected = np.einsum("nc,ncd,nd->n", missed, metric, missed) / (2 * h)
    found = noisy.elbo_term(tensor(out), tensor(u), tensor(z), s, 0.01) / (0.01 * 7)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3)


def test_dirichlet_euler_step() -> None:
    """z + Δα Σ_k p_k C(z_k, α) (e_k - z), projected to the simplex."""
    K, g, node, step = 4, rng(11), 120, 10.0
    z, p, alpha = g.dirichlet(np.ones(K), size=N), softmax(3 * g.normal(size=(N, K))), 1 + 7 * node / 128
    path = dirichlet(K)
    factor = p * path.speed(tensor(z), tensor(np.full(N, node / 128))).numpy()
    free = z + step * 7 * (factor - factor.sum(-1, keepdims=True) * z)
    assert (free < 0).any() and alpha > 7

    def nearest(row: np.ndarray) -> np.ndarray:
        cut = optimize.brentq(lambda c: np.maximum(row - c, 0).sum() - 1, row.min() - 1, row.max())
        return np.asarray(np.maximum(row - cut, 0))

    s = tensor(np.full(N, node / 128))
    found = path.euler(tensor(np.log(p)), tensor(z), s, s + step, FixedNoise())
    close(found, np.stack([nearest(row) for row in free]), atol=1e-7)
    assert torch.equal(path.final_token(tensor(np.log(p)), tensor(z), s), tensor(p.argmax(-1)))
