"""Flows and diffusions on the simplex: bounds hold, posteriors follow Bayes' rule, samples follow the language."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, generator, independent_tokens, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, System, calibrated_model, calibrated_system, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.processes.simplex.bfn import BFNPath
from logosphere.processes.simplex.flow_matching import GeodesicPath, LinearPath
from logosphere.processes.simplex.process import SimplexProcess
from logosphere.rng import CounterNoise, GeneratorNoise

TIGHT = [
    System("bfn"),
    System("ddsm"),
    System("ddsm", {"construction": "sticks"}),
    System("fisher-flow"),
    System("fisher-flow", {"prior": "simplex"}),
    System("dirichlet-flow", {"churn": 0}),
]
CONTINUOUS = [*TIGHT, System("dirichlet-flow")]
BOUNDS = [System("bfn"), System("ddsm"), System("ddsm", {"construction": "sticks"}), System("dirichlet-flow")]
EVERY = [*CONTINUOUS, System("bfn", {"timesteps": 20}), System("fisher-flow", {"geometry": "flat"})]
NAMES = ["bfn", "ddsm", "dirichlet-flow", "fisher-flow"]
V, N = 4, 4000


def built(system: System) -> SimplexProcess:
    process = ls.build(system.name, vocab_size=V, length=1, denoiser=None, **system.options).process
    assert isinstance(process, SimplexProcess)
    return process


def field(value: float, n: int = N) -> Tensor:
    return torch.full((n, 1), value)


def true_logits(x: Tensor, vocab_size: int = V) -> Tensor:
    """Logits of the true token with probability 1."""
    return 200.0 * F.one_hot(x, vocab_size)


# ---- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "language",
    [
        sticky_chain(3, 4),
        pytest.param(random_joint(), marks=pytest.mark.slow),
        pytest.param(independent_tokens(5, 2), marks=pytest.mark.slow),
    ],
    ids=["sticky", "joint", "independent"],
)
@pytest.mark.parametrize("system", TIGHT, ids=str)
def test_value_of_an_oracle_is_the_entropy(system: System, language: Language) -> None:
    """Within 3 s.e. and half a per cent for cells of finite size; also where the value is a surrogate."""
    mean, error = mean_and_error(bound_excess(calibrated_system(system, language), language, n=2000, draws=48))
    # Tokens whose probability drops to 0 at once, as on the sphere, give rare and large nats.
    assert error < (0.05 if system == System("fisher-flow") else 0.01) * language.entropy()
    assert abs(mean) < 3 * error + 0.005 * language.entropy()


@pytest.mark.slow
@pytest.mark.parametrize("system", TIGHT, ids=str)
def test_value_of_an_oracle_is_the_entropy_of_27_letters(system: System) -> None:
    language = skewed_chain(27, 4)
    mean, error = mean_and_error(bound_excess(calibrated_system(system, language), language, n=1500, draws=64))
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error + 0.005 * language.entropy()


def test_noise_on_a_dirichlet_flow_makes_a_bound_that_is_not_tight() -> None:
    language = sticky_chain(3, 4)
    model = calibrated_system(System("dirichlet-flow"), language)
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=48))
    assert 3 * error < mean < 0.08 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("system", BOUNDS, ids=str)
def test_sharpened_or_wrong_oracle_is_not_below_the_entropy(system: System) -> None:
    language = sticky_chain(3, 4)
    model = calibrated_system(system, language)
    oracle = Oracle(model, language)
    for sharpness in (0.8, 1.25):

        def predict(z, t, context, where=None, sharpness=sharpness):
            return sharpness * oracle(z, t, context, where)

        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=16, denoiser=predict))
        assert mean > -3 * error
    mean, error = mean_and_error(
        bound_excess(model, language, n=1000, draws=16, denoiser=Oracle(model, independent_tokens(3, 4)))
    )
    assert mean > 3 * error


@pytest.mark.parametrize("system", BOUNDS, ids=str)
def test_a_random_network_is_not_below_the_entropy(system: System) -> None:
    language = sticky_chain(3, 6)
    model = random_network(system.name, language, seed=5, **system.options)
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=model.denoiser))
    assert math.isfinite(mean) and mean > 3 * error


@pytest.mark.parametrize("timesteps", [1, 3, 20])
def test_bfn_bound_of_independent_tokens_is_the_entropy_for_any_number_of_steps(timesteps: int) -> None:
    language = independent_tokens(5, 2)
    model = calibrated_system(System("bfn", {"timesteps": timesteps}), language)
    mean, error = mean_and_error(bound_excess(model, language, n=4000, draws=32))
    assert error < 0.015 * language.entropy()
    assert abs(mean) < 3 * error


def test_bfn_bound_of_dependent_tokens_is_loose_with_few_steps() -> None:
    language, costs = sticky_chain(3, 4), []
    for timesteps in (2, 60):
        model = calibrated_system(System("bfn", {"timesteps": timesteps}), language)
        costs.append(mean_and_error(bound_excess(model, language, n=3000, draws=40)))
    assert costs[0][0] > costs[1][0] + 3 * math.hypot(costs[0][1], costs[1][1])
    assert costs[1][0] > -3 * costs[1][1]


@pytest.mark.parametrize("accuracy", [2.0, 20.0])
def test_bfn_bound_does_not_depend_on_the_final_accuracy(accuracy: float) -> None:
    """The reconstruction term covers the rest: for independent tokens the total is the entropy."""
    language = independent_tokens(5, 2)
    mean, error = mean_and_error(
        bound_excess(calibrated_model("bfn", language, accuracy=accuracy), language, n=3000, draws=64)
    )
    assert abs(mean) < 3 * error and error < 0.01 * language.entropy()


def test_bfn_is_gaussian_diffusion_of_one_hot_vectors() -> None:
    """y = log θ is, up to a constant, e_x βK plus noise of variance βK: SNR = βK, and nats are ½ |e_x - p|² dSNR."""
    path, z = BFNPath(V, 3.0), torch.full((N, 1, V), 1 / V)
    u, s = F.one_hot(torch.full((N, 1), 2), V).float(), field(0.6)
    y = path.log_likelihood(path.q_sample(u, s, GeneratorNoise(generator(1), N)), s)
    contrast = (y[..., 2] - y[..., 0]).flatten()
    snr = 3.0 * V * 0.36
    assert abs(contrast.mean() - snr) < 3 * (2 * snr / N) ** 0.5
    assert abs(contrast.var() / (2 * snr) - 1) < 3 * (2 / N) ** 0.5
    out = torch.randn(N, 1, V, generator=generator(2))
    slope = (3.0 * V * 0.601**2 - 3.0 * V * 0.599**2) / 0.002
    squared = (out.softmax(-1) - u).square().sum(-1)
    torch.testing.assert_close(path.elbo_term(out, u, z, s, 0.01), 0.5 * squared * slope * 0.01, rtol=1e-3, atol=1e-6)


# ---- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "language", [random_joint(), pytest.param(skewed_chain(3, 4), marks=pytest.mark.slow)], ids=["table", "chain"]
)
@pytest.mark.parametrize("system", EVERY, ids=str)
def test_samples_of_an_oracle_follow_the_language(system: System, language: Language) -> None:
    model = calibrated_system(system, language)
    drawn = ls.sample(model, n=N, steps=128, rng=generator(31), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("system", CONTINUOUS, ids=str)
def test_infilling_follows_the_conditional_distribution(system: System) -> None:
    language, known = random_joint(), torch.tensor([True, False, False, True])
    tokens = torch.tensor([1, 0, 0, 0])
    model = calibrated_system(system, language)
    how: dict[str, Any] = {"rng": generator(6), "denoiser": Oracle(model, language), "known": known, "tokens": tokens}
    drawn = ls.sample(model, n=2000, steps=128, **how)
    assert (drawn[:, known] == tokens[known]).all()
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(drawn, language, p * (sequences[:, known] == tokens[known]).all(1)) > MIN_P_VALUE


# ---- the path --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", EVERY, ids=str)
def test_path_starts_at_the_data_and_ends_at_the_prior(system: System) -> None:
    """States are u at t = 0 and follow the prior at t = 1 for every token."""
    process, noise = built(system), GeneratorNoise(generator(1), N)
    x = torch.randint(V, (N, 1), generator=generator(2))
    u = process.codec.encode(x)
    assert torch.equal(process.corrupt(u, field(0.0), noise), u)
    assert torch.equal(process.codec.decode(u), x) and torch.equal(process.codec.decode_partial(u), x)
    prior, end = (
        process.prior(N, 1, noise),
        process.corrupt(process.codec.encode(torch.ones_like(x)), field(1.0), noise),
    )
    assert prior.shape == end.shape == u.shape
    for coordinate in (0, 1):
        assert stats.ks_2samp(prior[..., coordinate].flatten(), end[..., coordinate].flatten()).pvalue > MIN_P_VALUE


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("system", EVERY, ids=str)
def test_zero_length_step_is_the_identity(system: System, t: float) -> None:
    process, noise = built(system), GeneratorNoise(generator(3), N)
    z = process.corrupt(process.codec.encode(torch.full((N, 1), 2)), field(t), noise)
    out = torch.randn(N, V, generator=generator(4))
    assert torch.equal(process.step(out, z[:, 0], field(t)[:, 0], field(t)[:, 0], noise), z[:, 0])


@pytest.mark.parametrize("system", EVERY, ids=str)
def test_step_to_time_zero_returns_clean_states(system: System) -> None:
    process, noise = built(system), GeneratorNoise(generator(5), N)
    x = torch.randint(V, (N, 1), generator=generator(6))
    u = process.codec.encode(x)
    z = process.corrupt(u, field(0.2), noise)
    assert torch.equal(process.step(true_logits(x[:, 0]), z[:, 0], field(0.2)[:, 0], field(0.0)[:, 0], noise), u[:, 0])


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [1, 200])
@pytest.mark.parametrize("system", EVERY, ids=str)
def test_steps_with_the_true_token_preserve_the_marginals(system: System, steps: int) -> None:
    """Geodesics and Bayesian updates in one step, other flows in small steps."""
    process, noise, x = built(system), GeneratorNoise(generator(7), N), torch.ones(N, dtype=torch.long)
    if steps == 1 and not isinstance(process.path, BFNPath | GeodesicPath | LinearPath):
        pytest.skip("only small steps are exact")
    u = process.codec.encode(x[:, None])
    z = process.corrupt(u, field(0.8), noise)[:, 0]
    times = torch.linspace(0.8, 0.3, steps + 1)
    for t, s in zip(times[:-1], times[1:], strict=True):
        z = process.step(true_logits(x), z, t.expand(N), s.expand(N), noise)
    expected = process.corrupt(u, field(0.3), noise)[:, 0]
    for coordinate in (0, 1):
        assert stats.ks_2samp(z[:, coordinate], expected[:, coordinate]).pvalue > MIN_P_VALUE


@pytest.mark.parametrize("t", [0.95, 0.8, 0.5, 0.2])
@pytest.mark.parametrize("system", EVERY, ids=str)
def test_log_likelihood_gives_the_bayes_posterior(system: System, t: float) -> None:
    """For the true posterior p, e_x - p is uncorrelated with every function of z; here with 1, z and log z."""
    process, n = built(system), 20_000
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4])
    x = torch.multinomial(prior, n, replacement=True, generator=generator(8))[:, None]
    z = process.corrupt(process.codec.encode(x), field(t, n), GeneratorNoise(generator(9), n))
    p = process.add_evidence(prior.log().expand(n, 1, V), z, field(t, n)).softmax(-1)
    error = (F.one_hot(x, V) - p)[:, 0]
    coordinates = z[:, 0, :V]
    for probe in (torch.ones_like(coordinates), coordinates, coordinates.clamp_min(1e-6).log()):
        product = error[:, :, None] * probe[:, None]
        score = product.mean(0) / (product.std(0) / n**0.5).clamp_min(1e-9)
        assert score.abs().max() < 4.5


@pytest.mark.parametrize("system", EVERY, ids=str)
def test_states_do_not_depend_on_the_batch_split(system: System) -> None:
    process = ls.build(system.name, vocab_size=3, length=4, denoiser=None, **system.options).process
    u, t = process.codec.encode(torch.randint(0, 3, (6, 4), generator=generator(13))), torch.full((6, 4), 0.5)
    ids = torch.arange(6)
    whole = process.corrupt(u, t, CounterNoise(0, 1, ids, ids, 6))
    torch.testing.assert_close(process.corrupt(u[2:4], t[2:4], CounterNoise(0, 1, ids[2:4], ids[2:4], 6)), whole[2:4])


@pytest.mark.parametrize("system", EVERY, ids=str)
def test_values_are_finite_on_the_boundary_of_the_simplex(system: System) -> None:
    """Coordinates of exactly 0 and 1 at any time give finite posteriors, nats, steps and gradients."""
    process = built(system).eval()
    corner, edge = F.one_hot(torch.tensor([0]), V).float(), torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    points = F.pad(torch.cat([corner, edge.sqrt() if process.codec.rooted else edge]), (0, process.path.width - V))
    for t in (1.0, 0.6, 0.1, 1e-3):
        times, out = torch.full((2,), t), torch.randn(2, V, generator=generator(10), requires_grad=True)
        for token in (0, 2):
            u = process.codec.encode(torch.full((2, 1), token))[:, 0]
            posterior = process.add_evidence(out, points, times)
            nats = process.elbo_rate(posterior, u, points, times)
            assert posterior.isfinite().all() and nats.isfinite().all()
            (gradient,) = torch.autograd.grad(nats.sum(), out)
            assert gradient.isfinite().all()
        moved = process.step(out.detach(), points, times, times / 2, GeneratorNoise(generator(11), 2))
        assert moved.isfinite().all() and (moved >= 0).all()


# ---- systems ---------------------------------------------------------------------------------------------------------

PLAIN = {
    "bfn": {"posterior_head": False, "loss": "bound", "time_sampler": "even", "accuracy": 0.5625},
    "fisher-flow": {"posterior_head": False, "input": "state", "loss": "velocity", "time_sampler": "even"},
    "dirichlet-flow": {"posterior_head": False, "input": "state", "churn": 0, "time_sampler": "exponential"},
    "ddsm": {"construction": "sticks", "posterior_head": False, "input": "state", "loss": "bound"},
}
"""Options between the defaults and the published systems; test_tangent_flows.py covers the latter."""


@pytest.mark.thorough
@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["ours", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_system_learns_a_language(name: str, plain: bool) -> None:
    language, options = sticky_chain(3, 4, stay=0.95), PLAIN[name] if plain else {}
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=3, length=4, **SMALL, **options)
    tokens = language.sample(500, generator(11))
    batches = (language.sample(32, generator(i)) for i in range(70))
    losses = [p.loss for p in ls.fit(model, batches, steps=70, optim=ls.OptimizerConfig(lr=5e-3, warmup=20))]
    assert sum(losses[-20:]) < sum(losses[:20])
    drawn = ls.sample(model.eval(), n=500, steps=32, rng=generator(12))
    repeats = (drawn[:, 1:] == drawn[:, :-1]).float().mean()
    assert repeats > (0.5 if plain else 0.65)  # 1/3 by chance ± 0.012, 0.95 in the language
    if model.process.kind == "bound":
        mean, error = mean_and_error(model.nelbo(tokens, generator(12), draws=8).total)
        assert mean > language.entropy() - 3 * error


INVALID = [
    ("bfn", {"accuracy": 0.0}, "accuracy must be above 0"),
    ("bfn", {"timesteps": 0}, "timesteps must be above 0"),
    ("bfn", {"input": "belif"}, "Did you mean 'belief'"),
    ("bfn", {"loss": "velocity"}, "'velocity' is not a choice for loss"),
    ("bfn", {"time_sampler": "geometric"}, "'geometric' is not a choice for time_sampler"),
    ("fisher-flow", {"loss": "bound"}, "'bound' is not a choice for loss"),
    ("fisher-flow", {"prior": "simplx"}, "Did you mean 'simplex'"),
    ("fisher-flow", {"priors": "simplex"}, "Did you mean 'prior'"),
    ("dirichlet-flow", {"alpha": 1.0}, "alpha must be above 1"),
    ("dirichlet-flow", {"churn": -1.0}, "churn must not be negative"),
    ("dirichlet-flow", {"posterior_head": False}, "churn=0"),
    ("dirichlet-flow", {"churn": 0, "loss": "bound"}, "no bound to train on"),
    ("dirichlet-flow", {"time_sampler": "exponental"}, "Did you mean 'exponential'"),
    ("ddsm", {"concentration": 0}, "concentration must be above 0"),
    ("ddsm", {"dilation": 0.0}, "dilation must be above 0"),
    ("ddsm", {"construction": "stick"}, "Did you mean 'sticks'"),
    ("ddsm", {"construction": "sticks", "vocab_size": 1000}, "at most 512 tokens"),
]


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_settings_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build(name, **{"vocab_size": 3, "length": 4} | options, denoiser=None)
