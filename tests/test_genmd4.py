"""Laws of masked diffusion in which every token has its own schedule."""

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from torch import Tensor
from toy_languages import generator, random_joint, skewed_chain, sticky_chain
from toy_models import System, random_network

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.model import Model
from logosphere.processes.discrete.masked import GenMD4
from logosphere.rng import GeneratorNoise
from logosphere.types import Batch

LANGUAGES = {"sticky": sticky_chain(3, 4), "skewed": skewed_chain(4, 4), "table": random_joint()}


def uneven(language: Language) -> Model:
    """genmd4 with powers from 1/2 to 2."""
    model = System("genmd4").model(language)
    with torch.no_grad():
        model.process.raw.copy_(torch.linspace(0.5, 2.0, language.vocab_size).expm1().log())
    return model


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_the_bound_of_an_oracle_is_the_entropy_whatever_the_powers(language: Language) -> None:
    mean, error = mean_and_error(bound_excess(uneven(language), language, n=3000, draws=24))
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error


def test_equal_powers_are_a_plain_schedule() -> None:
    language = skewed_chain(4, 4)
    same, plain = System("genmd4").model(language), System("mdlm", {"exact_count": False}).model(language)
    difference = bound_excess(same, language, n=200, draws=4) - bound_excess(plain, language, n=200, draws=4)
    assert difference.abs().max() < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("language", [skewed_chain(3, 4), random_joint()], ids=["skewed", "table"])
def test_samples_of_an_oracle_have_the_law_of_the_language(language: Language) -> None:
    model = uneven(language)
    drawn = ls.sample(model, n=3000, steps=256, rng=generator(1), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_other_denoisers_are_not_below_the_entropy() -> None:
    language, other = skewed_chain(3, 6, seed=3), skewed_chain(3, 6, seed=8)
    model = uneven(language)
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=Oracle(model, other)))
    assert mean > 3 * error
    untrained = random_network("genmd4", language, seed=5)
    mean, error = mean_and_error(bound_excess(untrained, language, n=1000, draws=8, denoiser=untrained.denoiser))
    assert mean > 10 * error


def test_the_continuous_rate_is_the_limit_of_steps() -> None:
    """T·KL(q(z_s | mask, x) || Σ_k p_k q(z_s | mask, k)) over the states k and the mask."""
    process, V, T = uneven(skewed_chain(4, 4)).process.double(), 4, 100_000
    t = torch.linspace(0.1, 1, 40).double()
    out, x = torch.randn(40, V, generator=generator(1)).double(), torch.randint(V, (40,), generator=generator(2))
    p, appear = out.softmax(-1), 1 - ((t - 1 / T) / t)[:, None] ** process.powers.detach()
    of_x, p_x = appear.gather(1, x[:, None])[:, 0], p.gather(1, x[:, None])[:, 0]
    hidden = 1 - (p * appear).sum(1)
    divergence = of_x * -p_x.log() + (1 - of_x) * ((1 - of_x) / hidden).log()
    nats = process.elbo_rate(out, x, torch.full_like(x, V), t).detach()
    torch.testing.assert_close(T * divergence, nats, rtol=1e-3, atol=1e-4)


def marginal_cost(process: GenMD4, predict, x: Tensor, t: float, *, credit: bool = True) -> Tensor:
    """The exact mean of the cost at time t over all 2^L states, as a function of the powers."""
    length, total = x.shape[1], torch.zeros(())
    for pattern in range(2**length):
        hidden = torch.tensor([[bool(pattern >> i & 1) for i in range(length)]])
        z, times = torch.where(hidden, process.mask, x), torch.full(x.shape, t)
        rate = times ** process.powers[x]
        chance = torch.where(hidden, rate, 1 - rate).prod()
        cost = process.elbo_rate(predict(z, times, x, None), x, z, times)
        total = total + (chance if credit else chance.detach()) * torch.where(hidden, cost, 0.0).sum()
    return total


def test_the_gradient_of_the_powers_is_unbiased() -> None:
    """Draws with leave-one-out credit against the exact gradient; without the credit it would be another one."""
    language = skewed_chain(3, 3)
    model = random_network("genmd4", language, seed=2).train()
    process, x, t = model.process, torch.tensor([[0, 2, 1]]), 0.4
    exact, direct = (
        torch.autograd.grad(marginal_cost(process, model.denoiser, x, t, credit=credit), process.raw)[0]
        for credit in (True, False)
    )
    w, n = torch.full((1, 1), t**0.5).double(), 24_000
    batch = Batch.of(x.expand(n, 3).contiguous())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GeneratorNoise, "low_discrepancy_times", lambda self, draws, blocks: w.expand(n, 1)[:, None])
        bound = model.bound(batch, GeneratorNoise(generator(3), n))
    torch.testing.assert_close(bound.loss, bound.diffusion)  # the credit is a gradient and no value
    parts = (bound.loss / (2 * t**0.5)).view(20, -1).mean(1)
    drawn = torch.stack([torch.autograd.grad(part, process.raw, retain_graph=True)[0] for part in parts])
    error = drawn.std(0) / len(drawn) ** 0.5
    assert bool(((drawn.mean(0) - exact).abs() < 4 * error).all())
    assert bool(((drawn.mean(0) - direct).abs() > 8 * error).any())


def test_powers_learn_and_are_saved(tmp_path) -> None:
    language = skewed_chain(4, 4)
    model = random_network("genmd4", language)
    before = model.process.powers.detach().clone()
    for _ in ls.fit(model, (language.sample(32, generator(i)) for i in range(8)), steps=8):
        pass
    assert (model.process.powers - before).abs().min() > 0
    model.save(tmp_path)
    assert torch.equal(ls.load(tmp_path).process.powers, model.process.powers)
