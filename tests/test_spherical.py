"""Diffusion on the sphere: the bound holds and is tight for Brownian bridges; distributions of states and samples."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from statistical_checks import MIN_P_VALUE, bound_excess, chi_square_p_value, mean_and_error
from toy_languages import generator, independent_tokens, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, joint_sphere_model

import logosphere as ls
from logosphere.data.languages import Language, Oracle
from logosphere.errors import UserError
from logosphere.rng import CounterNoise
from logosphere.systems.spherical_parts import start_point


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"start": "uniform"}, {"total_noise": 0.3}, {"total_noise": 0.01}], ids=str)
@pytest.mark.parametrize(
    "language", [sticky_chain(3, 4), random_joint(), independent_tokens(5, 2)], ids=["sticky", "table", "alone"]
)
def test_brownian_oracle_bound_is_the_entropy(language: Language, options: dict[str, object]) -> None:
    """Within 3 s.e. and 0.3% of H, the discretisation error of the table."""
    model = joint_sphere_model("rdlm-heat", language, **options)
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=48))
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error + 0.003 * language.entropy()


@pytest.mark.slow
@pytest.mark.parametrize("total_noise", [0.01, 0.04, 0.15, 0.3])
@pytest.mark.parametrize("start", ["mask", "uniform", 0.5])
def test_brownian_bound_is_tight_for_27_letters(start: str | float, total_noise: float) -> None:
    """Within 3 s.e. and 0.3% of H, the discretisation error of the table, for every noise level."""
    language = skewed_chain(27, 4)
    model = joint_sphere_model("rdlm-heat", language, start=start, total_noise=total_noise)
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=100))
    assert abs(mean) < 3 * error + 0.003 * language.entropy() and error < 0.005 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("total_noise", [0.05, 0.3])
def test_log_bridge_bound_holds(total_noise: float) -> None:
    """≥ H for every noise level, and close to it for little noise."""
    language = sticky_chain(3, 4)
    mean, error = mean_and_error(
        bound_excess(joint_sphere_model("rdlm", language, total_noise=total_noise), language, n=2000, draws=48)
    )
    assert -3 * error < mean < 3 * error + 0.02 * language.entropy()


def test_a_wrong_denoiser_is_above_the_entropy() -> None:
    language = sticky_chain(3, 4)
    for name in ("rdlm", "rdlm-heat"):
        model = joint_sphere_model(name, language)
        wrong = Oracle(model, independent_tokens(3, 4))
        tokens = language.sample(1000, generator(3))
        bound = model.nelbo(tokens, generator(4), denoiser=wrong, draws=16)
        mean, error = mean_and_error(bound.total.double() + language.log_prob(tokens))
        assert mean > 3 * error  # a wrong denoiser exceeds the entropy


def test_a_learned_time_sampler_gives_the_same_bound_with_less_variance() -> None:
    language = sticky_chain(3, 4)
    fresh = ls.build("rdlm-heat", vocab_size=3, length=4, denoiser=None, path="joint", any_order_fraction=0.0).eval()
    even, even_error = mean_and_error(bound_excess(fresh, language, n=2000, draws=48))
    learned, learned_error = mean_and_error(
        bound_excess(joint_sphere_model("rdlm-heat", language), language, n=2000, draws=48)
    )
    assert abs(even - learned) < 3 * math.hypot(even_error, learned_error)
    assert learned_error < even_error


def test_time_samplers_decide_the_training_times() -> None:
    """Training times are uniform, geometric, or concentrated in the middle, where the context is informative."""
    language, densities = sticky_chain(3, 4), {}
    for name in ("even", "geometric", "information"):
        model = joint_sphere_model("rdlm-heat", language, time_sampler=name)
        densities[name] = model.process.time_sampler.train().probabilities()
        assert float(densities[name].sum()) == pytest.approx(1)
    assert float(densities["even"].std()) == 0
    assert densities["geometric"][0] > densities["geometric"][-2]
    assert (
        densities["information"][120] > densities["information"][0]
        and densities["information"][120] > densities["information"][-20]
    )


def test_an_untrained_time_sampler_is_a_distribution() -> None:
    """A new network predicts the same for every state, so no time is informative; the density must stay valid."""
    model, language = ls.build("rdlm-heat", vocab_size=3, length=4, **SMALL), sticky_chain(3, 4)
    for _ in ls.fit(model, [language.sample(16, generator(1))], steps=1):
        p = model.process.time_sampler.train().probabilities()
        assert (p > 0).all() and float(p.sum()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_oracle_samples_have_the_distribution_of_the_language(name: str) -> None:
    """Chi-square over all sequences; 128 steps."""
    language = random_joint()
    model = joint_sphere_model(name, language)
    drawn = ls.sample(model, n=3000, steps=128, rng=generator(5), denoiser=Oracle(model, language))
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 3000) > MIN_P_VALUE


def test_infilling_keeps_known_tokens() -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language)
    known, tokens = torch.tensor([True, False, False, True]), torch.tensor([1, 0, 0, 0])
    drawn = ls.sample(
        model, n=2000, steps=128, rng=generator(6), denoiser=Oracle(model, language), known=known, tokens=tokens
    )
    assert (drawn[:, 0] == 1).all() and (drawn[:, 3] == 0).all()
    given = language.p.view(2, 2, 2, 2)[1, :, :, 0].flatten()
    assert (
        chi_square_p_value(torch.bincount(drawn[:, 1] * 2 + drawn[:, 2], minlength=4), given / given.sum() * 2000)
        > MIN_P_VALUE
    )


@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_states_start_at_the_start_point_and_end_at_the_vertex(name: str) -> None:
    model = ls.build(name, vocab_size=4, length=5, denoiser=None, start=0.3)
    tokens = torch.randint(0, 4, (3, 5), generator=generator(7))
    assert torch.equal(model.corrupt(tokens, torch.tensor(0.0), generator(8)), F.one_hot(tokens, 5).float())
    start = model.corrupt(tokens, torch.tensor(1.0), generator(8))
    torch.testing.assert_close(start, start_point(0.3, 4).expand_as(start))
    middle = model.corrupt(tokens, torch.tensor(0.4), generator(8))
    torch.testing.assert_close(middle.norm(dim=-1), torch.ones(3, 5))


def test_states_approach_their_vertex_monotonically() -> None:
    model = ls.build("rdlm", vocab_size=9, length=1, denoiser=None)
    tokens = torch.zeros(4000, 1, dtype=torch.long)
    mean = [float(model.corrupt(tokens, torch.tensor(t), generator(9))[..., 0].mean()) for t in (0.9, 0.6, 0.3, 0.05)]
    assert mean == sorted(mean) and mean[0] > 0.01 and mean[-1] > 0.3


def test_posterior_head_of_a_zero_network_is_exact_for_one_token() -> None:
    """With one position and uniform tokens a zero network with the posterior head is exact: its bound is log V."""
    model = ls.build(
        "rdlm-heat", vocab_size=6, length=1, posterior_head=True, path="joint", any_order_fraction=0.0, **SMALL
    )
    tokens = torch.arange(6).repeat(400)[:, None]
    bound = model.nelbo(tokens, generator(10), draws=64).total
    mean, error = mean_and_error(bound)
    assert abs(mean - math.log(6)) < 3 * error + 0.003 * math.log(6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"posterior_head": True},
        {"posterior_head": False, "input": "state"},
        {"loss": "drift"},
        {"start": "uniform"},
    ],
    ids=str,
)
def test_training_lowers_the_bound(options: dict[str, object]) -> None:
    language = sticky_chain(3, 4, stay=0.95)
    model = ls.build("rdlm", vocab_size=3, length=4, **SMALL, **options)
    tokens = language.sample(500, generator(11))
    before = float(model.nelbo(tokens, generator(12), draws=8).total.mean())
    for _ in ls.fit(
        model,
        (language.sample(32, generator(i)) for i in range(200)),
        steps=200,
        optim=ls.OptimizerConfig(lr=5e-3, warmup=20),
    ):
        pass
    mean, error = mean_and_error(model.eval().nelbo(tokens, generator(12), draws=8).total)
    assert language.entropy() - 3 * error < mean < before - 0.1


def test_the_learned_time_sampler_does_not_depend_on_accumulation() -> None:
    language = sticky_chain(3, 4)
    densities = []
    for accumulate in (1, 4):
        torch.manual_seed(0)
        model = ls.build("rdlm", vocab_size=3, length=4, **SMALL)
        for _ in ls.fit(model, (language.sample(16, generator(i)) for i in range(5)), steps=5, accumulate=accumulate):
            pass
        densities.append(model.process.time_sampler.probabilities())
    torch.testing.assert_close(densities[0], densities[1])
    assert densities[0].std() > 0 and float(densities[0].sum()) == pytest.approx(1)


def test_states_do_not_depend_on_the_batching() -> None:
    process = ls.build("rdlm", vocab_size=3, length=4, denoiser=None).process
    u, t = F.one_hot(torch.randint(0, 3, (6, 4), generator=generator(13)), 4).float(), torch.full((6, 4), 0.5)
    ids = torch.arange(6)
    whole = process.corrupt(u, t, CounterNoise(0, 1, ids, ids, 6))
    part = process.corrupt(u[2:4], t[2:4], CounterNoise(0, 1, ids[2:4], ids[2:4], 6))
    torch.testing.assert_close(whole[2:4], part)


def test_invalid_settings_are_refused() -> None:
    for options, hint in (
        ({"start": "masc"}, "mask"),
        ({"start": 1.5}, "from 0 .* to 1"),
        ({"start": -0.1}, "from 0 .* to 1"),
        ({"total_noise": 0.0}, "total_noise"),
        ({"input": "belif"}, "belief"),
        ({"loss": "mse"}, "drift"),
        ({"time_sampler": "fast"}, "information"),
    ):
        with pytest.raises(UserError, match=hint):
            ls.build("rdlm", vocab_size=3, length=4, denoiser=None, **options)
    with pytest.raises(UserError, match="at least 2"):
        ls.build("rdlm", vocab_size=1, length=4)
