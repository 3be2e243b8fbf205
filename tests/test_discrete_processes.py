"""Discrete processes: end points, marginals, reverse steps, and closed forms against matrix products."""

import math

import pytest
import torch
import torch.nn.functional as F
from statistical_checks import MIN_P_VALUE, chi_square_p_value, mean_and_error
from torch import Tensor
from toy_languages import generator

from logosphere.processes.discrete.diffusion import DiscreteDiffusion
from logosphere.processes.discrete.masked import SingleStep
from logosphere.processes.discrete.mixing import Hybrid, Masking, Uniform
from logosphere.rng import GeneratorNoise
from logosphere.schedules.signal import SCHEDULES, Cosine, Polynomial, Truncated

V = 4
N = 20_000
P_U = 0.3
CURVES = [SCHEDULES[name] for name in ("linear", "quadratic", "cosine")]
MIXINGS = [mixing(V, schedule) for schedule in CURVES for mixing in (Masking, Uniform)]
MIXINGS += [
    Hybrid(V, P_U),
    Hybrid(V, P_U, Cosine()),
    Masking(V, Truncated(Cosine(), 0.1)),
    Uniform(V, Truncated(Cosine(), 0.1)),
]
DIFFUSIONS = [DiscreteDiffusion(mixing, timesteps=timesteps) for mixing in MIXINGS for timesteps in (None, 1000)]
PROCESSES = [*DIFFUSIONS, SingleStep(V)]


def process_id(process) -> str:
    if isinstance(process, SingleStep):
        return "oneshot"
    mixing = process.mixing
    return (
        f"{type(mixing).__name__}-{mixing.base if isinstance(mixing, Hybrid) else mixing.schedule}-{process.timesteps}"
    )


def field(value: float) -> Tensor:
    return torch.full((N, 1), value)


def states(process) -> int:
    return process.codec.states


def counts(z: Tensor, process) -> Tensor:
    return z.flatten().bincount(minlength=states(process))


def marginal(process: DiscreteDiffusion, x: Tensor, t: float) -> Tensor:
    """q(z_t | x) as a vector over all states, for x a distribution over tokens, in float64, as in the papers."""
    at, noise = torch.tensor(t, dtype=torch.float64), torch.zeros(states(process), dtype=torch.float64)
    signal = F.pad(x.double(), (0, states(process) - V))
    if isinstance(process.mixing, Hybrid):
        tau = process.mixing.base.noise(at)
        c = 2 * P_U / (1 - P_U) * (tau * (1 - tau)).sqrt()
        noise[:V], noise[V] = c / V, tau
        return ((1 - tau) * signal + noise) / (1 + c)
    if process.mask is None:
        noise += 1 / V
    else:
        noise[process.mask] = 1
    return process.schedule.signal(at) * signal + process.schedule.noise(at) * noise


def truth(x: Tensor) -> Tensor:
    """Finite logits that put all probability on the clean token."""
    return 200.0 * F.one_hot(x, V)


@pytest.mark.parametrize("process", PROCESSES, ids=process_id)
def test_corruption_at_time_zero_is_the_identity(process) -> None:
    x = torch.randint(V, (50, 6), generator=generator(1))
    assert torch.equal(process.corrupt(x, torch.zeros(50, 6), GeneratorNoise(generator(2), 50)), x)


