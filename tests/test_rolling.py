"""Rolling offsets (option `stagger`): the bound holds and is tight, and the sampler uses the same times."""

from pathlib import Path

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, chi_square_p_value, mean_and_error
from toy_languages import generator, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, joint_sphere_model

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.processes.spherical.times import RollingOffsets
from logosphere.processes.time_sampler import inverse_cdf, sample_step
from logosphere.rng import CounterNoise, GeneratorNoise
from logosphere.types import Batch

OFFSETS = [(0.5, "random"), (0.8, "random"), (0.5, "left-to-right")]


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


@pytest.mark.thorough
@pytest.mark.parametrize(("spread", "order"), OFFSETS)
@pytest.mark.parametrize("start", ["mask", "uniform"])
def test_oracle_bound_is_the_entropy_with_offsets(spread: float, order: str, start: str) -> None:
    """The sequences are longer than elsewhere: of four positions hardly one would be between noise and data."""
    language = skewed_chain(5, 12)
    model = joint_sphere_model("rdlm-heat", language, stagger=spread, order=order, start=start)
    assert model.process.kind == "bound"
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=32))
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error + 0.003 * language.entropy()


def test_the_bound_covers_the_free_positions() -> None:
    language, known = sticky_chain(3, 6), torch.tensor([False, True, False, False, True, False])
    model = joint_sphere_model("rdlm-heat", language, stagger=0.6)
    mean, error = mean_and_error(bound_excess(model, language, n=3000, draws=64, known=known))
    assert abs(mean) < 3 * error + 0.003 * language.entropy() and error < 0.03 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_no_denoiser_is_below_the_entropy_with_offsets(name: str) -> None:
    language = sticky_chain(3, 8)
    for spread, order in OFFSETS:
        model = joint_sphere_model(name, language, stagger=spread, order=order)
        uniform = Oracle(model, ls.languages.independent(torch.full((3,), 1 / 3), 8))
        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=16, denoiser=uniform))
        assert mean > 3 * error  # a wrong denoiser exceeds the entropy
        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=16))
        assert mean > -3 * error


@pytest.mark.thorough
@pytest.mark.parametrize(("spread", "order"), [*OFFSETS, (0.98, "random")])
def test_oracle_samples_have_the_distribution_of_the_language(spread: float, order: str) -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, stagger=spread, order=order)
    drawn = ls.sample(model, n=3000, steps=160, rng=generator(5), denoiser=Oracle(model, language))
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 3000) > MIN_P_VALUE


@pytest.mark.thorough
@pytest.mark.parametrize("order", ["random", "left-to-right"])
def test_infilling_has_the_conditional_distribution(order: str) -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, stagger=0.5, order=order)
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


def test_offsets_are_ranks_of_free_positions() -> None:
    """Offsets are normalised ranks among the free positions; all orders are equally likely."""
    free = torch.tensor([[True, True, False, True, True]])
    stagger = RollingOffsets(0.5, "left-to-right")
    offsets = stagger.offsets(free, GeneratorNoise(generator(1), 1))
    torch.testing.assert_close(offsets[free], torch.tensor([0, 1 / 3, 2 / 3, 1]).double())
    assert float(stagger.covered(torch.tensor(0.0), offsets).max()) == 0
    assert float(stagger.covered(torch.tensor(1.0), offsets)[free].min()) == 1
    firsts = RollingOffsets(0.5).offsets(torch.ones(6000, 3, dtype=torch.bool), GeneratorNoise(generator(2), 6000))
    ranks = (firsts * 2).long()
    assert (
        chi_square_p_value(torch.bincount(ranks[:, 0] * 3 + ranks[:, 1], minlength=9), 1 - torch.eye(3).flatten())
        > MIN_P_VALUE
    )
    digit_offsets = RollingOffsets(0.5, states_per_token=2).offsets(
        torch.ones(4, 6, dtype=torch.bool), GeneratorNoise(generator(3), 4)
    )
    assert torch.equal(digit_offsets[:, ::2], digit_offsets[:, 1::2])


