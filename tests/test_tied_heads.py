"""Output heads that are tied to the input vectors of the tokens."""

import pytest
import torch
from toy_languages import generator, skewed_chain
from toy_models import SMALL, random_network

import logosphere as ls
from logosphere.errors import UserError
from logosphere.networks.heads import TiedHead, project
from logosphere.rng import CounterNoise
from logosphere.types import Batch

LANGUAGE = skewed_chain(5, 8)
TIED = [
    "ar",
    "mdlm",
    "md4",
    "genmd4",
    "bd3lm",
    "gidd",
    "udlm",
    "sedd-absorb",
    "rdlm",
    "rdlm-heat",
    "gaussian-ce",
    "bfn",
]


def tied_network(model: ls.Model) -> torch.nn.Module:
    (network,) = [module for module in model.modules() if isinstance(getattr(module, "head", None), TiedHead)]
    return network


@pytest.mark.parametrize("name", TIED)
def test_logits_are_products_with_the_input_vectors(name: str) -> None:
    model = random_network(name, LANGUAGE, tied=True)
    network = tied_network(model)
    h = torch.randn(3, SMALL["width"], generator=generator(1))
    vectors = network.stem.token_rows(5)
    assert vectors.shape == (5, SMALL["width"])
    expected = network.head.scale * h @ vectors.T + network.head.bias
    torch.testing.assert_close(network.logits(h), expected)


@pytest.mark.parametrize("name", TIED)
def test_gradients_reach_the_vectors_through_input_and_head(name: str) -> None:
    model = random_network(name, LANGUAGE, tied=True)
    network, tokens = tied_network(model), LANGUAGE.sample(16, generator(1))
    batch = Batch.of(tokens)
    noise = CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)
    (whole,) = torch.autograd.grad(model.bound(batch, noise).loss.sum(), network.stem.weight)
    detached = network.stem.token_rows(5).detach()
    network.token_rows = lambda: detached  # the head alone no longer trains the vectors
    (of_input,) = torch.autograd.grad(model.bound(batch, noise).loss.sum(), network.stem.weight)
    assert not torch.allclose(whole, of_input, rtol=1e-3)


def test_first_predictions_are_nearly_uniform() -> None:
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=27, length=8, width=64, depth=2, heads=2, tied=True)
    p = model.log_posterior(torch.full((4, 8), 27), 1.0).exp()
    assert float(p.max()) < 3 / 27


def test_tied_models_have_fewer_weights_and_are_saved_once(tmp_path) -> None:
    torch.manual_seed(0)
    tied, own = (ls.build("mdlm", vocab_size=50, length=8, tied=choice, **SMALL) for choice in (True, False))
    count = [sum(p.numel() for p in model.parameters()) for model in (own, tied)]
    assert count[0] - count[1] == 50 * SMALL["width"] - 1  # the weights of the head, for a scale
    tied.save(tmp_path)
    again = ls.load(tmp_path)
    tokens = torch.randint(50, (4, 8), generator=generator(2))
    assert torch.equal(tied.eval().nelbo(tokens, 0).total, again.eval().nelbo(tokens, 0).total)


def test_chunks_of_logits_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from logosphere.processes import bound as bounds

    model = random_network("mdlm", LANGUAGE, tied=True)
    batch = Batch.of(LANGUAGE.sample(16, generator(1)))
    found = []
    for chunk in (bounds.CHUNK, 20):
        monkeypatch.setattr(bounds, "CHUNK", chunk)
        model.zero_grad()
        model.bound(batch, CounterNoise(0, 0, batch.ids, batch.global_index, batch.total)).loss.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


def test_large_vocabularies_are_projected_in_the_precision_of_the_network() -> None:
    h, weight = torch.randn(2, 8, generator=generator(1)), torch.randn(2000, 8, generator=generator(2))
    with torch.autocast("cpu", torch.bfloat16):
        logits = project(h, weight, torch.zeros(2000))
        small = project(h, weight[:10], torch.zeros(10))
    assert logits.dtype == torch.float32 and torch.equal(logits, logits.bfloat16().float())
    torch.testing.assert_close(small, h @ weight[:10].T)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plaid", {}),
        ("bit-diffusion", {}),
        ("diffusion-lm", {}),
        ("ld4lg", {}),
        ("d3pm-gaussian", {"head": "logistic"}),
        ("rdlm", {"base": 2, "digits": "heads"}),
    ],
)
def test_networks_without_a_table_of_tokens_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="tied=True needs"):
        ls.build(name, vocab_size=27, length=8, tied=True, **SMALL, **options)


def test_published_presets_are_not_tied_by_default() -> None:
    """The default of a system is that of its default preset; `paper` is as published."""
    for name in ls.systems():
        for preset in ls.presets(name):
            if preset != "default" and "tied" not in ls.presets(name)[preset].options:
                try:
                    model = ls.build(name, vocab_size=27, length=16, preset=preset, **SMALL)
                except UserError:
                    continue
                assert not any(isinstance(module, TiedHead) for module in model.modules()), (name, preset)
