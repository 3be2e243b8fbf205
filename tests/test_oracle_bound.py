"""Oracle bound: with the exact posterior the bound equals the entropy; with any other denoiser it is not below it.

Differences to -log p(x) of the same sequences are tested against their own standard error. Times are stratified over
draws and sequences, so this error is an overestimate and 3 standard errors are a safe margin. The error must be below
0.5% of the entropy, so that an error of 2% in any weight or rate is detected.
"""

import math

import pytest
import torch
from statistical_checks import bound_excess, mean_and_error
from toy_languages import generator, independent_tokens, random_joint, skewed_chain, sticky_chain
from toy_models import AR, DIFFUSIONS, HEADED, System, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.rng import GeneratorNoise

LANGUAGES = {
    "skewed": skewed_chain(5, 4),
    "alone": independent_tokens(4, 4),
    "table": random_joint(),
    "pair": skewed_chain(2, 2),
}


def assert_tight(system: System, language: Language, tokens: int = 32_000) -> None:
    draws = 32 if system in (System("mdlm"), System("mdlm", {"block": 2})) else 64  # exact mask counts need fewer draws
    mean, error = mean_and_error(
        bound_excess(system.model(language), language, n=tokens // language.length, draws=draws)
    )
    assert error < 0.005 * language.entropy()
    assert abs(mean) < 3 * error + 1e-6  # float32 rounding, where stratification leaves no variance


@pytest.mark.thorough
@pytest.mark.parametrize("system", DIFFUSIONS, ids=str)
def test_oracle_bound_is_the_entropy(system: System) -> None:
    assert_tight(system, sticky_chain(3, 6))


@pytest.mark.thorough
@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize("system", [System("mdlm"), System("d3pm-uniform", {"timesteps": None})], ids=str)
def test_oracle_bound_is_the_entropy_of_other_languages(system: System, language: Language) -> None:
    assert_tight(system, language)


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("system", DIFFUSIONS, ids=str)
def test_oracle_bound_is_the_entropy_for_every_system_and_language(system: System, name: str) -> None:
    if system in HEADED and name in ("alone", "pair"):
        pytest.skip("two more languages suffice for systems that share an implementation")
    assert_tight(system, LANGUAGES[name], tokens=44_000)


@pytest.mark.slow
@pytest.mark.parametrize("system", [system for system in DIFFUSIONS if system not in HEADED[:-1]], ids=str)
def test_oracle_bound_is_the_entropy_for_27_letters(system: System) -> None:
    assert_tight(system, skewed_chain(27, 8), tokens=16_000)


@pytest.mark.parametrize("language", [*LANGUAGES.values(), skewed_chain(27, 8)], ids=[*LANGUAGES, "letters"])
def test_autoregressive_likelihood_is_exact_for_every_sequence(language: Language) -> None:
    model = AR.model(language)
    assert bound_excess(model, language, n=200, draws=1).abs().max() < 1e-5
    tokens = language.sample(2, torch.Generator())
    assert model.nelbo(tokens, torch.Generator(), denoiser=Oracle(model, language)).kind == "exact"


def test_sampled_entropy_is_the_closed_form() -> None:
    """The mean of -log p over samples, the reference of the tests above, is the closed form of H."""
    for language in LANGUAGES.values():
        mean, error = mean_and_error(-language.log_prob(language.sample(20_000, generator(1))))
        assert abs(mean - language.entropy()) < 3 * error < 0.02 * language.entropy()


@pytest.mark.parametrize("name", ["d3pm-absorbing", "d3pm-uniform"])
def test_few_steps_loosen_the_bound_for_dependent_tokens(name: str) -> None:
    """T = 4 changes many tokens at once, independently of each other; T = 1000 costs 250 times less."""
    language = sticky_chain(3, 6)
    costs = []
    for timesteps in (4, 64):
        model = System(name, {"timesteps": timesteps}).model(language)
        mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=16))
        assert mean > -3 * error
        costs.append((mean, error))
    assert costs[0][0] > 3 * costs[0][1]
    assert costs[0][0] > costs[1][0] + 3 * math.hypot(costs[0][1], costs[1][1])


@pytest.mark.thorough
@pytest.mark.parametrize("timesteps", [1, 2, 4])
@pytest.mark.parametrize("name", ["d3pm-absorbing", "d3pm-uniform"])
def test_few_steps_keep_the_bound_tight_for_independent_tokens(name: str, timesteps: int) -> None:
    language = independent_tokens(4, 4)
    model = System(name, {"timesteps": timesteps}).model(language)
    mean, error = mean_and_error(bound_excess(model, language, n=2500, draws=40))
    assert error < 0.005 * language.entropy()
    assert abs(mean) < 3 * error


@pytest.mark.thorough
@pytest.mark.parametrize("system", [AR, *DIFFUSIONS], ids=str)
def test_random_network_is_not_below_the_entropy(system: System) -> None:
    language = sticky_chain(3, 6)
    model = random_network(system.name, language, seed=5, **system.options)
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=model.denoiser))
    assert math.isfinite(mean)
    # An untrained denoiser exceeds H by far more than the error; random scores vary more than random distributions.
    assert mean > (4 if system.name == "sedd-uniform" else 10) * error


@pytest.mark.parametrize("system", DIFFUSIONS, ids=str)
def test_oracle_of_another_language_is_above_the_entropy(system: System) -> None:
    language, other = skewed_chain(3, 6, seed=3), skewed_chain(3, 6, seed=8)
    model = system.model(language)
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=Oracle(model, other)))
    assert mean > 3 * error


@pytest.mark.thorough
@pytest.mark.parametrize("system", DIFFUSIONS, ids=str)
def test_rescaled_oracle_logits_are_not_below_the_entropy(system: System) -> None:
    """Sharper or flatter logits can lower a bound with a wrong weight, but not a valid one."""
    language = sticky_chain(3, 6)
    model = system.model(language)
    oracle = Oracle(model, language)
    for sharpness in (0.8, 1.25):

        def predict(z, t, context, where=None, sharpness=sharpness):
            return sharpness * oracle(z, t, context, where)

        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=predict))
        assert mean > -3 * error


@pytest.mark.parametrize("system", DIFFUSIONS, ids=str)
def test_relabelling_the_vocabulary_keeps_the_bound(system: System) -> None:
    """Relabelled states, evaluated with the oracle of the relabelled language, cost the same nats."""
    language, new = skewed_chain(3, 4), torch.tensor([2, 0, 1, 3])  # the mask, 3, keeps its label
    old = new[:3].argsort()
    relabelled = ls.languages.markov(language.transition[old][:, old], language.initial[old], language.length)
    model, noise = system.model(language), GeneratorNoise(generator(2), 500)
    tokens = language.sample(500, generator(3))
    free = torch.ones_like(tokens).bool()
    z, t, _ = model.process.sample_zt(
        tokens, noise.low_discrepancy_times(1, model.length // model.block)[:, 0], free, noise
    )
    where = model.process.needs_prediction(z, free)

    def nats(language: Language, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        out = Oracle(model, language)(z, t, context=x, where=where)
        return model.process.elbo_rate(out, x[where], z[where], t[where])

    torch.testing.assert_close(nats(language, tokens, z), nats(relabelled, new[tokens], new[z]), rtol=1e-4, atol=1e-5)
