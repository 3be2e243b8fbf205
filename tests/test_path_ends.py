"""The bound of latent systems with a Gaussian prior, at each end of the path."""

import math

import pytest
import torch
from statistical_checks import mean_and_error
from toy_languages import generator, skewed_chain

import logosphere as ls
from logosphere.evaluation.path_ends import RIDGE, gaussian_rate, latent_moments, measure_path_ends
from logosphere.types import Batch

SMALL = {"width": 16, "depth": 1, "heads": 2, "autoencoder_depth": 1}


def test_the_rate_is_the_divergence_of_two_gaussians() -> None:
    root = torch.randn(3, 3, generator=generator(0), dtype=torch.float64)
    covariance, mean = root @ root.T, torch.randn(2, 3, generator=generator(1), dtype=torch.float64)
    u = torch.randn(4, 2, 3, generator=generator(2), dtype=torch.float64)
    for logsnr in (-3.0, 0.5, 4.0):
        alpha, sigma = torch.tensor(logsnr).double().sigmoid().sqrt(), torch.tensor(-logsnr).double().sigmoid().sqrt()
        identity = torch.eye(3, dtype=torch.float64)
        q = torch.distributions.MultivariateNormal(alpha * u, sigma**2 * identity)
        p = torch.distributions.MultivariateNormal(alpha * mean, alpha**2 * covariance + sigma**2 * identity)
        expected = torch.distributions.kl_divergence(q, p).sum(1)
        assert torch.allclose(gaussian_rate(u, mean, *torch.linalg.eigh(covariance), logsnr), expected)


def test_the_mean_rate_is_the_integral_of_the_error_of_the_wiener_filter() -> None:
    """½ ∫ e^λ tr(Σ (I + e^λ Σ)⁻¹) dλ = ½ log det(I + e^λ Σ), on the texts that the moments come from."""
    root = torch.randn(5, 5, generator=generator(3), dtype=torch.float64)
    u = torch.randn(4000, 1, 5, generator=generator(4), dtype=torch.float64) @ root
    mean, covariance = latent_moments(u.split(500))
    variances, axes = torch.linalg.eigh(covariance)
    rate = float(gaussian_rate(u, mean, variances, axes, 2.0).mean())
    steps = torch.linspace(-30, 2, 20001, dtype=torch.float64)
    error = (variances / (1 + steps.exp()[:, None] * variances)).sum(1)
    integral = float(torch.trapezoid(0.5 * steps.exp() * error, steps))
    assert (
        rate
        == pytest.approx(integral, rel=1e-3)
        == pytest.approx(0.5 * float((1 + math.exp(2) * variances).log().sum()))
    )
    assert torch.allclose(covariance - RIDGE * torch.eye(5, dtype=torch.float64), u[:, 0].T.cov(correction=0))


@pytest.mark.parametrize("name", ["ld4lg", "planner", "tencdm", "cosmos"])
def test_no_end_of_the_path_is_below_the_entropy(name: str) -> None:
    language = skewed_chain(3, 4)
    torch.manual_seed(0)
    compressed = {} if name == "tencdm" else {"latents": 2, "latent_width": 4}
    model = ls.build(name, vocab_size=3, length=4, **SMALL | compressed)
    train, held_out = (language.sample(count, generator(seed)) for seed, count in ((1, 400), (2, 1500)))
    ends = measure_path_ends(model, [Batch.of(train)], [Batch.of(held_out)], (-4.0, 0.0, 3.0), 0)
    mean, error = mean_and_error(-language.log_prob(held_out))
    assert all(4 * end.total > mean - 4 * error for end in ends)
    assert [end.rate for end in ends] == sorted(end.rate for end in ends)
    features = model.process.codec.features * model.process.codec.latents / 4
    assert ends[1].white_rate == pytest.approx(0.5 * math.log(2) * features)
    with pytest.raises(ls.UserError, match="at least 2 texts, not 0"):
        measure_path_ends(model, [], [Batch.of(held_out)], (0.0,), 0)
    with pytest.raises(ls.UserError, match="those of a latent system"):
        measure_path_ends(ls.build("mdlm", vocab_size=3, length=4), [], [], (0.0,), 0)
