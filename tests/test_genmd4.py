"""GenMD4: masked diffusion in which every token has its own schedule."""

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


def model_with_unequal_powers(language: Language) -> Model:
    """A genmd4 model with powers from 1/2 to 2."""
    model = System("genmd4").model(language)
    with torch.no_grad():
        model.process.raw.copy_(torch.linspace(0.5, 2.0, language.vocab_size).expm1().log())
    return model


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_oracle_bound_is_the_entropy_with_unequal_powers(language: Language) -> None:
    mean, error = mean_and_error(bound_excess(model_with_unequal_powers(language), language, n=3000, draws=24))
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error


def test_equal_powers_give_the_bound_of_mdlm() -> None:
    language = skewed_chain(4, 4)
    same, plain = System("genmd4").model(language), System("mdlm", {"exact_count": False}).model(language)
    difference = bound_excess(same, language, n=200, draws=4) - bound_excess(plain, language, n=200, draws=4)
    assert difference.abs().max() < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("language", [skewed_chain(3, 4), random_joint()], ids=["skewed", "table"])
def test_oracle_samples_have_the_distribution_of_the_language(language: Language) -> None:
    model = model_with_unequal_powers(language)
    drawn = ls.sample(model, n=3000, steps=256, rng=generator(1), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_other_denoisers_are_above_the_entropy() -> None:
    language, other = skewed_chain(3, 6, seed=3), skewed_chain(3, 6, seed=8)
    model = model_with_unequal_powers(language)
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=Oracle(model, other)))
    assert mean > 3 * error
    untrained = random_network("genmd4", language, seed=5)
    mean, error = mean_and_error(bound_excess(untrained, language, n=1000, draws=8, denoiser=untrained.denoiser))
    assert mean > 10 * error


def test_the_continuous_rate_is_the_limit_of_discrete_steps() -> None:
    """T·KL(q(z_s | mask, x) || Σ_k p_k q(z_s | mask, k)) over the states k and the mask."""
    process, V, T = model_with_unequal_powers(skewed_chain(4, 4)).process.double(), 4, 100_000
    t = torch.linspace(0.1, 1, 40).double()
    out, x = torch.randn(40, V, generator=generator(1)).double(), torch.randint(V, (40,), generator=generator(2))
    p, appear = out.softmax(-1), 1 - ((t - 1 / T) / t)[:, None] ** process.powers.detach()
    of_x, p_x = appear.gather(1, x[:, None])[:, 0], p.gather(1, x[:, None])[:, 0]
    hidden = 1 - (p * appear).sum(1)
    divergence = of_x * -p_x.log() + (1 - of_x) * ((1 - of_x) / hidden).log()
    nats = process.elbo_rate(out, x, torch.full_like(x, V), t).detach()
    torch.testing.assert_close(T * divergence, nats, rtol=1e-3, atol=1e-4)


def marginal_cost(process: GenMD4, predict, x: Tensor, t: float, *, score_term: bool = True) -> Tensor:
    """The exact mean of the cost at time t over all 2^L states, as a function of the powers."""
    length, total = x.shape[1], torch.zeros(())
    for pattern in range(2**length):
        hidden = torch.tensor([[bool(pattern >> i & 1) for i in range(length)]])
        z, times = torch.where(hidden, process.mask, x), torch.full(x.shape, t)
        rate = times ** process.powers[x]
        probability = torch.where(hidden, rate, 1 - rate).prod()
        cost = process.elbo_rate(predict(z, times, x, None), x, z, times)
        total = total + (probability if score_term else probability.detach()) * torch.where(hidden, cost, 0.0).sum()
    return total


def test_the_gradient_of_the_powers_is_unbiased() -> None:
    """The leave-one-out REINFORCE estimate against the exact gradient; without the score term it would be biased."""
    language = skewed_chain(3, 3)
    model = random_network("genmd4", language, seed=2).train()
    process, x, t = model.process, torch.tensor([[0, 2, 1]]), 0.4
    exact, direct = (
        torch.autograd.grad(marginal_cost(process, model.denoiser, x, t, score_term=score_term), process.raw)[0]
        for score_term in (True, False)
    )
    w, n = torch.full((1, 1), t**0.5).double(), 24_000
    batch = Batch.of(x.expand(n, 3).contiguous())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GeneratorNoise, "low_discrepancy_times", lambda self, draws, blocks: w.expand(n, 1)[:, None])
        bound = model.bound(batch, GeneratorNoise(generator(3), n))
    torch.testing.assert_close(bound.loss, bound.diffusion)  # the score term has a gradient but no value
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
