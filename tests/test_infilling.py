"""Infilling reproduces p(· | known), for every system that has an exact posterior and a sampler that keeps its law.

Other tests look closer at some of them (test_oracle_samples.py, test_flows.py, test_gaussian.py, test_turns.py); this
one asks all by name, with the sampler that is theirs, so that no system goes without.
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
"""Their states belong to whole sequences: no position can be held (test_latent.py)."""
HEURISTIC = {"llada", "p2", "star", "g-star", "remdm"}
"""Their samplers choose places by confidence or hide tokens again: what they write has no promised law."""
STEPS = {"fisher-flow": 32, "dirichlet-flow": 128}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ls.systems()} - LEFT_TO_RIGHT - WHOLE - HEURISTIC))
def test_what_is_written_has_the_law_given_what_is_known(name: str) -> None:
    language = skewed_chain(2, 3)
    model = ls.build(name, vocab_size=2, length=3, denoiser=None)
    how = {"known": KNOWN, "tokens": TOKENS, "denoiser": Oracle(model, language)}
    written = ls.sample(model, n=1500, steps=STEPS.get(name, 64), rng=generator(3), **how)
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(written, language, p * (sequences[:, 1] == 1)) > MIN_P_VALUE


def test_the_given_law_differs_from_the_law_of_the_rest() -> None:
    """The power of the test: whoever ignored what is known would be found out."""
    language = skewed_chain(2, 3)
    sequences, p = enumerate_sequences(language)
    drawn = language.sample(1500, generator(3))
    drawn[:, 1] = 1
    assert sequence_p_value(drawn, language, p * (sequences[:, 1] == 1)) < 1e-6
