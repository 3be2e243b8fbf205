"""Gaussian diffusion: its bound is the entropy for every schedule and every table, and its samples are the language."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from toy_languages import enumerate_sequences, generator, independent_tokens, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, random_network

import logosphere as ls
from logosphere.codecs import embeddings
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.conditioning import Conditioner
from logosphere.processes.gaussian.diffusion import T_DECODE
from logosphere.processes.gaussian.token import GaussianTokenDiffusion
from logosphere.processes.gaussian.updates import PARAMETERIZATIONS
from logosphere.rng import GeneratorNoise
from logosphere.sampling.generate import generate
from logosphere.types import Condition

N = 2500
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plaid": ("plaid", {}),
    "plaid, free embeddings": ("plaid", {"norm": None, "max_logsnr": 1.0, "min_logsnr": -8.0}),
    "cosine": ("gaussian-ce", {"max_logsnr": 3.0}),
    "bits, sigmoid": ("gaussian-ce", {"codec": "bits", "schedule": "sigmoid"}),
    "one-hot, sqrt": ("gaussian-ce", {"codec": "one-hot", "schedule": "sqrt", "max_logsnr": 3.5}),
    "logits, linear-beta": (
        "gaussian-ce",
        {"codec": "logits", "schedule": "linear-beta", "shift": -2.0, "max_logsnr": 3.0},
    ),
    "cdcd": ("cdcd", {}),
    "diffusion-lm": ("diffusion-lm", {}),
    "bit-diffusion": ("bit-diffusion", {}),
    "simplex": ("simplex", {}),
    "long, linear, even": ("gaussian-ce", {"norm": 2.5, "schedule": "linear", "max_logsnr": 1.0, "min_logsnr": -9.0}),
}


def built(name: str, language: Language, options: dict[str, Any]) -> Model:
    """A model without a network, its embeddings fixed by a seed, whose clock has looked at the language once."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ls.build(name, vocab_size=language.vocab_size, length=language.length, denoiser=None, **options)
    model.process.train()
    model.nelbo(language.sample(500, generator(1)), generator(2), denoiser=Oracle(model, language), draws=4)
    model.process.update_statistics()
    model.process.eval()
    return model


def prior(model: Model, language: Language) -> float:
    """KL(q(z_1) || N(0, I)), which no network can avoid, averaged over sequences."""
    u = model.process.codec.encode(language.sample(2000, generator(3)))
    return float(model.process.prior_kl(u).sum(1).mean().detach())


def assert_tight(name: str, options: dict[str, Any], language: Language, n: int, draws: int) -> None:
    """H ≤ bound ≤ H + prior term + reading, within 3 s.e.

    Tokens are read off one by one, which may cost as much as there is left to read, and no more.
    """
    model, rng = built(name, language, options), generator(11)
    tokens = language.sample(n, rng)
    bound = model.nelbo(tokens, rng, denoiser=Oracle(model, language), draws=draws)
    mean, error = mean_and_error(bound.total.double() + language.log_prob(tokens))
    assert error < 0.013 * language.entropy()
    assert -3 * error < mean < 3 * error + prior(model, language) + float(bound.recon.mean())


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_bound_of_an_oracle_is_the_entropy(variant: tuple[str, dict[str, Any]]) -> None:
    assert_tight(*variant, sticky_chain(3, 4), n=2000, draws=48)


@pytest.mark.slow
@pytest.mark.parametrize(
    "language",
    [skewed_chain(5, 4), random_joint(), independent_tokens(5, 2), skewed_chain(27, 4)],
    ids=["5", "table", "alone", "27"],
)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_bound_is_tight_for_every_language(variant: tuple[str, dict[str, Any]], language: Language) -> None:
    assert_tight(*variant, language, n=3000, draws=64)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_no_network_comes_below_the_entropy(variant: tuple[str, dict[str, Any]]) -> None:
    language = sticky_chain(3, 4)
    model = built(variant[0], language, variant[1])
    mean, error = mean_and_error(
        bound_excess(model, language, n=500, draws=16, denoiser=Oracle(model, independent_tokens(3, 4)))
    )
    assert mean > 3 * error  # and it pays for being wrong
    for sharpness in (0.8, 1.25):
        oracle = Oracle(model, language)

        def predict(z, t, context, where=None, sharpness=sharpness, oracle=oracle):
            return sharpness * oracle(z, t, context, where)

        mean, error = mean_and_error(bound_excess(model, language, n=500, draws=16, denoiser=predict))
        assert mean > -3 * error


