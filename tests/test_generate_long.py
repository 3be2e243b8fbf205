"""Texts longer than the model: sliding windows continue the chain, evaluations add up, and prompts stay."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import generator
from toy_models import System, random_network

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.sampling.generate import generate
from logosphere.sampling.steppers import first_hitting

CHAIN = ([[0.8, 0.2], [0.35, 0.65]], [0.3, 0.7])


@pytest.mark.parametrize("length", [3, 4, 7])
def test_sliding_windows_sample_the_longer_chain(length: int) -> None:
    """The next token depends on the last one only, so windows of 4 suffice for 7 tokens; 3 tokens are part of one."""
    model = System("mdlm").model(ls.languages.markov(*CHAIN, 4))
    oracle, rng = Oracle(model, ls.languages.markov(*CHAIN, 4)), generator(1)

    def generate_window(known, tokens):
        return generate(model, 5000, 4, rng, oracle, known, tokens, stepper=first_hitting)

    drawn = ls.generate_long(generate_window, window=4, length=length, overlap=2)
    assert sequence_p_value(drawn.tokens, ls.languages.markov(*CHAIN, length)) > MIN_P_VALUE
    assert drawn.nfe == {3: 4, 4: 4, 7: 4 + 2 + 2}[length]


@pytest.mark.parametrize("name", ["ar", "mdlm", "udlm"])
def test_every_system_with_prompts_generates_long_texts(name: str) -> None:
    language = ls.languages.markov(*CHAIN, 6)
    model, rng = random_network(name, language), generator(2)
    known, tokens = torch.arange(6).expand(3, -1) < 2, torch.ones(3, 6).long()

    def generate_window(known, tokens):
        return generate(model, 3, 4, rng, None, known, tokens)

    drawn = ls.generate_long(generate_window, window=6, length=20, overlap=3, known=known, tokens=tokens)
    assert drawn.tokens.shape == (3, 20) and drawn.tokens[:, :2].eq(1).all()


@pytest.mark.parametrize("wrong", [{"length": 0}, {"overlap": 4}, {"overlap": -1}])
def test_invalid_windows_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        ls.generate_long(lambda known, tokens: None, **{"window": 4, "length": 8, "overlap": 2} | wrong)
