"""Remasking: marginals are kept for every σ, Star is a special case, and the number and choice of masked positions."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, chi_square_p_value, sequence_p_value
from torch import Tensor
from toy_languages import enumerate_sequences, generator, skewed_chain, sticky_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.codecs.base import HIDDEN
from logosphere.data.languages import Language, Oracle
from logosphere.rng import GeneratorNoise
from logosphere.sampling.generate import generate
from logosphere.sampling.loop import Frame, HoldAtEnd, HoldInMiddle
from logosphere.sampling.steppers import (
    Cap,
    ConfidenceRemasking,
    PlannedRemasking,
    Remasking,
    Rescale,
    Windowed,
    full_remask,
)
from logosphere.sampling.steppers.remasking import forward_backward, max_sigma, remask_probabilities

LANGUAGE = skewed_chain(5, 6)
LEVELS = torch.rand(2, 1000, generator=generator(1), dtype=torch.float64).sort(0, descending=True).values
RULES = {"cap": Cap(0.3), "rescale": Rescale(0.7), "most": Rescale(1.0), "star": full_remask, "back": forward_backward}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_marginals_are_kept_exactly(rule) -> None:
    """a_t (1 - σ) + (1 - a_t) lift = a_s, and both probabilities lie in [0, 1]."""
    noise_t, noise_s = LEVELS
    sigma = rule(noise_t, noise_s, torch.zeros_like(noise_t))
    hide, lift = remask_probabilities(sigma, noise_t, noise_s)
    kept = (1 - noise_t) * (1 - hide) + noise_t * lift
    torch.testing.assert_close(kept, 1 - noise_s, rtol=0, atol=1e-12)
    assert hide.min() >= 0 and hide.max() <= 1 and lift.min() >= -1e-12 and lift.max() <= 1 + 1e-12
    assert (sigma <= max_sigma(noise_t, noise_s) + 1e-12).all()


def test_star_is_independent_of_the_state_and_zero_sigma_is_ancestral() -> None:
    noise_t, noise_s = LEVELS
    hide, lift = remask_probabilities(full_remask(noise_t, noise_s, noise_t), noise_t, noise_s)
    torch.testing.assert_close(hide, noise_s, rtol=0, atol=1e-12)
    torch.testing.assert_close(lift, 1 - noise_s, rtol=0, atol=1e-12)
    hide, lift = remask_probabilities(Cap(0.0)(noise_t, noise_s, noise_t), noise_t, noise_s)
    torch.testing.assert_close(lift, 1 - noise_s / noise_t, rtol=0, atol=1e-12)
    assert hide.eq(0).all()


def test_a_star_step_samples_x0_and_masks_it_anew() -> None:
    """20,000 steps from one half-masked state, against x̂ ~ p(x | z_t) and then z_s ~ q(z_s | x̂), by the oracle."""
    language, n = skewed_chain(3, 2), 20_000
    model = System("mdlm").model(language)
    oracle = Oracle(model, language)
    z = torch.tensor([[3, 1]]).expand(n, 2)
    t, s = torch.full((n, 2), 0.6), torch.full((n, 2), 0.35)

    def evaluate(z, t, where):
        return oracle(z, t, z, where)

    stepped = Remasking(full_remask)(model.process, evaluate, z, t, s, GeneratorNoise(generator(2), n))
    p = oracle(z[:1], t[:1], z[:1])[0, 0].double().exp()
    first = torch.cat([0.65 * p, torch.tensor([0.35])])
    expected = first[:, None] * torch.tensor([0.0, 0.65, 0.0, 0.35])
    counts = torch.bincount(stepped[:, 0] * 4 + stepped[:, 1], minlength=16)
    assert chi_square_p_value(counts, expected.flatten()) > MIN_P_VALUE


def masked_fractions(stepper, steps: int = 8, n: int = 500, **how) -> torch.Tensor:
    frames: list[Frame] = []
    generate(random_network("mdlm", LANGUAGE), n, steps, generator(3), stepper=stepper, watch=frames.append, **how)
    return torch.stack([frame.tokens.eq(HIDDEN).double().mean() for frame in frames])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_fraction_of_masks_follows_the_schedule(rule) -> None:
    fractions, expected = masked_fractions(Remasking(rule)), 1 - torch.arange(1, 9).double() / 8
    assert (fractions - expected).abs().max() < 4 * (0.25 / 3000) ** 0.5


def test_confidence_remasking_masks_more_than_the_schedule() -> None:
    fractions, expected = masked_fractions(Remasking(ConfidenceRemasking())), 1 - torch.arange(1, 9).double() / 8
    assert (fractions > expected)[2:-1].all() and fractions[-1] == 0


def chain_distribution(language: Language, rule, steps: int) -> Tensor:
    """The distribution of sequences after `steps` steps, from transitions between all partly masked states."""
    model = System("mdlm").model(language)
    V, L = language.vocab_size, language.length
    states = torch.cartesian_prod(*[torch.arange(V + 1)] * L)
    p = Oracle(model, language)(states, torch.ones(states.shape), states).double().softmax(-1)
    one_hot = torch.nn.functional.one_hot(states, V + 1).double()
    p_states = (states == V).all(1).double()
    for i in range(steps, 0, -1):
        noise_t, noise_s = torch.tensor([i, i - 1]).double() / steps
        hide, lift = remask_probabilities(rule(noise_t, noise_s, noise_t), noise_t, noise_s)
        masked = torch.cat([torch.zeros(*states.shape, V), torch.ones(*states.shape, 1)], -1)
        unmasked = torch.cat([lift * p, (1 - lift).expand(*states.shape, 1)], -1)
        each = torch.where((states == V)[..., None], unmasked, (1 - hide) * one_hot + hide * masked)
        rows = [each[:, j, states[:, j]] for j in range(L)]
        p_states = p_states @ torch.stack(rows).prod(0)
    assert p_states[(states == V).any(1)].sum() < 1e-9
    return p_states[(states < V).all(1)]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_samples_have_the_distribution_of_the_chain(rule) -> None:
    """With few steps samples are far from the language, but have exactly the distribution of the chain."""
    language = skewed_chain(3, 2)
    model = System("mdlm").model(language)
    drawn = ls.sample(model, 20_000, 5, generator(6), Oracle(model, language), stepper=Remasking(rule))
    assert sequence_p_value(drawn, language, chain_distribution(language, rule, 5)) > MIN_P_VALUE


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_with_many_steps_every_remasking_rule_samples_the_language(rule) -> None:
    language = skewed_chain(3, 2)
    _, p = enumerate_sequences(language)
    few, many = ((chain_distribution(language, rule, steps) - p).abs().sum() for steps in (64, 1024))
    assert many < 0.01 and many < 0.4 * few  # at least like 1/√n


def test_remasking_masks_tokens_again() -> None:
    frames: list[Frame] = []
    generate(random_network("mdlm", LANGUAGE), 50, 8, generator(3), stepper=Remasking(full_remask), watch=frames.append)
    lost = [(a.tokens != HIDDEN) & (b.tokens == HIDDEN) for a, b in zip(frames, frames[1:], strict=False)]
    assert sum(int(where.sum()) for where in lost) > 100


def test_hold_in_middle_keeps_the_fraction_of_masks() -> None:
    loop = HoldInMiddle(on=0.5, off=0.25, level=0.2)
    assert torch.equal(loop(8)[[0, -1]], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(loop(8)[4:7], torch.full((3,), 0.2))
    fractions = masked_fractions(Windowed(Remasking(full_remask), loop.level, loop.level), n=2000, grid=loop)
    assert (fractions[3:6] - 0.2).abs().max() < 4 * (0.16 / 12_000) ** 0.5 and fractions[-1] == 0


def test_hold_at_end_repeats_the_last_time() -> None:
    assert HoldAtEnd(0.01, 0.5)(8).tolist()[-5:] == pytest.approx([0.01] * 4 + [0])
    assert HoldAtEnd(0.01, 0.5)(1).tolist() == [1, 0]
    assert all(len(HoldAtEnd(0.01, 0.5)(steps)) == steps + 1 for steps in range(1, 9))


@pytest.mark.parametrize(
    "how",
    [{}, {"review": True}, {"temperature": 0.0}, {"critic": lambda z: z.double()}],
    ids=["plain", "review", "cold", "critic"],
)
def test_planned_remasking_masks_exactly_the_scheduled_number(how: dict) -> None:
    frames: list[Frame] = []
    generate(
        random_network("mdlm", LANGUAGE), 20, 8, generator(4), stepper=PlannedRemasking(**how), watch=frames.append
    )
    counts = torch.stack([frame.tokens.eq(HIDDEN).sum(1) for frame in frames])
    expected = torch.tensor([-(-6 * (8 - i) // 8) for i in range(1, 9)])
    assert torch.equal(counts, expected[:, None].expand(8, 20))


def test_the_critic_decides_what_is_masked() -> None:
    """A critic that rates token 0 as wrong removes it wherever enough positions are masked."""
    frames: list[Frame] = []
    model = random_network("mdlm", LANGUAGE)
    stepper = PlannedRemasking(lambda z: (z == 0).double(), temperature=0.0)
    drawn = generate(model, 50, 30, generator(5), stepper=stepper, watch=frames.append)
    assert drawn.nfe == 30 + 29  # the last step masks nothing and needs no critic
    plain = generate(model, 50, 30, generator(5), stepper=PlannedRemasking(temperature=torch.inf))
    assert (drawn.tokens == 0).sum() < 0.5 * (plain.tokens == 0).sum()


@pytest.mark.parametrize("wrong", [lambda: Cap(1.5), lambda: Rescale(-0.1), lambda: PlannedRemasking(temperature=-1.0)])
def test_invalid_remasking_settings_are_refused(wrong) -> None:
    with pytest.raises(ls.UserError):
        wrong()
    with pytest.raises(ls.UserError):
        Windowed(Remasking(), 0.2, 0.5)
    with pytest.raises(ls.UserError):
        HoldInMiddle(0.1, on=0.1, off=0.5)


def test_path_planning_masks_unlikely_tokens() -> None:
    """In a chain that repeats its token, the single different token is the least likely one and is masked."""
    language = sticky_chain(3, 5, stay=0.95)
    model = System("mdlm").model(language)
    oracle = Oracle(model, language)
    z = torch.tensor([[1, 1, 2, 1, 1]])
    t, s = torch.full((1, 5), 0.3), torch.full((1, 5), 0.2)

    def evaluate(z, t, where):
        """p(x_i | all others) with the evidence of z_i, as a network predicts it."""
        alone = z.expand(5, 5).where(~torch.eye(5).bool(), 3)
        others = oracle(alone, t.expand(5, 5), alone)[range(5), range(5)][None]
        return model.process.add_evidence(others, z, t)[where]

    stepped = PlannedRemasking(temperature=0.0, review=True)(
        model.process, evaluate, z, t, s, GeneratorNoise(generator(1), 1)
    )
    assert stepped.tolist() == [[1, 1, 3, 1, 1]]
