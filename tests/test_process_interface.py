"""Properties that the interface requires of every process with token states: its ends, its marginals and its steps."""

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from statistical_checks import MIN_P_VALUE, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, generator, skewed_chain
from toy_models import DIFFUSIONS, NEW_SYSTEMS, System

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.processes.base import Process
from logosphere.rng import GeneratorNoise, Noise

V = 4
N = 20_000
ALL = pytest.mark.parametrize("system", DIFFUSIONS, ids=str)


def process_of(system: System) -> Process:
    return system.model(skewed_chain(V, 4)).process


def noise(seed: int) -> Noise:
    return GeneratorNoise(generator(seed), N)


def times(value: float) -> Tensor:
    return torch.full((N, 4), value)


def prediction(process: Process, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """The prediction of a network that knows the token."""
    return process.from_posterior((200.0 * F.one_hot(x, V)).log_softmax(-1), z, t)


def same_distribution_p_value(first: Tensor, second: Tensor, states: int) -> float:
    """The p-value of a chi-square test of the hypothesis that two samples have the same distribution."""
    table = torch.stack([values.flatten().bincount(minlength=states) for values in (first, second)])
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] == 1 else float(stats.chi2_contingency(table.numpy()).pvalue)


@ALL
def test_states_at_time_zero_are_clean(system: System) -> None:
    process, x = process_of(system), torch.randint(V, (N, 4), generator=generator(1))
    assert torch.equal(process.corrupt(x, times(0.0), noise(2)), x)
    assert torch.equal(process.log_likelihood(x, times(0.0)).argmax(-1), x)


@ALL
def test_states_at_time_one_have_the_distribution_of_the_prior(system: System) -> None:
    process, x = process_of(system), torch.ones(N, 4).long()
    if process.prior_kl(x).any():
        pytest.skip("signal is left at t = 1, and the bound counts it")
    last, prior = process.corrupt(x, times(1.0), noise(3)), process.prior(N, 4, noise(4))
    assert same_distribution_p_value(last, prior, V + 1) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("t", [0.3, 1.0])
@ALL
def test_a_step_of_no_time_is_the_identity(system: System, t: float) -> None:
    process, x = process_of(system), torch.full((N, 4), 2)
    z = process.corrupt(x, times(t), noise(5))
    assert torch.equal(process.step(prediction(process, x, z, times(t)), z, times(t), times(t), noise(6)), z)


@pytest.mark.thorough
@pytest.mark.parametrize("t, s", [(1.0, 0.6), (0.6, 0.2), (0.3, 0.0)])
@ALL
def test_steps_that_know_the_token_have_the_marginals_of_the_forward_process(
    system: System, t: float, s: float
) -> None:
    process, x = process_of(system), torch.ones(N, 4).long()
    if t == 1 and process.predicts_ratios and process.guides_transitions:
        pytest.skip("where no signal is left all ratios of tokens are 1, whatever the token is")
    z = process.corrupt(x, times(t), noise(7))
    stepped = process.step(prediction(process, x, z, times(t)), z, times(t), times(s), noise(8))
    assert same_distribution_p_value(stepped, process.corrupt(x, times(s), noise(9)), V + 1) > MIN_P_VALUE


WHOLE = [System("mdlm", {"exact_count": False}), *(system for system in NEW_SYSTEMS if "block" not in system.options)]


@pytest.mark.thorough
@pytest.mark.parametrize("system", WHOLE, ids=str)
def test_infilling_has_the_distribution_given_the_known_tokens(system: System) -> None:
    language, known = skewed_chain(3, 4), torch.tensor([True, False, True, False])
    model, tokens = system.model(language), torch.tensor([1, 0, 2, 0])
    samples = ls.sample(model, n=4000, steps=128, rng=31, denoiser=Oracle(model, language), known=known, tokens=tokens)
    sequences, p = enumerate_sequences(language)
    p = p * (sequences[:, known] == tokens[known]).all(1)
    assert torch.equal(samples[:, known], tokens[known].expand(4000, -1))
    assert sequence_p_value(samples, language, p) > MIN_P_VALUE
