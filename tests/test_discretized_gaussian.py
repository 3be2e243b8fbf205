"""Discretised Gaussian diffusion: transition matrices, path, bound and samples."""

import pytest
import torch
import torch.nn.functional as F
from statistical_checks import MIN_P_VALUE, bound_excess, chi_square_p_value, mean_and_error, sequence_p_value
from toy_languages import generator, random_joint, skewed_chain, sticky_chain
from toy_models import System

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.networks.wrappers import LogisticHead
from logosphere.processes.discrete.discretized_gaussian import DiscretizedGaussian, step_weights, transition_matrix
from logosphere.rng import GeneratorNoise

V, T, N = 5, 20, 20_000
LANGUAGES = {"sticky": sticky_chain(3, 4), "skewed": skewed_chain(5, 3), "table": random_joint()}
PROCESS = DiscretizedGaussian(V, timesteps=T)


@pytest.mark.parametrize("vocab_size, step", [(2, 0), (3, 19), (27, 10), (256, 0), (256, 999)])
def test_step_matrices_are_symmetric_and_normalised(vocab_size: int, step: int) -> None:
    matrix = transition_matrix(step_weights(vocab_size, 1000)[step])
    assert matrix.min() >= 0
    torch.testing.assert_close(matrix.sum(1), torch.ones(vocab_size).double())
    assert torch.equal(matrix, matrix.T)
    assert bool((matrix[0].diff() <= 0).all())  # probabilities fall with distance


def test_width_for_many_values_is_the_published_one() -> None:
    """Off the diagonal proportional to exp(-4 d²/((K - 1)² β)) with β from 1e-4 to 0.02, for K = 256 in 1000 steps."""
    weights, middle = step_weights(256, 1000), 255
    for step, beta in ((0, 1e-4), (999, 0.02)):
        log_ratio = (weights[step, middle + 3] / weights[step, middle]).log()
        assert float(log_ratio) == pytest.approx(-4 * 9 / (255**2 * beta), rel=1e-3)


@pytest.mark.parametrize("vocab_size", [64, 256])
def test_steps_have_the_published_variance(vocab_size: int) -> None:
    """(V - 1)² β/8 where steps are wide compared with one value, both by bisection and by the formula."""
    betas = torch.linspace(1e-4, 0.02, 1000).double()
    difference = torch.arange(-(vocab_size - 1), vocab_size).double()
    for widths in ("variance", "formula"):
        variance = step_weights(vocab_size, 1000, widths)[-300:] @ difference**2
        torch.testing.assert_close(variance, (vocab_size - 1) ** 2 * betas[-300:] / 8, rtol=1e-4, atol=0)


@pytest.mark.parametrize("vocab_size, timesteps, limit", [(256, 40, 1e-3), (27, 100, 1e-3), (2, 100, 0.05)])
def test_prior_kl_is_small(vocab_size: int, timesteps: int, limit: float) -> None:
    """With two values most information remains: a step of variance β/8 swaps them with that probability."""
    process = DiscretizedGaussian(vocab_size, timesteps=timesteps)
    nats = process.prior_kl(torch.arange(vocab_size)[None])
    assert 0 <= nats.min() and nats.max() < limit
    sums = process.products.double().sum(2)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-4)


@pytest.mark.parametrize("t, s", [(1.0, 0.5), (0.6, 0.55), (0.3, 0.0)])
def test_step_with_the_true_token_maps_marginals_to_marginals(t: float, s: float) -> None:
    noise, x = GeneratorNoise(generator(1), N), torch.full((N, 1), 3)
    z = PROCESS.corrupt(x, torch.full((N, 1), t), noise)
    assert chi_square_p_value(z.flatten().bincount(minlength=V), PROCESS.products[round(t * T), 3]) > MIN_P_VALUE
    stepped = PROCESS.step(200.0 * F.one_hot(x, V), z, torch.full((N, 1), t), torch.full((N, 1), s), noise)
    assert chi_square_p_value(stepped.flatten().bincount(minlength=V), PROCESS.products[round(s * T), 3]) > MIN_P_VALUE


def test_time_zero_is_the_clean_token() -> None:
    x, noise = torch.randint(V, (50, 4), generator=generator(1)), GeneratorNoise(generator(2), 50)
    assert torch.equal(PROCESS.corrupt(x, torch.zeros(50, 4), noise), x)
    out, t = torch.randn(50, 4, V, generator=generator(3)), torch.full((50, 4), 0.5)
    assert torch.equal(PROCESS.step(out, x, t, t, noise), x)
    evidence = PROCESS.log_likelihood(x, torch.zeros(50, 4))
    assert torch.equal(evidence.argmax(-1), x) and evidence.softmax(-1).amax(-1).min() == 1


