"""Exact distributions by enumeration of every state of a small language, without sampling error."""

import numpy as np
import pytest
import torch
from statistical_checks import MIN_P_VALUE, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, generator, random_joint, skewed_chain, sticky_chain
from toy_models import System

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.model import Model
from logosphere.schedules.signal import SCHEDULES


def all_states(model: Model) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(model.process.codec.states)] * model.length).view(-1, model.length)


@torch.no_grad()
def sample_distribution(model: Model, language: Language, steps: int) -> Tensor:
    """The distribution of ancestral samples with the exact posterior after `steps` steps.

    Positions move independently within a step, so that a row of the transition matrix is a product over positions.
    """
    z = all_states(model)
    oracle, states = Oracle(model, language), model.process.codec.states
    noise = model.process.mixing.marginal(torch.full((1, language.vocab_size), 1 / language.vocab_size), torch.ones(1))[
        0
    ]
    probabilities = noise.double()[z].prod(1)
    for t, s in model.process.grid(steps).unfold(0, 2, 1):
        now, then = t.expand(z.shape), s.expand(z.shape)
        where = model.process.needs_prediction(z, now > then)
        moves = torch.nn.functional.one_hot(z, states).double()
        out = oracle(z, now, z, where)
        moves[where] = model.process.log_transition(out, z[where], now[where], then[where]).double().softmax(-1)
        matrix = torch.stack([moves[:, i][:, z[:, i]] for i in range(model.length)]).prod(0)
        probabilities = probabilities @ torch.where(
            probabilities[:, None] > 0, matrix, 0.0
        )  # states of probability 0 have undefined rows
    decoded = z.max(1).values < language.vocab_size
    assert probabilities[~decoded].sum() == 0  # no mask is left
    return probabilities[decoded]


class Masks:
    """The noise distribution that `sample_distribution` needs, for a process without one: all masks at t = 1."""

    @staticmethod
    def marginal(x: Tensor, t: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x), torch.ones(len(x), 1)], 1)


def uneven(language: Language) -> Model:
    """genmd4 with powers from 1/2 to 2."""
    model = System("genmd4").model(language)
    model.process.mixing = Masks
    with torch.no_grad():
        model.process.raw.copy_(torch.linspace(0.5, 2.0, language.vocab_size).expm1().log())
    return model


CONTINUOUS = {
    "mdlm": System("mdlm").model, "sedd-absorb": System("sedd-absorb", {"schedule": "linear"}).model,
    "genmd4": uneven, "udlm": System("udlm").model, "gidd": System("gidd").model,
    "sedd-uniform": System("sedd-uniform", {"schedule": "cosine"}).model,
}  # fmt: skip


@pytest.mark.parametrize("make", CONTINUOUS.values(), ids=CONTINUOUS)
def test_samples_follow_the_exact_distribution_of_the_sampler(make) -> None:
    """With few steps it differs from the language, and 6,000 samples suffice to distinguish the two."""
    language = sticky_chain(3, 2)
    model = make(language)
    drawn = ls.sample(model, 6000, 3, generator(2), Oracle(model, language))
    assert sequence_p_value(drawn, language, sample_distribution(model, language, 3)) > MIN_P_VALUE
    assert sequence_p_value(drawn, language) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("make", CONTINUOUS.values(), ids=CONTINUOUS)
@pytest.mark.parametrize("language", [skewed_chain(3, 2), random_joint(2, 3)], ids=["skewed", "table"])
def test_ancestral_sampling_error_decreases_as_one_over_steps(make, language: Language) -> None:
    model, (_, p) = make(language), enumerate_sequences(language)
    errors = [float((sample_distribution(model, language, steps) - p).abs().sum() / 2) for steps in (16, 32, 64)]
    assert errors[0] < 0.06
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert 1.7 < coarse / fine < 2.4


SCHEDULED = {
    "mdlm": {"exact_count": False}, "md4": {}, "sedd-absorb": {}, "udlm": {}, "sedd-uniform": {}, "gidd": {},
    "d3pm-absorbing": {"timesteps": None, "hybrid": 0.0}, "d3pm-uniform": {"timesteps": None},
}  # fmt: skip
NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(16))
PANELS = torch.tensor([0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 0.7, 1.0]).double()


def exact_bound(model: Model, language: Language, denoiser: Oracle) -> float:
    """The bound as the time integral of its mean over all texts and all their noisy states."""
    process, width = model.process, PANELS.diff()[:, None]
    t, slope = process.schedule.times_at((PANELS[:-1, None] + width * (NODES + 1) / 2).flatten())
    weight = (width / 2 * WEIGHTS).flatten() * slope
    (x, p), z = enumerate_sequences(language), all_states(model)
    states = z.repeat(len(t), 1)
    now = t.float().repeat_interleave(len(z))[:, None].expand_as(states)
    where = process.needs_prediction(states, now > 0)
    out = torch.zeros(*states.shape, language.vocab_size)
    out[where] = denoiser(states, now, states, where)
    every = torch.eye(language.vocab_size).double().expand(len(t), -1, -1)
    marginal = process.mixing.marginal(every, t[:, None].expand(-1, language.vocab_size))
    total = language.length * process.mixing.prior_kl()
    for text, likely in zip(x, p, strict=True):
        q = marginal[:, text][:, torch.arange(language.length), z].prod(-1).flatten()  # of every state at every time
        nats = torch.where(where, process.elbo_rate(out, text.expand_as(states), states, now), 0.0).double().sum(1)
        total += float(likely * (weight.repeat_interleave(len(z)) * q * nats)[q > 0].sum())
    return total


@pytest.mark.parametrize("name", SCHEDULED)
def test_the_bound_does_not_depend_on_the_schedule(name: str) -> None:
    """The oracle of another language: its error depends on the noise level alone."""
    language, other = sticky_chain(3, 2), skewed_chain(3, 2)
    bounds = []
    for schedule in SCHEDULES:
        model = System(name, SCHEDULED[name] | {"schedule": schedule}).model(language)
        bounds.append(exact_bound(model, language, Oracle(model, other)))
    assert bounds[0] > language.entropy() * 1.05
    for other_bound in bounds[1:]:
        assert other_bound == pytest.approx(bounds[0], rel=1e-3)