@pytest.mark.parametrize("process", PROCESSES, ids=process_id)
def test_the_marginal_at_time_one_is_the_prior(process) -> None:
    """z_1 has the distribution of the prior for every token; any difference is the prior term of the bound."""
    noise = GeneratorNoise(generator(3), N)
    prior = counts(process.prior(N, 1, noise), process)
    last = counts(process.corrupt(torch.ones(N, 1).long(), field(1.0), noise), process)
    if isinstance(process, SingleStep):
        expected = truth = F.one_hot(torch.tensor(V), V + 1).double()
    else:
        expected, truth = (marginal(process, x, 1.0) for x in (torch.full((V,), 1 / V), F.one_hot(torch.tensor(1), V)))
    assert chi_square_p_value(prior, expected) > MIN_P_VALUE and chi_square_p_value(last, truth) > MIN_P_VALUE
    divergence = float(torch.special.xlogy(truth, truth / expected.clamp_min(1e-300)).sum())
    nats = process.prior_kl(torch.zeros(2, 3).long())
    torch.testing.assert_close(nats, torch.full_like(nats, divergence), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("process", DIFFUSIONS[::2], ids=process_id)
def test_the_marginal_is_the_closed_form(process, t: float) -> None:
    z = process.corrupt(torch.full((N, 1), 2), field(t), GeneratorNoise(generator(4), N))
    assert chi_square_p_value(counts(z, process), marginal(process, F.one_hot(torch.tensor(2), V), t)) > MIN_P_VALUE


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("process", PROCESSES, ids=process_id)
def test_a_step_of_zero_length_is_the_identity(process, t: float) -> None:
    noise = GeneratorNoise(generator(5), N)
    z = process.corrupt(torch.full((N, 1), 2), field(t), noise)
    out = torch.randn(N, 1, V, generator=generator(6))
    if isinstance(process, SingleStep) and t == 0:
        out = truth(torch.full((N, 1), 2))
    assert torch.equal(process.step(out, z, field(t), field(t), noise), z)


@pytest.mark.parametrize("t", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("process", PROCESSES, ids=process_id)
def test_a_step_to_time_zero_is_clean(process, t: float) -> None:
    noise = GeneratorNoise(generator(7), N)
    x = torch.randint(V, (N, 1), generator=generator(8))
    z = process.corrupt(x, field(t), noise)
    clean = process.step(torch.randn(N, 1, V, generator=generator(9)), z, field(t), field(0.0), noise)
    assert clean.max() < V
    assert torch.equal(process.step(truth(x), z, field(t), field(0.0), noise), x)


@pytest.mark.parametrize("t, s", [(1.0, 0.6), (0.6, 0.2), (1.0, 0.02), (0.3, 0.0)])
@pytest.mark.parametrize("process", DIFFUSIONS[::2], ids=process_id)
def test_a_step_with_the_true_token_maps_marginals_to_marginals(process, t: float, s: float) -> None:
    noise, x = GeneratorNoise(generator(10), N), torch.full((N, 1), 1)
    z = process.corrupt(x, field(t), noise)
    stepped = process.step(truth(x), z, field(t), field(s), noise)
    assert (
        chi_square_p_value(counts(stepped, process), marginal(process, F.one_hot(torch.tensor(1), V), s)) > MIN_P_VALUE
    )


@pytest.mark.parametrize("process", DIFFUSIONS[::2], ids=process_id)
def test_two_steps_compose_to_one(process) -> None:
    """From one state, 0.8 -> 0.5 -> 0.2 has the distribution of 0.8 -> 0.2: both against the exact posterior."""
    x, start = torch.full((N, 1), 1), states(process) - 1
    z, noise = torch.full((N, 1), start), GeneratorNoise(generator(11), N)
    half_way = process.step(truth(x), z, field(0.8), field(0.5), noise)
    by_two = process.step(truth(x), half_way, field(0.5), field(0.2), noise)
    by_one = process.step(truth(x), z, field(0.8), field(0.2), noise)
    expected = posterior(process, F.one_hot(torch.tensor(1), V).double(), start, 0.8, 0.2)
    assert chi_square_p_value(counts(by_one, process), expected) > MIN_P_VALUE
    assert chi_square_p_value(counts(by_two, process), expected) > MIN_P_VALUE


def transition(process: DiscreteDiffusion, s: float, t: float) -> Tensor:
    """The K × K matrix q(z_t | z_s), as a product of 7 matrices stay · I + noise added in between."""
    product = torch.eye(states(process), dtype=torch.float64)
    times = torch.linspace(s, t, 8).double()
    for low, high in zip(times[:-1], times[1:], strict=True):
        early, late = (marginal(process, torch.zeros(V), float(at)) for at in (low, high))
        stay = (1 - late.sum()) / (1 - early.sum())
        product = product @ (stay * torch.eye(states(process), dtype=torch.float64) + (late - stay * early))
    return product


def posterior(process: DiscreteDiffusion, x: Tensor, z: int, t: float, s: float) -> Tensor:
    """q(z_s | z_t = z, x) by Bayes' rule with matrices."""
    joint = marginal(process, x, s) * transition(process, s, t)[:, z]
    return joint / joint.sum()


@pytest.mark.thorough
@pytest.mark.parametrize("t, s", [(1.0, 0.7), (0.7, 0.3), (0.2, 0.01)])
@pytest.mark.parametrize("process", DIFFUSIONS[::2], ids=process_id)
def test_the_closed_form_of_a_step_is_the_matrix_product(process, t: float, s: float) -> None:
    one_hot = torch.eye(V, dtype=torch.float64)
    mixed = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for x in (*one_hot, mixed):
        for z in range(states(process)):
            if marginal(process, x, t)[z] == 0:
                continue  # impossible, for example a token at t = 1
            times = torch.tensor([t], dtype=torch.float64), torch.tensor([s], dtype=torch.float64)
            closed = process._log_step(x[None], torch.tensor([z]), *times).exp()[0]
            torch.testing.assert_close(closed, posterior(process, x, z, t, s), rtol=1e-5, atol=1e-9)
            assert float(closed.sum()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("t, s", [(1.0, 0.7), (0.7, 0.3), (0.2, 0.01)])
@pytest.mark.parametrize("schedule", CURVES, ids=str)
def test_unmasking_frequencies_are_those_of_the_matrix_posterior(schedule, t: float, s: float) -> None:
    process = DiscreteDiffusion(Masking(V, schedule))
    z, noise = torch.full((N, 1), V), GeneratorNoise(generator(12), N)
    out = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(N, 1, V)
    expected = posterior(process, torch.tensor([0.1, 0.2, 0.3, 0.4]), V, t, s)
    assert chi_square_p_value(counts(process.step(out, z, field(t), field(s), noise), process), expected) > MIN_P_VALUE


@pytest.mark.parametrize("t", [0.05, 0.4, 0.95])
def test_add_evidence_is_bayes_rule(t: float) -> None:
    """`add_evidence` against frequencies: draw x from a prior, corrupt it, and count which x produced z = 3."""
    process = DiscreteDiffusion(Uniform(V, Cosine()))
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    x = torch.multinomial(p, 4 * N, replacement=True, generator=generator(13))[:, None]
    z = process.corrupt(x, torch.full_like(x, t, dtype=torch.float32), GeneratorNoise(generator(14), 4 * N))
    expected = process.add_evidence(p.log()[None], torch.tensor([3]), torch.tensor([t])).softmax(-1)[0]
    assert chi_square_p_value(x[z == 3].bincount(minlength=V), expected) > MIN_P_VALUE
    evidence = process.log_likelihood(torch.tensor([[3]]), torch.tensor([[t]]))[0, 0]
    likelihood = torch.stack([marginal(process, row, t)[3] for row in torch.eye(V)]).log()
    torch.testing.assert_close(evidence - evidence[0], (likelihood - likelihood[0]).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("process", PROCESSES, ids=process_id)
def test_likelihood_is_certain_at_time_zero_and_flat_at_time_one(process) -> None:
    x = torch.arange(V)[None]
    assert torch.equal(process.log_likelihood(x, torch.zeros(1, V)).softmax(-1)[0], torch.eye(V))
    hidden = process.prior(1, V, GeneratorNoise(generator(1), 1))
    is_flat = isinstance(process, SingleStep) or process.mixing.prior_kl() == 0
    assert not is_flat or process.log_likelihood(hidden, torch.ones(1, V)).softmax(-1).sub(1 / V).abs().max() < 1e-6


@pytest.mark.parametrize("t", [0.2, 0.7])
def test_context_probs_removes_the_evidence(t: float) -> None:
    process = DiscreteDiffusion(Uniform(V, Polynomial(1.0)))
    context, z = torch.randn(9, V, generator=generator(15)), torch.randint(V, (9,), generator=generator(16))
    times = torch.full((9,), t)
    torch.testing.assert_close(
        process.context_probs(process.add_evidence(context, z, times), z, times), context.softmax(-1)
    )


def test_sampled_masks_have_the_expected_number() -> None:
    """The weighted mean fraction of masks over times is one half."""
    process = DiscreteDiffusion(Masking(V, Polynomial(1.0)))
    noise, x = GeneratorNoise(generator(17), 2000), torch.zeros(2000, 8).long()
    z, t, weight = process.sample_zt(x, noise.low_discrepancy_times(1, 1)[:, 0], torch.ones(2000, 8).bool(), noise)
    mean, error = mean_and_error(((z == V) * weight).double().mean(1))
    assert abs(mean - 0.5) < 3 * error < 0.05
    assert math.isclose(float(weight.mean()), 1, abs_tol=1e-3) and t.max() <= 1
