"""`Model.log_posterior`: with the oracle as denoiser it is the exact posterior of the language, for every system."""

import pytest
import torch

import logosphere as ls
from logosphere.errors import UserError

STATES = ["bit-diffusion", "diffusion-lm"]  # networks that predict states
LATENT = ["ld4lg", "planner", "tencdm", "cosmos"]
TOKENS = [name for name in ls.systems() if name not in (*STATES, *LATENT, "ar", "bd3lm", "d3pm-gaussian")]


@pytest.fixture(scope="module")
def language() -> ls.languages.Markov:
    return ls.languages.markov([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], [0.5, 0.3, 0.2], 4)


@pytest.mark.parametrize("name", TOKENS)
def test_log_posterior_is_the_posterior_of_the_language(name: str, language: ls.languages.Markov) -> None:
    model = ls.build(name, vocab_size=3, length=4, denoiser=None)
    oracle = ls.languages.oracle(model, language)
    tokens = language.sample(8, torch.Generator().manual_seed(0))
    z = model.corrupt(tokens, 0.5, 1)
    t = torch.full((8, 4), 0.5)
    exact = language.posterior(model.process.log_likelihood(z, t)).exp()
    found = model.log_posterior(z, 0.5, denoiser=oracle).exp()
    assert found.shape == (8, 4, 3)
    assert torch.allclose(found.double(), exact, atol=2e-4), (found - exact).abs().max()


def test_the_mask_id_follows_the_last_token() -> None:
    model = ls.build("mdlm", vocab_size=5, length=6)
    z = torch.tensor([[0, 5, 2, 5, 4, 1]])
    found = model.log_posterior(z, (z == 5).float())
    assert torch.allclose(found.exp().sum(-1), torch.ones(1, 6))
    assert found[0, [0, 2, 4, 5]].argmax(-1).tolist() == [0, 2, 4, 1]
    assert float(found[0, [0, 2, 4, 5]].amax(-1).min()) > -1e-6


@pytest.mark.parametrize("name", ["udlm", "sedd-uniform", "multinomial", "d3pm-gaussian"])
def test_models_without_a_mask_refuse_its_id(name: str) -> None:
    model = ls.build(name, vocab_size=5, length=6, width=16, depth=1, heads=2)
    found = model.log_posterior(torch.tensor([[0, 4, 2, 3, 4, 1]]), 0.5)
    assert torch.allclose(found.exp().sum(-1), torch.ones(1, 6))
    with pytest.raises(UserError, match="from 0 to 4, for it has no mask"):
        model.log_posterior(torch.tensor([[0, 5, 2, 5, 4, 1]]), 0.5)


def test_an_autoregressive_model_predicts_the_next_token() -> None:
    model = ls.build("ar", vocab_size=5, length=6)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0]])
    z = torch.tensor([[0, 1, 2, 5, 5, 5]])
    found = model.log_posterior(z, (z == 5).float())
    nats = model.nelbo(tokens, 0).total
    assert torch.allclose(found.exp().sum(-1), torch.ones(1, 6)) and bool(torch.isfinite(nats).all())


@pytest.mark.parametrize("name", [*STATES, *LATENT])
def test_models_that_predict_states_have_no_posterior(name: str) -> None:
    model = ls.build(name, vocab_size=5, length=8, width=16, depth=1, heads=2)
    z = torch.zeros(2, 8, 3) if name in LATENT else model.corrupt(torch.zeros(2, 8, dtype=torch.long), 0.5, 0)
    with pytest.raises(UserError, match="posterior"):
        model.log_posterior(z, 0.5)


def test_seeds_and_generators_give_the_same() -> None:
    model, tokens = ls.build("mdlm", vocab_size=5, length=6), torch.zeros(2, 6, dtype=torch.long)
    by_seed, by_generator = (model.nelbo(tokens, rng).total for rng in (3, torch.Generator().manual_seed(3)))
    assert torch.equal(by_seed, by_generator)
    assert torch.equal(model.corrupt(tokens, 0.5, 3), model.corrupt(tokens, 0.5, torch.Generator().manual_seed(3)))
    assert torch.equal(
        ls.sample(model, n=2, rng=3, sampler="confidence", grid="cosine"),
        ls.sample(
            model, n=2, rng=torch.Generator().manual_seed(3), sampler=ls.sampler("confidence", model), grid="cosine"
        ),
    )


def test_unknown_names_are_refused() -> None:
    model = ls.build("mdlm", vocab_size=5, length=6)
    with pytest.raises(UserError, match="'confidence'"):
        ls.sample(model, sampler="confidense")
    with pytest.raises(UserError, match="'cosine'"):
        ls.sample(model, grid="cosinus")
    with pytest.raises(UserError, match="masked diffusion"):
        ls.sample(ls.build("udlm", vocab_size=5, length=6), sampler="remdm-cap")