def test_elbo_rate_is_the_kl_divergence_of_one_step() -> None:
    """T·KL(q(z_s | z_t, x) || Σ_k p(k | z) q(z_s | z_t, k)), computed by matrices in float64."""
    rng = generator(4)
    x, z, index = (torch.randint(low, high, (200,), generator=rng) for low, high in ((0, V), (0, V), (2, T + 1)))
    out, t = torch.randn(200, V, generator=rng).double(), index / T
    step = torch.stack([PROCESS._kernel(int(k) - 1, int(k)) for k in index])
    joint = PROCESS.products[index - 1].double() * step.gather(2, z[:, None, None].expand(-1, V, 1)).mT  # [x, z_s]
    each = joint / joint.sum(2, keepdim=True)
    model, true = (out.softmax(-1)[..., None] * each).sum(1), each[torch.arange(200), x]
    divergence = (true * (true / model).log()).sum(1)
    torch.testing.assert_close(PROCESS.elbo_rate(out, x, z, t), T * divergence, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_oracle_bound_tends_to_the_entropy(language: Language) -> None:
    """The bound exceeds H by the prior term and the discretisation error, which is visible with four steps."""
    excesses = []
    for timesteps, draws in ((4, 4), (200, 40)):
        model = System("d3pm-gaussian", {"timesteps": timesteps}).model(language)
        excesses.append(mean_and_error(bound_excess(model, language, n=1500, draws=draws)))
    (coarse, _), (fine, error) = excesses
    assert -3 * error < fine < 0.02 * language.entropy() + 3 * error
    assert coarse > fine + 3 * error
    assert error < 0.02 * language.entropy()


def test_oracle_samples_have_the_distribution_of_the_language() -> None:
    language = skewed_chain(3, 3)
    model = System("d3pm-gaussian", {"timesteps": 128}).model(language)
    drawn = ls.sample(model, n=3000, steps=128, rng=generator(1), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


@pytest.mark.parametrize("timesteps", [10, 1000])
def test_hybrid_loss_is_the_published_one(timesteps: int) -> None:
    """T times KL_t + λ CE, the loss of D3PM (eq. 5) at a time drawn uniformly."""
    process, plain = (
        DiscretizedGaussian(V, timesteps=timesteps, hybrid=0.3),
        DiscretizedGaussian(V, timesteps=timesteps),
    )
    rng = generator(11)
    x, z = (torch.randint(V, (200,), generator=rng) for _ in range(2))
    out, t = (
        torch.randn(200, V, generator=rng).double(),
        torch.randint(1, timesteps + 1, (200,), generator=rng) / timesteps,
    )
    nats, one = plain.elbo_rate(out, x, z, t), torch.ones(200)
    expected = timesteps * (nats / timesteps + 0.3 * F.cross_entropy(out, x, reduction="none"))
    torch.testing.assert_close(process.loss(nats, out, x, z, t, one), expected)
    assert torch.equal(process.elbo_rate(out, x, z, t), nats)  # the bound does not include the hybrid term


def test_invalid_options_are_refused() -> None:
    for options, message in (({"timesteps": 0}, "at least 1"), ({"hybrid": -1.0}, "at least 0")):
        with pytest.raises(ls.UserError, match=message):
            ls.build("d3pm-gaussian", vocab_size=3, length=4, denoiser=None, **options)
    with pytest.raises(ls.UserError, match="change almost nothing with 3"):
        ls.build("d3pm-gaussian", vocab_size=3, length=4, denoiser=None, preset="paper")
    with pytest.raises(ls.UserError, match="have more than"):
        ls.build("d3pm-gaussian", vocab_size=50_000, length=4, denoiser=None)


def test_logistic_head_is_a_truncated_logistic_distribution() -> None:
    """Renormalised differences of the logistic CDF centred at tanh(z + shift), which lies within the values."""
    head = LogisticHead(build_denoiser(9), 9).double()
    numbers = torch.randn(50, 2, generator=generator(5)).double()
    state = head.values[torch.randint(9, (50,), generator=generator(6))]
    center, width = (state + numbers[:, 0]).tanh()[:, None], (numbers[:, 1] - 2).exp()[:, None]
    edges = torch.linspace(-1 - 1 / 8, 1 + 1 / 8, 10).double()
    mass = torch.sigmoid((edges - center) / width).diff(dim=1)
    torch.testing.assert_close(head._logits(numbers, state).softmax(-1), mass / mass.sum(1, keepdim=True))
    far = head._logits(torch.tensor([[50.0, 0.0], [-50.0, 0.0]]).double(), torch.zeros(2).double())
    assert torch.equal(far.argmax(-1), torch.tensor([8, 0]))  # without tanh all values would be equally unlikely


def build_denoiser(vocab_size: int, **options):
    model = ls.build("d3pm-gaussian", vocab_size=vocab_size, length=4, width=8, depth=1, heads=1, **options)
    return model.denoiser


def test_logistic_head_starts_near_the_state_and_learns() -> None:
    denoiser, z = build_denoiser(9, head="logistic"), torch.randint(9, (5, 4), generator=generator(7))
    nearest = (denoiser.inner.values[z].tanh()[..., None] - denoiser.inner.values).abs().argmin(-1)
    assert torch.equal(denoiser.inner(z, torch.full((5, 4), 0.5), z).argmax(-1), nearest)
    model = ls.build("d3pm-gaussian", vocab_size=9, length=4, width=8, depth=1, heads=1, timesteps=8, head="logistic")
    data = torch.randint(3, 6, (32, 4), generator=generator(8))
    nats = [
        progress.nats for progress in ls.fit(model, [data] * 30, steps=30, optim=ls.OptimizerConfig(lr=1e-2, warmup=1))
    ]
    assert sum(nats[-5:]) < sum(nats[:5])
    t = torch.full((5, 4), 0.5)
    probs = model.process.context_probs(model.denoiser(z, t, z), z, t)  # x̂ is the distribution over tokens
    torch.testing.assert_close(probs, model.denoiser.inner(z, t, z).softmax(-1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ls.UserError, match="Did you mean 'logistic'"):
        build_denoiser(9, head="logistics")