def test_position_times_fall_from_one_to_zero() -> None:
    process = ls.build("rdlm-heat", vocab_size=3, length=8, denoiser=None, stagger=0.7).process
    free = torch.ones(5, 8, dtype=torch.bool)
    free[:, 2] = False
    rows = torch.linspace(1, 0, 17)[:, None].expand(-1, 8)
    t = process.position_times(rows, free, GeneratorNoise(generator(4), 5))
    assert (t[0][free] == 1).all() and (t[-1][free] == 0).all() and (t.diff(dim=0) <= 0).all()
    moving = ((t > 0) & (t < 1)).sum(-1)[:, 0]
    assert 0 < int(moving.max()) < 7  # some positions are noise, some in between, some done
    joint = ls.build("rdlm-heat", vocab_size=3, length=8, denoiser=None, path="joint").process
    assert torch.equal(joint.position_times(rows, free, GeneratorNoise(generator(4), 5)), rows[:, None])


def test_inverse_cdf_agrees_with_sample_step() -> None:
    p = torch.tensor([0.1, 0.4, 0.0, 0.5]).double()
    w = torch.linspace(0.001, 0.999, 97).double()
    step, _ = sample_step(p, w)
    assert torch.equal(inverse_cdf(p, w).floor().long(), step)


def test_states_do_not_depend_on_the_batching() -> None:
    model = ls.build("rdlm-heat", vocab_size=3, length=8, denoiser=None, stagger=0.7)
    batch = Batch.of(torch.randint(0, 3, (6, 8), generator=generator(7)))
    w, u = torch.linspace(0.2, 0.8, 6).double()[:, None], model.process.codec.encode(batch.tokens)

    def sample_zt(part: slice) -> torch.Tensor:
        noise = CounterNoise(0, 1, batch.ids[part], batch.global_index[part], 6)
        return model.process.sample_zt(u[part], w[part], batch.free[part], noise).z

    torch.testing.assert_close(sample_zt(slice(2, 4)), sample_zt(slice(0, 6))[2:4])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"order": "left-to-right"},
        {"time_sampler": "even", "posterior_head": False},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"loss": "drift"}, marks=pytest.mark.slow),
        pytest.param({"loss": "bound-weighted"}, marks=pytest.mark.slow),
        pytest.param({"start": "mask+uniform"}, marks=pytest.mark.slow),
        pytest.param({"base": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_option_learns_with_offsets(options: dict[str, object]) -> None:
    language = sticky_chain(3, 6, stay=0.95)
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=3, length=6, stagger=0.6, **SMALL, **options)
    tokens = language.sample(400, generator(11))
    before = float(model.eval().nelbo(tokens, generator(12), draws=16).total.mean())
    for _ in ls.fit(
        model,
        (language.sample(32, generator(i)) for i in range(150)),
        steps=150,
        optim=ls.OptimizerConfig(lr=5e-3, warmup=20),
    ):
        pass
    mean, error = mean_and_error(model.eval().nelbo(tokens, generator(12), draws=16).total)
    assert language.entropy() - 3 * error < mean < before - 0.1
    assert ls.sample(model, n=3, steps=8).shape == (3, 6)


def test_invalid_options_are_refused() -> None:
    for options, hint in (
        ({"stagger": 1.0}, "below 1"),
        ({"stagger": -0.1}, "below 1"),
        ({"stagger": 0.5, "order": "leftwards"}, "left-to-right"),
        ({"stagger": 0.5, "timesteps": 8}, "stagger=0"),
        ({"stagger": 0.5, "time_sampler": "geometric", "window": [0.3, 0.6]}, "stagger=0"),
    ):
        with pytest.raises(UserError, match=hint):
            ls.build("rdlm", vocab_size=4, length=4, denoiser=None, **options)


def test_offsets_work_with_projected_states() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm", vocab_size=40, length=6, projected=True, stagger=0.6, **SMALL)
    tokens = torch.randint(0, 40, (8, 6), generator=generator(1))
    for progress in ls.fit(model, [tokens, tokens], steps=2):
        assert 0 < progress.loss < 20
    assert model.eval().nelbo(tokens, generator(2)).kind == "bound"
