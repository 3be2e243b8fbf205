"""The simplex and the paths on it, against simulation, numerical derivatives and scipy's special functions."""

import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats
from statistical_checks import MIN_P_VALUE, mean_and_error
from toy_languages import generator

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.geometry import simplex, sphere
from logosphere.processes.simplex.dirichlet import DirichletPath, mean_speeds, speed_table
from logosphere.processes.simplex.flow_matching import END, GeodesicPath
from logosphere.processes.simplex.stick_breaking import StickPath
from logosphere.processes.simplex.wright_fisher import WrightFisherPath, interpolate
from logosphere.rng import GeneratorNoise

N = 5000


def truth(x: torch.Tensor, num_classes: int) -> torch.Tensor:
    return 200.0 * F.one_hot(x, num_classes)


@pytest.mark.parametrize("shape", [1.0, 1.3, 4.0, 20.0])
def test_sample_gamma_has_the_gamma_distribution(shape: float) -> None:
    drawn = simplex.sample_gamma(torch.full((N, 1), shape), GeneratorNoise(generator(1), N))
    assert stats.kstest(drawn.flatten(), stats.gamma(shape).cdf).pvalue > MIN_P_VALUE


@pytest.mark.parametrize("variance", [0.01, 0.3])
def test_wright_fisher_diffusion_keeps_the_uniform_distribution(variance: float) -> None:
    z = simplex.sample_dirichlet(N, 1, 3, GeneratorNoise(generator(2), N))
    moved = simplex.diffusion_step(z, torch.full((N, 1, 1), variance), GeneratorNoise(generator(3), N))
    torch.testing.assert_close(moved.sum(-1), torch.ones(N, 1))
    assert (moved >= 0).all() and not torch.equal(moved, z)
    for frequencies in (z, moved):
        assert stats.kstest(frequencies[..., 0].flatten(), stats.beta(1, 2).cdf).pvalue > MIN_P_VALUE


def test_wright_fisher_steps_have_the_covariance_of_the_metric() -> None:
    """Covariance h G and drift ½ h (1 - K z), to first order in h."""
    z, h = torch.tensor([0.7, 0.2, 0.1]).expand(100_000, 3), 1e-3
    step = simplex.diffusion_step(z, torch.full((len(z), 1), h), GeneratorNoise(generator(4), len(z))) - z
    metric = torch.diag(z[0]) - z[0][:, None] * z[0]
    torch.testing.assert_close(step.T.cov() / h, metric, rtol=0.03, atol=0.003)
    for k in range(3):
        mean, error = mean_and_error(step[:, k] / h)
        assert abs(mean - 0.5 * float(1 - 3 * z[0, k])) < 4 * error + 0.01


def test_squared_norm_is_that_of_the_inverse_fisher_metric() -> None:
    z = torch.rand(5, generator=generator(5)).double().softmax(0)
    a = torch.randn(5, generator=generator(6)).double()
    step = a - a.sum() * z
    metric = torch.linalg.pinv(torch.diag(z) - z[:, None] * z)
    torch.testing.assert_close(simplex.squared_norm(a, z), step @ metric @ step)


# ---- geodesics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 4, 27, 300])
def test_geodesics_have_constant_speed(num_classes: int) -> None:
    path, s = GeodesicPath(num_classes), torch.full((50, 1), 0.7)
    x = torch.randint(num_classes, (50, 1), generator=generator(12))
    u = F.one_hot(x, num_classes).float()
    start = path.sample_prior(50, 1, GeneratorNoise(generator(13), 50))
    z = path.q_sample(u, s, GeneratorNoise(generator(13), 50))
    torch.testing.assert_close(sphere.distance(z, u), (1 - END * 0.7) * sphere.distance(start, u), rtol=1e-4, atol=1e-5)
    velocity = path.mean_velocity(u, z, s)
    assert sphere.dot(velocity, z).abs().max() < 1e-5
    torch.testing.assert_close(velocity.norm(dim=-1), sphere.distance(start, u), rtol=1e-3, atol=1e-4)
    later = path.step(truth(x, num_classes), z, s, s + 0.3, GeneratorNoise(generator(14), 50))
    assert (later.argmax(-1) == x).all()  # at the end of the path the token is determined


