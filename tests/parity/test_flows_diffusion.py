"""Dirichlet diffusion against the equations of DDSM (Avdeyev et al. 2023), float64.

One stick against b others, dv = ½ h ((1 - v) - b v) dτ + √(h v (1 - v)) dW, has the eigenfunctions P_n^(b-1, 0)(2v - 1)
and eigenvalues -½ h n (n + b). With w = Beta(1, b) its density at τ is

    q_τ(v) = w(v) Σ_n exp(-½ h n (n + b) τ) c_n P_n(v),      c_n = ∫ q₀ P_n dv / ∫ w P_n² dv,

and q₀ / w is a polynomial of degree M here, so the series ends at n = M. The package sums over the lineages
of a death process instead. Its tables are float32, hence the tolerance of 1e-5.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

import logosphere as ls
from logosphere.processes.simplex.process import SimplexProcess
from logosphere.processes.simplex.stick_breaking import StickPath, StickScores
from logosphere.processes.simplex.wright_fisher import WrightFisherPath
from logosphere.rng import Noise

N = 30


class FixedNoise(Noise):
    """Normal numbers that were drawn before."""

    device = torch.device("cpu")

    def __init__(self, normal: np.ndarray):
        self._normal = normal

    def uniform(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.5, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self._normal).reshape(shape)

    def low_discrepancy_times(self, draws: int, blocks: int) -> Tensor:
        raise NotImplementedError


def tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


@cache
def coefficients(b: int, grown: int, against: int) -> np.ndarray:
    """c_n of q₀ = Beta(1 + grown, b + against)."""
    points, weights = np.polynomial.legendre.leggauss(80)
    v, weights = (points + 1) / 2, weights / 2
    found = []
    for n in range(grown + against + 1):
        p = special.eval_jacobi(n, b - 1, 0, 2 * v - 1)
        noise = stats.beta.pdf(v, 1, b)
        found.append((weights * stats.beta.pdf(v, 1 + grown, b + against) * p).sum() / (weights * noise * p**2).sum())
    return np.array(found)


def ratio(v: np.ndarray, tau: float, h: float, b: int, grown: int, against: int) -> tuple[np.ndarray, np.ndarray]:
    """q_τ / w, and its derivative by v."""
    c = coefficients(b, grown, against)
    n = np.arange(len(c))
    c = c * np.exp(-0.5 * h * n * (n + b) * tau)
    x = 2 * v - 1
    value = sum(c[k] * special.eval_jacobi(k, b - 1, 0, x) for k in n)
    slope = sum(c[k] * (k + b) * special.eval_jacobi(k - 1, b, 1, x) for k in n[1:])
    return np.asarray(value), np.asarray(slope)


def sticks_of(z: np.ndarray) -> np.ndarray:
    return np.asarray(z[:, :-1] / z[:, ::-1].cumsum(-1)[:, ::-1][:, :-1])


def targets(path: StickPath, v: np.ndarray, tau: float, token: int) -> np.ndarray:
    """∂ log q_τ(v | x)/w by each stick: Beta(1, b + M) before the token, Beta(1 + M, b) at it, the prior after it."""
    K, M, found = path.num_classes, path.max_lineages, np.zeros_like(v)
    for j in range(min(token + 1, K - 1)):
        b = K - 1 - j
        value, slope = ratio(v[:, j], tau, 2 / (1 + b), b, *((M, 0) if j == token else (0, M)))
        found[:, j] = slope / value
    return found


def published(num_classes: int, **options: float) -> StickScores:
    process = ls.build("ddsm", vocab_size=num_classes, length=1, denoiser=None, preset="paper", **options).process
    assert isinstance(process, SimplexProcess) and isinstance(process.path, StickScores)
    return process.path


NODE = 128
"""An index of the 256 steps of the table, at which τ is evaluated."""


@pytest.mark.parametrize("num_classes", [3, 6])
def test_stick_log_likelihood_matches_the_jacobi_series(num_classes: int) -> None:
    path, g = published(num_classes).sticks, np.random.default_rng(0)
    z, tau = g.dirichlet(np.ones(num_classes), size=N), float(path.times[NODE])
    v, M = sticks_of(z), path.max_lineages
    expected = np.zeros((N, num_classes))
    for k in range(num_classes):
        for j in range(min(k + 1, num_classes - 1)):
            b = num_classes - 1 - j
            expected[:, k] += np.log(ratio(v[:, j], tau, 2 / (1 + b), b, *((M, 0) if j == k else (0, M)))[0])
    found = path.log_likelihood(tensor(z), torch.full((N,), NODE / 256)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("token", [0, 2, 3])
def test_score_matching_in_stick_coordinates(token: int) -> None:
    """½ Σ_j h_j v_j (1 - v_j) (∂_v log q/w - Σ_k g_k ∂z_k/∂v_j)², g the network output less its mean, times √w(τ)."""
    K, g = 4, np.random.default_rng(1)
    path = published(K)
    z, out, tau = g.dirichlet(np.ones(K), size=N), g.normal(size=(N, K)), float(path.sticks.times[NODE])
    v = tensor(sticks_of(z)).requires_grad_()
    left = torch.cat([torch.ones(N, 1, dtype=torch.float64), (1 - v).cumprod(-1)], -1)
    broken = left * torch.cat([v, torch.ones(N, 1, dtype=torch.float64)], -1)
    score = float(path.scale[NODE // 4]) * (out - out.mean(-1, keepdims=True))
    (pulled,) = torch.autograd.grad((broken * tensor(score)).sum(), v)
    at, b = v.detach().numpy(), np.arange(K - 1, 0, -1)
    missed = targets(path.sticks, at, tau, token) - pulled.numpy()
    expected = 0.5 * (2 / (1 + b) * at * (1 - at) * missed**2).sum(-1)
    u = np.tile(np.eye(K)[token], (N, 1))
    steep = float(path.sticks.times[NODE] - path.sticks.times[NODE + 1]) * 256
    found = path.elbo_term(tensor(out), tensor(u), tensor(z), torch.full((N,), NODE / 256), 1.0) / steep
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-5)


def test_euler_maruyama_step() -> None:
    """v - h (½ ((1 - v) - b v) - (1 - 2v) - v (1 - v) S) c Δτ + √(c Δτ h v (1 - v)) ξ with S the score of v itself."""
    K, c, g = 4, 2.0, np.random.default_rng(2)
    path = published(K, dilation=c)
    z, out, noise = g.dirichlet(np.ones(K), size=N), g.normal(size=(N, K)), g.normal(size=(N, K - 1))
    v, b, times = sticks_of(z), np.arange(K - 1, 0, -1), path.sticks.times.double()
    s, then = torch.full((N,), NODE / 256), torch.full((N,), (NODE + 1) / 256)
    score = path.stick_scores(tensor(out), tensor(z), s).numpy() - (b - 1) / (1 - v)
    h, step = 2 / (1 + b), float(times[NODE] - times[NODE + 1])
    drift = h * (0.5 * ((1 - v) - b * v) - (1 - 2 * v) - v * (1 - v) * score)
    moved = v - drift * c * step
    expected = np.clip(moved + np.sqrt(c * step * h * v * (1 - v)) * noise, 1e-5, 1 - 1e-5)
    found = path.euler(tensor(out), tensor(z), s, then, FixedNoise(noise)).numpy()
    np.testing.assert_allclose(sticks_of(found), expected, rtol=1e-5, atol=1e-7)
    last = path._euler(tensor(out), tensor(z), s, then)[0].numpy()  # without noise, as in the last step
    np.testing.assert_allclose(last, moved, rtol=1e-5, atol=1e-7)


def test_exact_network_output_is_the_mean_score() -> None:
    """The stick scores of a posterior p are Σ_k p_k times the scores of the tokens."""
    K, g = 4, np.random.default_rng(3)
    path = published(K)
    z, p, s = g.dirichlet(np.ones(K), size=N), g.dirichlet(np.ones(K), size=N), torch.full((N,), NODE / 256)
    v, tau = sticks_of(z), float(path.sticks.times[NODE])
    expected = sum(p[:, [k]] * targets(path.sticks, v, tau, k) for k in range(K))
    found = path.stick_scores(path.from_posterior(tensor(np.log(p)), tensor(z), s), tensor(z), s)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


# ---- the default: all coordinates at once -------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [3, 10])
def test_wright_fisher_log_likelihood_and_drift(num_classes: int) -> None:
    """z_k against K - 1 others with h = 1; g_k = z_k ∂ log P(z_k)."""
    path, g = WrightFisherPath(num_classes, 7), np.random.default_rng(4)
    z, tau = g.dirichlet(np.ones(num_classes), size=N), float(path.times[400])
    value, slope = ratio(z, tau, 1.0, num_classes - 1, 7, 0)
    s = torch.full((N,), 400 / 1024)
    np.testing.assert_allclose(path.log_likelihood(tensor(z), s).numpy(), np.log(value), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(path.drift_strength(tensor(z), s).numpy(), z * slope / value, rtol=1e-4, atol=1e-6)


def test_wright_fisher_bound() -> None:
    """½ |g_x (e_x - z) - Σ_k p_k g_k (e_k - z)|² in the metric pinv(diag z - z zᵀ)."""
    K, g = 4, np.random.default_rng(5)
    path, s = WrightFisherPath(K, 7), torch.full((N,), 400 / 1024)
    z, out, x = g.dirichlet(np.ones(K), size=N), g.normal(size=(N, K)), g.integers(K, size=N)
    value, slope = ratio(z, float(path.times[400]), 1.0, K - 1, 7, 0)
    drifts = (z * slope / value)[..., None] * (np.eye(K) - z[:, None])
    missed = drifts[np.arange(N), x] - np.einsum("nk,nkc->nc", special.softmax(out, axis=-1), drifts)
    metric = np.stack([np.linalg.pinv(np.diag(row) - np.outer(row, row), rcond=1e-10) for row in z])
    expected = 0.5 * np.einsum("nc,ncd,nd->n", missed, metric, missed)
    steep = float(path.times[400] - path.times[401]) * 1024
    found = path.elbo_term(tensor(out), tensor(np.eye(K)[x]), tensor(z), s, 1.0) / steep
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_wright_fisher_step_without_noise() -> None:
    """dz/dτ = Σ_k p_k g_k (e_k - z) with the rates p_k g_k held fixed, by an ODE solver."""
    K, g = 4, np.random.default_rng(6)
    path = WrightFisherPath(K, 7)
    z, out = g.dirichlet(np.ones(K), size=1), g.normal(size=(1, K))
    s, then = torch.tensor([400 / 1024]), torch.tensor([440 / 1024])
    value, slope = ratio(z, float(path.times[400]), 1.0, K - 1, 7, 0)
    rates = (special.softmax(out, axis=-1) * z * slope / value)[0]
    step = float(path.times[400] - path.times[440])
    solved = integrate.solve_ivp(lambda _, y: rates - rates.sum() * y, (0, step), z[0], rtol=1e-10, atol=1e-12).y[:, -1]
    found = path.step(tensor(out), tensor(z), s, then, FixedNoise(np.zeros(2 * K)))
    np.testing.assert_allclose(found[0].numpy(), solved, rtol=1e-5, atol=1e-7)


def test_time_dilation_lengthens_each_step() -> None:
    """With c = 3 a step from s to `then` is the step of c = 1 over three times the time."""
    K, g = 3, np.random.default_rng(7)
    z, out, noise = g.dirichlet(np.ones(K), size=N), g.normal(size=(N, K)), g.normal(size=(N, K - 1))
    once, thrice = published(K), published(K, dilation=3.0)
    s, then = torch.full((N,), 0.5), torch.full((N,), 0.51)
    moved = [sticks_of(p.euler(tensor(out), tensor(z), s, then, FixedNoise(0 * noise)).numpy()) for p in (once, thrice)]
    v = sticks_of(z)
    np.testing.assert_allclose(moved[1] - v, 3 * (moved[0] - v), rtol=1e-6, atol=1e-9)
    assert math.isfinite(float(np.abs(moved[1]).max()))
