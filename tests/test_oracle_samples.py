"""Oracle samples: with the exact posterior, samples have the distribution of the language, also given known tokens.

With 4000 samples on at most 81 sequences a chi-square test detects errors of a few per cent in a cell. The
discretisation error of 128 steps (about 1/128 of the correlation) is below that.
"""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from toy_languages import enumerate_sequences, random_joint, skewed_chain
from toy_models import AR, DIFFUSIONS, HEADED, UNIFORM, System

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.sampling.loop import cosine_grid
from logosphere.sampling.steppers import first_hitting

N = 4000
CASES = {"chain": skewed_chain(3, 4), "table": random_joint()}
KNOWN = torch.tensor([True, False, True, False])


def sample_oracle(system: System, language: Language, n: int = N, **how) -> torch.Tensor:
    model = system.model(language)
    rng = torch.Generator().manual_seed(31)
    return ls.sample(model, n=n, rng=rng, denoiser=Oracle(model, language), **{"steps": 128} | how)


@pytest.mark.thorough
@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("system", [AR, System("mdlm"), System("d3pm-uniform"), System("gidd")], ids=str)
def test_samples_have_the_distribution_of_the_language(system: System, language: Language) -> None:
    assert sequence_p_value(sample_oracle(system, language), language) > MIN_P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("system", [system for system in DIFFUSIONS if system not in HEADED], ids=str)
def test_samples_of_every_variant_have_the_distribution_of_the_language(system: System, language: Language) -> None:
    assert sequence_p_value(sample_oracle(system, language, 10_000, steps=256), language) > MIN_P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("system", HEADED[:-1], ids=str)
def test_samples_of_other_heads_have_the_distribution_of_the_language(system: System) -> None:
    assert sequence_p_value(sample_oracle(system, skewed_chain(3, 4)), skewed_chain(3, 4)) > MIN_P_VALUE


@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("system", [System("mdlm"), System("mdlm", {"block": 2})], ids=str)
def test_first_hitting_is_exact(system: System, language: Language) -> None:
    assert sequence_p_value(sample_oracle(system, language, 10_000, stepper=first_hitting), language) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("system", [AR, System("mdlm"), System("mdlm", {"block": 2})], ids=str)
def test_cached_sampling_draws_the_same_tokens(system: System) -> None:
    language = skewed_chain(3, 4)
    assert torch.equal(sample_oracle(system, language, 500, cached=True), sample_oracle(system, language, 500))


def test_too_few_steps_are_detected() -> None:
    """Power of the chi-square test: in two steps a masked oracle ignores correlations and is rejected."""
    assert sequence_p_value(sample_oracle(System("mdlm"), skewed_chain(3, 4), steps=2), skewed_chain(3, 4)) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("system", [System("mdlm"), System("d3pm-uniform", {"timesteps": None})], ids=str)
def test_cosine_grid_has_the_same_limit(system: System) -> None:
    language = skewed_chain(3, 4)
    assert sequence_p_value(sample_oracle(system, language, grid=cosine_grid), language) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("system", [System("mdlm"), System("d3pm-uniform", {"timesteps": None})], ids=str)
def test_infilling_has_the_conditional_distribution(system: System, language: Language) -> None:
    tokens = language.sample(1, torch.Generator().manual_seed(6))[0]
    samples = sample_oracle(system, language, known=KNOWN, tokens=tokens)
    assert torch.equal(samples[:, KNOWN], tokens[KNOWN].expand(N, -1))
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(samples, language, p * (sequences[:, KNOWN] == tokens[KNOWN]).all(1)) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("system", [AR, System("mdlm", {"block": 2}), System("d3pm-absorbing")], ids=str)
def test_continuations_have_the_conditional_distribution(system: System) -> None:
    language, prompt = skewed_chain(3, 4), torch.tensor([True, True, False, False])
    tokens = torch.tensor([1, 2, 0, 0])
    samples = sample_oracle(system, language, known=prompt, tokens=tokens)
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(samples, language, p * (sequences[:, :2] == tokens[:2]).all(1)) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("language", CASES.values(), ids=CASES)
@pytest.mark.parametrize("system", [System("mdlm"), System("mdlm", {"exact_count": False}), *UNIFORM[:2]], ids=str)
def test_infilling_oracle_bound_is_the_conditional_entropy(system: System, language: Language) -> None:
    difference = bound_excess(system.model(language), language, n=2000, draws=64, known=KNOWN)
    mean, error = mean_and_error(difference)
    assert error < 0.01 * language.entropy()  # half of the positions have half of the entropy and the same error
    assert abs(mean) < 3 * error


def test_known_positions_cost_nothing() -> None:
    language = skewed_chain(3, 4)
    tokens = language.sample(5, torch.Generator().manual_seed(6))
    for system in DIFFUSIONS:
        model = system.model(language)
        bound = model.nelbo(
            tokens, torch.Generator(), denoiser=Oracle(model, language), known=torch.ones_like(tokens).bool()
        )
        assert bound.total.eq(0).all() and bound.count.eq(0).all()
