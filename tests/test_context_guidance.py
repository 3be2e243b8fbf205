"""Guidance by context: it changes what depends on other positions, and nothing else."""

from pathlib import Path

import pytest
import torch
from statistical_checks import MIN_P_VALUE, chi_square_p_value, sequence_p_value
from toy_languages import enumerate_sequences, generator, independent_tokens, skewed_chain, sticky_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.sampling.steppers import ContextGuidance, OrderedUnmasking, ancestral, random_order
from logosphere.types import Float, Int64, Logits

N = 2000
SYSTEMS = [System("rdlm-heat"), System("mdlm"), System("sedd-absorb"), System("rdlm")]


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


def draw(model: Model, language: Language, guidance: ContextGuidance | None = None, **how: object) -> torch.Tensor:
    settings = {"n": N, "steps": 16, "rng": generator(8), "denoiser": Oracle(model, language)} | how
    return ls.sample(model, stepper=guidance or ancestral, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_a_scale_of_one_is_the_model(system: System) -> None:
    """The prediction is decomposed and put together again, so that rounding may change a draw in thousands."""
    language = skewed_chain(3, 4)
    model = system.model(language)
    plain, guided = draw(model, language, n=500), draw(model, language, ContextGuidance(1.0), n=500)
    assert (plain == guided).double().mean() > 0.995


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [4.0, 0.0])
@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_independent_tokens_have_no_context(system: System, scale: float) -> None:
    """For every scale, and for every number of steps, since independent tokens have no discretisation error.

    `rdlm` has the posterior of an approximate likelihood, which few steps do not correct.
    """
    language = independent_tokens(5, 2)
    samples = draw(system.model(language), language, ContextGuidance(scale), steps=32 if system.name == "rdlm" else 6)
    assert sequence_p_value(samples, language) > MIN_P_VALUE


def test_a_temperature_changes_independent_tokens() -> None:
    """Power of the test above."""
    language = independent_tokens(5, 2)
    samples = draw(System("rdlm-heat").model(language), language, ContextGuidance(4.0, temperature=0.4), steps=6)
    assert sequence_p_value(samples, language) < 1e-6


def first_to_last(out: Logits, drawn: Int64[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """An order from left to right; the positions of a sequence are packed one after another."""
    return -torch.arange(len(drawn)).double()


@pytest.mark.parametrize("scale, temperature", [(2.0, 1.0), (1.5, 0.7)])
def test_one_position_per_step_has_the_distribution_of_the_formula(scale: float, temperature: float) -> None:
    """Π_i p'(x_i | x_<i), p' ∝ [π (p/π)^γ]^(1/τ) with π the marginal of position i."""
    language = skewed_chain(3, 3)
    model = System("mdlm").model(language)
    guidance = ContextGuidance(scale, temperature, OrderedUnmasking(first_to_last))
    samples = draw(model, language, guidance, steps=3)
    sequences, p = enumerate_sequences(language)
    joint, guided = p.view(3, 3, 3), torch.ones(3, 3, 3, dtype=torch.float64)
    for i in range(3):
        later = tuple(range(i + 1, 3))
        before = joint.sum(later, keepdim=True) if later else joint  # an empty tuple would sum over all
        conditional = before / before.sum(i, keepdim=True)
        marginal = joint.sum([j for j in range(3) if j != i], keepdim=True)
        logits = (marginal.log() + scale * (conditional.log() - marginal.log())) / temperature
        guided = guided * logits.softmax(i)
    assert sequence_p_value(samples, language, guided.flatten()) > MIN_P_VALUE
    assert sequence_p_value(samples, language, p) < 1e-6


@pytest.mark.parametrize("system", SYSTEMS[:2], ids=str)
def test_correlations_grow_and_frequencies_stay(system: System) -> None:
    """Tokens of a sticky chain are uniform, and repeat with probability 0.7; guided ones repeat more often."""
    language = sticky_chain(3, 4, stay=0.7)
    model = system.model(language)
    samples = draw(model, language, ContextGuidance(2.0))
    repeats = (samples[:, 1:] == samples[:, :-1]).double().mean()
    assert repeats > 0.75
    assert chi_square_p_value(torch.bincount(samples[:, 2], minlength=3), torch.ones(3)) > MIN_P_VALUE


def test_sequences_of_probability_zero_are_not_sampled() -> None:
    """One position per step, since positions of one step are drawn independently."""
    even = torch.tensor([1 - bin(i).count("1") % 2 for i in range(16)]).double()
    language = ls.languages.joint((even * torch.arange(1, 17)).view(2, 2, 2, 2))
    guidance = ContextGuidance(3.0, 0.5, OrderedUnmasking(random_order, temperature=1.0))
    samples = draw(System("mdlm").model(language), language, guidance, steps=4)
    drawn = torch.bincount((samples * torch.tensor([8, 4, 2, 1])).sum(1), minlength=16)
    assert drawn[even == 0].sum() == 0 and (drawn > 0).sum() > 2


@pytest.mark.parametrize("name", ["mdlm", "rdlm", "rdlm-heat", "bd3lm"])
def test_known_tokens_stay_and_seeds_decide(name: str) -> None:
    model = random_network(name, skewed_chain(5, 6), **({"block": 3} if name == "bd3lm" else {}))
    known, tokens = torch.rand(8, 6, generator=generator(5)) < 0.4, torch.randint(5, (8, 6), generator=generator(6))
    sampler = ls.sampler("context", model)
    how = {"n": 8, "steps": 6, "known": known, "tokens": tokens, "sampler": sampler}
    if name == "bd3lm":
        known[:, 3:] = False  # a prefix within the first block
    first, again, other = (ls.sample(model, rng=seed, **how) for seed in (0, 0, 1))
    assert torch.equal(first[known], tokens[known])
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0 <= int(first.min()) and int(first.max()) < 5


def test_misuse_is_refused() -> None:
    with pytest.raises(UserError, match="finite and at least 0"):
        ContextGuidance(-1.0)
    with pytest.raises(UserError, match="above 0"):
        ContextGuidance(2.0, temperature=0.0)
    language = skewed_chain(3, 4)
    with pytest.raises(UserError, match="masked diffusion such as mdlm, or diffusion on the sphere"):
        ls.sampler("context", random_network("udlm", language))
    with pytest.raises(UserError, match="without filters"):
        ls.sample(random_network("mdlm", language), sampler="context", temperature=0.5)