# ---- Dirichlet flows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 4, 27, 160])
def test_speed_table_is_the_derivative_of_the_beta_function(num_classes: int) -> None:
    alphas, step, b = torch.tensor([1.0, 2.5, 8.0]).double(), 1e-4, num_classes - 1
    log_y = torch.linspace(-20, 0, 513).double()
    near = (log_y > -6) & (log_y < -0.5)
    y = log_y[near].exp().numpy()
    for alpha, row in zip(alphas.tolist(), speed_table(num_classes, alphas), strict=True):
        up, down = (special.betainc(alpha + sign * step, b, y) for sign in (1, -1))
        slope = -(up - down) / (2 * step) * special.beta(alpha, b)
        expected = torch.from_numpy(slope / ((1 - y) ** b * y**alpha))
        precise = torch.from_numpy((up > 1e-6) & (up < 1 - 1e-6))  # where the finite difference is precise
        torch.testing.assert_close(row[near][precise], expected[precise], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("num_classes", [3, 27])
def test_mean_speeds_are_averages_over_draws(num_classes: int) -> None:
    path = DirichletPath(num_classes, 8.0)
    u = F.one_hot(torch.zeros(N, 1).long(), num_classes).float()
    z = path.q_sample(u, torch.full((N, 1), 0.5), GeneratorNoise(generator(7), N))
    mean, error = mean_and_error(path.speed(z, torch.full((N, 1), 0.5))[..., 0])
    alpha = torch.tensor([4.5]).double()
    assert abs(mean - float(mean_speeds(num_classes, alpha, speed_table(num_classes, alpha)))) < 3 * error + 0.01 * mean


@pytest.mark.parametrize("num_classes", [4, 27])
def test_the_flow_to_a_token_preserves_the_incomplete_beta_function(num_classes: int) -> None:
    path, steps, n = DirichletPath(num_classes, 8.0, churn=0.0), 1000, 60
    x = torch.zeros(n, dtype=torch.long)
    z = path.sample_prior(n, 1, GeneratorNoise(generator(8), n))[:, 0]
    before = special.betainc(1.0, num_classes - 1, z[:, 0].double().numpy())
    for i in range(steps):
        s = torch.full((n,), i / steps)
        z = path.step(truth(x, num_classes), z, s, s + 1 / steps, GeneratorNoise(generator(9), n))
    after = special.betainc(8.0, num_classes - 1, z[:, 0].double().numpy())
    assert abs(after - before).max() < 3e-3


# ---- Wright-Fisher diffusion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 5])
def test_simulated_diffusion_has_the_marginals_of_the_path(num_classes: int) -> None:
    """Forward simulation from Dirichlet(1 + M e_x) in 300 small steps, without the death process."""
    path = WrightFisherPath(num_classes, 7)
    u, noise = F.one_hot(torch.zeros(N, 1).long(), num_classes).float(), GeneratorNoise(generator(10), N)
    z, s = path.q_sample(u, torch.ones(N, 1), noise), torch.full((N, 1), 0.4)
    tau = float(interpolate(path.times, s[0, 0]))
    for _ in range(300):
        z = simplex.diffusion_step(z, torch.full((N, 1, 1), tau / 300), noise)
    assert stats.ks_2samp(z[..., 0].flatten(), path.q_sample(u, s, noise)[..., 0].flatten()).pvalue > MIN_P_VALUE


@pytest.mark.parametrize("num_classes", [2, 27, 1000])
def test_lineage_probabilities_are_normalised_and_the_prior_is_close_to_noise(num_classes: int) -> None:
    path = WrightFisherPath(num_classes, 9)
    probs = interpolate(path.lineage_probs, torch.linspace(0, 1, 50))
    torch.testing.assert_close(probs.sum(-1), torch.ones(50), atol=1e-5, rtol=0)
    assert 0 <= path.prior_kl() < 2e-4
    assert float(probs[-1, -1]) == pytest.approx(1, abs=1e-5) and float(probs[0, 0]) > 0.9
    mean = probs @ torch.arange(10.0)
    torch.testing.assert_close(mean.diff(), mean.diff().mean().expand(49), rtol=0.02, atol=1e-3)  # linear in s


@pytest.mark.thorough
@pytest.mark.parametrize("construction", ["shares", "sticks"])
def test_time_dilation_favours_likely_tokens(construction: str) -> None:
    language = ls.languages.independent([0.5, 0.3, 0.2], 1)
    fractions = []
    for dilation in (1.0, 4.0):
        model = ls.build("ddsm", vocab_size=3, length=1, denoiser=None, dilation=dilation, construction=construction)
        drawn = ls.sample(model, n=3000, steps=100, rng=generator(11), denoiser=Oracle(model, language))
        fractions.append(float((drawn == 0).float().mean()))
    assert abs(fractions[0] - 0.5) < 0.03 and fractions[1] > fractions[0] + 0.04


# ---- sticks ----------------------------------------------------------------------------------------------------------


def test_from_sticks_inverts_to_sticks() -> None:
    z = simplex.sample_dirichlet(50, 2, 6, GeneratorNoise(generator(12), 50))
    v, rest = simplex.to_sticks(z)
    torch.testing.assert_close(v + rest, torch.ones_like(v))
    torch.testing.assert_close(v[..., 2], (z[..., 2] / z[..., 2:].sum(-1)).double(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(simplex.from_sticks(v, rest).float(), z)


def test_jacobi_diffusion_has_its_stationary_distribution_and_moments() -> None:
    """Beta(1, b) is stationary; for small h the variance is h v (1 - v) and the drift ½ h ((1 - v) - b v)."""
    others, n = torch.tensor([4.0, 1.0], dtype=torch.float64), 40_000
    v = 1 - GeneratorNoise(generator(13), n).uniform(n, 2) ** (1 / others)
    moved, left = simplex.jacobi_step(v, 1 - v, others, torch.full_like(v, 0.3), GeneratorNoise(generator(14), n))
    torch.testing.assert_close(moved + left, torch.ones_like(v))
    for j, b in enumerate((4, 1)):
        assert stats.kstest(moved[:, j], stats.beta(1, b).cdf).pvalue > MIN_P_VALUE
    here, h = torch.tensor([0.3, 0.8], dtype=torch.float64).expand(n, 2), 1e-3
    step = (
        simplex.jacobi_step(here, 1 - here, others, torch.full_like(here, h), GeneratorNoise(generator(15), n))[0]
        - here
    )
    torch.testing.assert_close(step.var(0) / h, (here * (1 - here))[0], rtol=0.04, atol=0.0)
    for j, b in enumerate((4, 1)):
        mean, error = mean_and_error(step[:, j] / h)
        assert abs(mean - 0.5 * float(1 - here[0, j] - b * here[0, j])) < 4 * error


@pytest.mark.parametrize("token", [0, 1, 2])
def test_simulated_stick_diffusion_has_the_marginals_of_the_path(token: int) -> None:
    path = StickPath(3, 7)
    u, noise = F.one_hot(torch.full((N, 1), token), 3).float(), GeneratorNoise(generator(16), N)
    v, rest = simplex.to_sticks(path.q_sample(u, torch.ones(N, 1), noise))
    tau = float(path.times[int(0.4 * (len(path.times) - 1) + 0.5)])
    s = torch.full((N, 1), int(0.4 * (len(path.times) - 1) + 0.5) / (len(path.times) - 1))
    for _ in range(100):
        v, rest = simplex.jacobi_step(v, rest, path.b, tau / 100 * (2 / (1 + path.b)).expand_as(v), noise)
    expected, _ = simplex.to_sticks(path.q_sample(u, s, noise))
    for j in (0, 1):
        assert stats.ks_2samp(v[..., j].flatten(), expected[..., j].flatten()).pvalue > MIN_P_VALUE
    assert 0 <= path.prior_kl() < 2e-4
