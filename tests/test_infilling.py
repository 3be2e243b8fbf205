"""Infilling follows p(· | known) for every system with an exact posterior and an exact sampler.

Some of them are tested in more detail in test_oracle_samples.py, test_flows.py, test_gaussian.py and test_any_order.py;
this file covers every system with its default sampler.
"""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from toy_languages import enumerate_sequences, generator, skewed_chain

import logosphere as ls
from logosphere.data.languages import Oracle

KNOWN, TOKENS = torch.tensor([False, True, False]), torch.tensor([0, 1, 0])
LEFT_TO_RIGHT = {"ar", "bd3lm"}
WHOLE = {"cosmos", "ld4lg", "planner", "tencdm"}
"""Their states belong to whole sequences, so no position can be fixed (test_latent.py)."""
HEURISTIC = {"llada", "p2", "star", "g-star", "remdm"}
"""Their samplers choose positions by confidence or remask tokens, so their samples have no known distribution."""
STEPS = {"fisher-flow": 32, "dirichlet-flow": 128}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ls.systems()} - LEFT_TO_RIGHT - WHOLE - HEURISTIC))
def test_infilled_samples_follow_the_conditional_distribution(name: str) -> None:
    language = skewed_chain(2, 3)
    model = ls.build(name, vocab_size=2, length=3, denoiser=None)
    how = {"known": KNOWN, "tokens": TOKENS, "denoiser": Oracle(model, language)}
    infilled = ls.sample(model, n=1500, steps=STEPS.get(name, 64), rng=generator(3), **how)
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(infilled, language, p * (sequences[:, 1] == 1)) > MIN_P_VALUE


def test_chi_square_test_rejects_unconditional_samples() -> None:
    """The test has power: samples that ignore the known tokens are rejected."""
    language = skewed_chain(2, 3)
    sequences, p = enumerate_sequences(language)
    drawn = language.sample(1500, generator(3))
    drawn[:, 1] = 1
    assert sequence_p_value(drawn, language, p * (sequences[:, 1] == 1)) < 1e-6