SYSTEMS = ["plaid", "gaussian-ce", "cdcd", "diffusion-lm", "bit-diffusion", "simplex"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_random_network_is_not_below_the_entropy(name: str) -> None:
    language = sticky_chain(3, 4)
    model = random_network(name, language, seed=5).eval()
    mean, error = mean_and_error(bound_excess(model, language, n=500, draws=8, denoiser=model.denoiser))
    assert math.isfinite(mean) and mean > 3 * error


@pytest.mark.thorough
@pytest.mark.parametrize("predicts", ["x0", "v", *(pytest.param(s, marks=pytest.mark.slow) for s in ("eps", "score"))])
def test_a_network_may_predict_states_instead_of_tokens(predicts: str) -> None:
    """With tokens read off their own noisy states it is another bound, and tight where those states are clear."""
    language = random_joint()
    model = built("gaussian-ce", language, {"max_logsnr": 4.0, "min_logsnr": -6.0, "loss": "bound"})
    process = model.process
    states = Model(
        GaussianTokenDiffusion(
            process.codec, process.schedule, process.time_sampler, parameterization=PARAMETERIZATIONS[predicts]
        ),
        None,
        length=4,
        block=4,
    )
    mean, error = mean_and_error(bound_excess(states.eval(), language, n=1500, draws=48))
    assert error < 0.01 * language.entropy()
    assert -3 * error < mean < 3 * error + prior(states, language)
    drawn = ls.sample(states, n=N, steps=96, rng=generator(5), denoiser=Oracle(states, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


@pytest.mark.parametrize("predicts", PARAMETERIZATIONS)
def test_predictions_convert_into_each_other(predicts: str) -> None:
    alpha, sigma = torch.tensor([[0.9], [0.3]]), torch.tensor([[0.19**0.5], [0.91**0.5]])
    x, noise, wrong = (torch.randn(2, 5, generator=generator(i)) for i in (1, 2, 3))
    z, way = alpha * x + sigma * noise, PARAMETERIZATIONS[predicts]
    torch.testing.assert_close(way.predict_x0(way.from_x0(x, z, alpha, sigma), z, alpha, sigma), x)
    known = {"x0": x, "eps": noise, "v": alpha * noise - sigma * x, "score": -noise / sigma}
    torch.testing.assert_close(way.from_x0(x, z, alpha, sigma), known[predicts])
    error = (way.from_x0(wrong, z, alpha, sigma) - known[predicts]).square().sum(-1)
    torch.testing.assert_close(error, (way.loss_scale(alpha, sigma)[:, 0] * (wrong - x).square().sum(-1)))


@pytest.mark.thorough
@pytest.mark.parametrize("variant", [VARIANTS["plaid"], VARIANTS["one-hot, sqrt"]], ids=["plaid", "one-hot"])
@pytest.mark.parametrize("language", [skewed_chain(3, 4), random_joint()], ids=["chain", "table"])
def test_samples_are_the_language(variant: tuple[str, dict[str, Any]], language: Language) -> None:
    model = built(variant[0], language, variant[1])
    drawn = ls.sample(model, n=N, steps=96, rng=generator(5), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_infilling_reproduces_the_law_given_what_is_known() -> None:
    language, known = random_joint(), torch.tensor([True, False, True, False])
    tokens = language.sample(1, generator(6))[0]
    model = built("plaid", language, {})
    drawn = ls.sample(
        model, n=N, steps=96, rng=generator(7), denoiser=Oracle(model, language), known=known, tokens=tokens
    )
    sequences, p = enumerate_sequences(language)
    assert sequence_p_value(drawn, language, p * (sequences[:, known] == tokens[known]).all(1)) > MIN_P_VALUE
    difference = bound_excess(model, language, n=1500, draws=48, known=known)
    mean, error = mean_and_error(difference)
    assert abs(mean) < 3 * error + prior(model, language) and error < 0.01 * language.entropy()


def test_adding_a_constant_to_all_embeddings_changes_only_the_prior_term() -> None:
    """The same noise, moved along: reconstruction and diffusion are those of the tokens' differences."""
    language, shift = skewed_chain(4, 3), torch.tensor([0.3, -0.2, 0.5])
    rows = torch.randn(4, 3, generator=generator(8))
    bounds = []
    for codec in (embeddings.Embeddings(rows), embeddings.Embeddings(rows + shift)):
        model = built("gaussian-ce", language, {"lowest": -5.0, "loss": "bound"})
        model = Model(
            GaussianTokenDiffusion(codec, model.process.schedule, model.process.time_sampler), None, length=3, block=3
        )
        bounds.append(
            model.eval().nelbo(
                language.sample(200, generator(9)), generator(10), denoiser=Oracle(model, language), draws=8
            )
        )
    torch.testing.assert_close(bounds[0].diffusion, bounds[1].diffusion, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(bounds[0].recon, bounds[1].recon, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(bounds[0].prior, bounds[1].prior)


@pytest.mark.parametrize("name", ["plaid", "cdcd", "gaussian-ce"])
def test_rows_that_coincide_have_no_bound(name: str) -> None:
    """Tokens with one row have one name, so that a network which knows nothing would be paid for naming the first."""
    model = ls.build(name, vocab_size=3, length=2, **SMALL)
    assert model.nelbo(torch.zeros(1, 2, dtype=torch.long), generator(2)).kind == "bound"
    with torch.no_grad():
        model.process.codec.weight[2] = model.process.codec.weight[1]
    tokens = torch.randint(3, (50, 2), generator=generator(1))
    assert model.nelbo(tokens, generator(2)).kind == "surrogate"


def test_one_hot_and_logits_are_the_same_process() -> None:
    """2e - 1 is e, moved and twice as far from noise: four times the SNR."""
    language = skewed_chain(3, 4)
    twice = 2 * math.log(2)
    bounds = []
    for codec, shift in (("one-hot", twice), ("logits", 0.0)):
        options = {"codec": codec, "schedule": "linear", "max_logsnr": 2.0 + shift, "min_logsnr": -7.0 + shift}
        model = ls.build("gaussian-ce", vocab_size=3, length=4, denoiser=None, time_sampler="even", **options).eval()
        tokens = language.sample(2000, generator(9))
        bounds.append(model.nelbo(tokens, generator(10), denoiser=Oracle(model, language), draws=16))
    # The norms of z differ by α, so the noise is not shared to the last digit.
    one, other = (mean_and_error(bound.diffusion + bound.recon) for bound in bounds)
    assert abs(one[0] - other[0]) < 3 * math.hypot(one[1], other[1])


def test_states_begin_clean_and_end_as_noise() -> None:
    model = ls.build("plaid", vocab_size=4, length=5, denoiser=None)
    tokens = torch.randint(0, 4, (2000, 5), generator=generator(7))
    u = model.process.codec.encode(tokens).detach()
    assert torch.equal(model.corrupt(tokens, torch.tensor(0.0), generator(8)).detach(), u)
    assert torch.equal(model.process.codec.decode(u), tokens)
    torch.testing.assert_close(u.norm(dim=-1), torch.ones(2000, 5))
    end = model.corrupt(tokens, torch.tensor(1.0), generator(8)).detach()
    assert abs(float(end.std()) - 1) < 0.01 and float((end * u).sum(-1).mean()) == pytest.approx(math.exp(-3), abs=0.03)


@pytest.mark.parametrize("t, s", [(1.0, 0.6), (0.6, 0.2), (0.3, T_DECODE), (0.5, 0.5)])
def test_a_step_that_knows_the_token_carries_marginal_to_marginal(t: float, s: float) -> None:
    """q(z_s | x) is normal: means, variances and independence from the token's embedding tell all."""
    model = ls.build("gaussian-ce", vocab_size=4, length=1, denoiser=None, codec="one-hot")
    process, n = model.process, 100_000
    tokens = torch.full((n, 1), 2)
    u, noise = process.codec.encode(tokens), GeneratorNoise(generator(11), n)
    z = process.corrupt(u, torch.full((n, 1), t), noise)[:, 0]
    certain = 1e4 * u[:, 0]
    stepped = process.step(certain, z, torch.full((n,), t), torch.full((n,), s), noise)
    alpha, sigma = (float(level) for level in process.alpha_sigma(torch.tensor([s])))
    assert (stepped.mean(0) - alpha * u[0, 0]).abs().max() < 4 * sigma / n**0.5
    assert (stepped.T.cov() - sigma**2 * torch.eye(4)).abs().max() < 6 * sigma**2 / n**0.5
    if t == s:
        assert torch.equal(stepped, z)
    ended = process.step(certain, z, torch.full((n,), t), torch.zeros(n), noise)
    assert torch.equal(ended, u[:, 0])


def test_what_a_state_says_is_bayes_rule() -> None:
    """Against the normal density of each row, whose norms differ."""
    rows = torch.randn(5, 3, generator=generator(12))
    process = built("gaussian-ce", independent_tokens(5, 2), {}).process
    process = GaussianTokenDiffusion(embeddings.Embeddings(rows), process.schedule, process.time_sampler)
    z, t = torch.randn(7, 2, 3, generator=generator(13)), torch.full((7, 2), 0.4)
    alpha, sigma = process.alpha_sigma(t)
    normal = torch.distributions.Normal(alpha[..., None] * rows, sigma[..., None])
    torch.testing.assert_close(
        process.log_likelihood(z, t).softmax(-1),
        normal.log_prob(z[..., None, :]).sum(-1).softmax(-1),
        rtol=1e-4,
        atol=1e-5,
    )
    clean = process.log_likelihood(rows[None], torch.zeros(1, 5)).softmax(-1)
    assert torch.equal(clean[0], torch.eye(5))


@pytest.mark.parametrize("spacing", ["angle", "logsnr", "information"])
def test_grids_end_where_the_token_is_read(spacing: str) -> None:
    process = ls.build("plaid", vocab_size=4, length=5, denoiser=None, spacing=spacing).process
    for steps in (1, 2, 7):
        grid = process.grid(steps)
        assert len(grid) == steps + 1 and grid[0] == 1 and grid[-1] == 0 and (grid.diff() < 0).all()
    assert float(grid[-2]) == pytest.approx(T_DECODE)
    logsnr = process.logsnr(grid[:-1]).detach()
    if spacing == "information":  # nothing is measured yet, so that all times tell as much
        logsnr = 10 * grid[:-1].double()
    steps = logsnr.diff() if spacing != "angle" else torch.atan((-logsnr / 2).exp()).diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-3, atol=1e-4)


def test_tokens_are_told_apart_in_half_precision_too() -> None:
    """Networks may compute in bfloat16; which token a state is nearest to is still a question of float32."""
    process = ls.build("plaid", vocab_size=2000, length=4, denoiser=None).process
    tokens = torch.arange(2000).view(-1, 4)
    u, t = process.codec.encode(tokens).detach(), torch.full((500, 4), 0.05)
    plain = process.log_likelihood(u, t).detach()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(process.codec.decode(u), tokens)
        torch.testing.assert_close(process.log_likelihood(u, t).detach(), plain)


def test_what_is_learned_beside_the_network_is_saved(tmp_path: Path) -> None:
    """Embeddings, the schedule and the measurements of the clock."""
    language = sticky_chain(3, 4)
    model = random_network("plaid", language)
    for _ in ls.fit(model, (language.sample(16, generator(i)) for i in range(3)), steps=3):
        pass
    model.eval().save(tmp_path)
    tokens = language.sample(20, generator(1))
    here, there = (one.nelbo(tokens, generator(2)).total for one in (model, ls.load(tmp_path)))
    assert torch.equal(here, there)


@pytest.mark.parametrize("name", ["plaid", "bit-diffusion"])
def test_guidance_serves_networks_that_condition_themselves(name: str) -> None:
    """A label, withheld in training now and then, and classifier-free guidance, with self-conditioning on top."""
    model = random_network(name, independent_tokens(4, 6), labels=2, self_conditioning=0.5)
    condition = Condition.of(labels=torch.tensor([0, 1, 1]))
    with pytest.raises(UserError, match="cond_dropout"):
        generate(model, 3, 5, generator(1), condition=condition, guidance=2.0)
    for module in model.denoiser.modules():
        if isinstance(module, Conditioner):
            module.withheld.fill_(1)  # as training would note
    drawn = generate(model, 3, 5, generator(1), condition=condition, guidance=2.0)
    assert drawn.nfe == 10 and drawn.tokens.shape == (3, 6)


@pytest.mark.parametrize("vocab_size, width", [(2, 1), (3, 2), (27, 5), (32, 5), (33, 6)])
def test_bits(vocab_size: int, width: int) -> None:
    codec = embeddings.bit_table(vocab_size)
    tokens = torch.arange(vocab_size)[None]
    u = codec.encode(tokens)
    assert u.shape[-1] == width and u.abs().eq(1).all() and torch.equal(codec.decode(u), tokens)
    assert len(u[0].unique(dim=0)) == vocab_size


def test_figures_of_embeddings_tell_collapse() -> None:
    def figures(rows: torch.Tensor) -> dict[str, float]:
        return embeddings.Embeddings(rows).metrics(0.99, 0.14)

    good, collapsed = figures(torch.eye(6)), figures(torch.ones(6, 6) + 1e-3 * torch.eye(6))
    assert good["embedding/spread"] == pytest.approx(2**0.5) and good["embedding/rounding"] > 0.99
    assert collapsed["embedding/spread"] < 0.01 and collapsed["embedding/rounding"] < 0.5
    assert figures(3 * torch.eye(6))["embedding/norm"] == pytest.approx(3)
    whole = ls.build("plaid", vocab_size=6, length=2, denoiser=None).process.metrics()
    assert whole.keys() == good.keys() and whole["embedding/rounding"] > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, options",
    [
        ("plaid", {}),
        ("plaid", {"input": "belief", "self_conditioning": 0.25}),
        ("gaussian-ce", {"self_conditioning": 0.9}),
        ("cdcd", {}),
        ("diffusion-lm", {}),
        ("bit-diffusion", {}),
        ("simplex", {}),
    ],
    ids=str,
)
def test_it_learns(name: str, options: dict[str, Any]) -> None:
    language = sticky_chain(3, 4, stay=0.95)
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=3, length=4, **SMALL, **options)
    tokens = language.sample(500, generator(11))
    before = float(model.nelbo(tokens, generator(12), draws=8).total.mean())
    steps = list(
        ls.fit(
            model,
            (language.sample(32, generator(i)) for i in range(60)),
            steps=60,
            optim=ls.OptimizerConfig(lr=5e-3, warmup=20),
        )
    )
    assert len(steps) == 60
    assert all(parameter.grad is not None for parameter in model.parameters())  # or a resumed run would differ
    mean, error = mean_and_error(model.eval().nelbo(tokens, generator(12), draws=8).total)
    assert language.entropy() - 3 * error < mean < before - 0.1


@pytest.mark.parametrize(
    "name, options, says",
    [
        ("plaid", {"embedding": 0}, "width of at least 1"),
        ("plaid", {"norm": -1.0}, "norm"),
        ("plaid", {"min_logsnr": None}, "min_logsnr"),
        ("gaussian-ce", {"max_logsnr": None}, "infinite signal-to-noise"),
        ("gaussian-ce", {"codec": "bit"}, "Did you mean 'bits'"),
        ("gaussian-ce", {"norm": None}, "grow without bound"),
        ("gaussian-ce", {"schedule": "learned", "min_logsnr": -3.0}, "loss=bound"),
        ("gaussian-ce", {"spacing": "even"}, "angle"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        ls.build(name, vocab_size=3, length=4, denoiser=None, **options)


def test_bits_need_two_tokens() -> None:
    with pytest.raises(UserError, match="at least 2"):
        embeddings.bit_table(1)
