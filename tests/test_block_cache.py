"""The cache of block models: the same logits and samples as without it."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import generator, skewed_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.networks.transformer import BlockSession, BlockTransformer
from logosphere.sampling.generate import generate

LANGUAGE = skewed_chain(5, 12)


class Plain(BlockTransformer):
    """A block transformer without a cache."""

    def cached(self, memory):
        return self


@pytest.mark.parametrize("name", ["mdlm", "d3pm-absorbing", "udlm"])
@pytest.mark.parametrize("block", [1, 3, 4])
def test_logits_are_equal_with_and_without_the_cache(name: str, block: int) -> None:
    model = random_network(name, LANGUAGE, block=block).eval().requires_grad_(False)
    session = model.denoiser.begin_sampling()
    context = LANGUAGE.sample(4, generator(1))
    for index in range(12 // block):
        z = torch.randint(5, (4, 12), generator=generator(index))
        t = torch.rand(4, 12, generator=generator(index))
        for _ in range(2):
            where = torch.zeros(4, 12).bool()
            where[:, index * block : (index + 1) * block] = torch.rand(4, block, generator=generator(index)) < 0.7
            if where.any():
                torch.testing.assert_close(session(z, t, context, where), model.denoiser(z, t, context, where))
    assert isinstance(session.inner, BlockSession)


def test_cache_is_invalidated_when_the_context_changes() -> None:
    model = random_network("mdlm", LANGUAGE, block=3).eval().requires_grad_(False)
    session, where = model.denoiser.begin_sampling(), torch.arange(12).expand(4, -1) // 3 == 2
    for seed in (1, 2):
        text = LANGUAGE.sample(4, generator(seed))
        torch.testing.assert_close(
            session(text, text * 0.5, text, where), model.denoiser(text, text * 0.5, text, where)
        )


@pytest.mark.parametrize("name", ["mdlm", "udlm"])
@pytest.mark.parametrize("prompt", [0, 5])
def test_samples_are_equal_with_and_without_the_cache(name: str, prompt: int) -> None:
    model = random_network(name, LANGUAGE, block=4)
    known, tokens = torch.arange(12) < prompt, LANGUAGE.sample(1, generator(1))[0]
    cached = generate(model, 20, 12, generator(2), known=known, tokens=tokens)
    model.denoiser.inner.__class__ = Plain
    plain = generate(model, 20, 12, generator(2), known=known, tokens=tokens)
    assert torch.equal(cached.tokens, plain.tokens) and cached.nfe == plain.nfe


def test_each_step_evaluates_one_block() -> None:
    model = random_network("mdlm", LANGUAGE, block=3)
    lengths = []
    model.denoiser.inner.trunk.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
    generate(model, 2, 8, generator(1))
    assert set(lengths) == {3} and len(lengths) == 8 + 3  # 8 steps, and one pass over each of 3 finished blocks


def test_remasking_works_block_by_block() -> None:
    """Block-wise remasking with the oracle samples the language."""
    language = skewed_chain(3, 4)
    model = System("mdlm", {"block": 2}).model(language)
    remasking = ls.sampler("remdm-cap", model)
    assert (
        sequence_p_value(
            ls.sample(model, 4000, 128, generator(3), Oracle(model, language), sampler=remasking), language
        )
        > MIN_P_VALUE
    )
