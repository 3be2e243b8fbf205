"""One position at a time: the bound is that of the language in closed form, and samples are drawn from it."""

import math
from pathlib import Path

import pytest
import torch
from statistical_checks import MIN_P_VALUE, bound_excess, chi_square_p_value, mean_and_error
from toy_languages import generator, random_joint, skewed_chain, sticky_chain
from toy_models import SMALL, joint_sphere_model

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.processes.capabilities import SeveralPaths
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.processes.spherical.times import AnyOrder
from logosphere.rng import GeneratorNoise
from logosphere.sampling.registry import HIDDEN, SAMPLERS
from logosphere.sampling.steppers import SphericalStepper

ORDERS = ["random", "left-to-right"]
JOINT = {"path": "joint"}


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of bridges are made once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{"start": "mask"}, {"start": "uniform"}, {"total_noise": 0.3}], ids=str)
def test_the_bound_of_an_oracle_is_the_entropy_in_turn(options: dict[str, object], order: str) -> None:
    language = skewed_chain(5, 6)
    for name in ("rdlm", "rdlm-heat"):
        model = joint_sphere_model(name, language, path="any-order", order=order, **options)
        assert model.process.kind == "bound"
        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=24))
        assert abs(mean) < 3 * error + 1e-5 and error < 0.01 * language.entropy()


def test_in_every_order_and_with_known_positions_nothing_is_left_out() -> None:
    """As many draws as positions leave one number of turns to each: for a known order no chance is left at all."""
    language, known = random_joint(2, 4), torch.tensor([False, True, False, False])
    model = joint_sphere_model("rdlm-heat", language, path="any-order", order="left-to-right")
    assert float(bound_excess(model, language, n=200, draws=4).abs().max()) < 1e-4
    assert float(bound_excess(model, language, n=200, draws=3, known=known).abs().max()) < 1e-4


def test_no_network_comes_below_the_entropy() -> None:
    language = sticky_chain(3, 8)
    model = joint_sphere_model("rdlm", language, path="any-order")
    uniform = Oracle(model, ls.languages.independent(torch.full((3,), 1 / 3), 8))
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=uniform))
    assert mean > 10 * error


def test_a_lone_traveller_pays_what_the_closed_form_says() -> None:
    """The integral over the bridge of one position, with exact evidence, is its -log p: what the path in turn rests on.

    One position, so that moving together and in turn are the same: both bounds of a wrong model p are -Σ q log p.
    """
    truth = ls.languages.independent(torch.tensor([0.5, 0.3, 0.15, 0.05]).double(), 1)
    believed = ls.languages.independent(torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), 1)
    figures = {}
    for path in ("joint", "any-order"):
        model = joint_sphere_model("rdlm-heat", truth, path=path)
        found = bound_excess(model, truth, n=4000, draws=64, denoiser=Oracle(model, believed))
        figures[path] = mean_and_error(found)
    (moved, error), (closed, _) = figures["joint"], figures["any-order"]
    assert closed > 0.5 and error < 0.02
    assert abs(moved - closed) < 3 * error + 0.003


@pytest.mark.parametrize("order", ORDERS)
def test_samples_of_an_oracle_are_the_language(order: str) -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order", order=order)
    drawn = ls.sample(model, n=4000, steps=4, rng=generator(5), denoiser=Oracle(model, language))
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 4000) > MIN_P_VALUE


@pytest.mark.parametrize("name", ["random", "entropy"])
def test_whose_turn_it_is_may_be_decided_on_the_way(name: str) -> None:
    """One position at a time is exact in any order that does not look at what was drawn, as with masks."""
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order")
    way = ls.sampler(name, model)
    drawn = ls.sample(model, n=4000, steps=4, rng=generator(5), denoiser=Oracle(model, language), sampler=way)
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 4000) > MIN_P_VALUE


@pytest.mark.parametrize("name", [one.name for one in SAMPLERS if one.fits == HIDDEN])
def test_samplers_of_masks_write_on_the_sphere(name: str) -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=5, length=8, path="any-order", **SMALL)
    known = torch.rand(6, 8, generator=generator(5)) < 0.4
    tokens = torch.randint(5, (6, 8), generator=generator(6))
    drawn = ls.generate(
        model, n=6, steps=4, rng=generator(7), known=known, tokens=tokens, sampler=ls.sampler(name, model)
    )
    assert torch.equal(drawn.tokens[known], tokens[known])
    assert drawn.tokens.max() < 5 and drawn.nfe <= 16


@pytest.mark.parametrize(
    ("system", "options"), [("rdlm", {}), ("rdlm-heat", {"base": 3, "path": "any-order"}), ("rdlm-heat", JOINT)]
)
def test_positions_that_take_no_turns_are_in_no_order(system: str, options: dict[str, object]) -> None:
    model = ls.build(system, vocab_size=5, length=4, **options, **SMALL)
    with pytest.raises(UserError, match="do not take turns by whole tokens"):
        ls.sampler("entropy", model)


def test_infilling_reproduces_what_is_likely_given_the_known() -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order")
    known, tokens = torch.tensor([True, False, False, True]), torch.tensor([1, 0, 0, 0])
    drawn = ls.sample(
        model, n=3000, steps=2, rng=generator(6), denoiser=Oracle(model, language), known=known, tokens=tokens
    )
    assert (drawn[:, 0] == 1).all() and (drawn[:, 3] == 0).all()
    given = language.p.view(2, 2, 2, 2)[1, :, :, 0].flatten()
    seen = torch.bincount(drawn[:, 1] * 2 + drawn[:, 2], minlength=4)
    assert chi_square_p_value(seen, given / given.sum() * 3000) > MIN_P_VALUE


def test_digits_of_a_token_take_their_turn_together() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=5, length=4, path="any-order", base=3, **SMALL)
    free = torch.ones(50, 8, dtype=torch.bool)
    waiting, _ = AnyOrder(states_per_token=2).waiting(torch.rand(50, 1), free, GeneratorNoise(generator(1), 50))
    assert (waiting[:, ::2] == waiting[:, 1::2]).all()
    drawn = ls.sample(model, n=200, steps=3, rng=generator(2))
    assert drawn.shape == (200, 4) and set(drawn.flatten().tolist()) == set(range(5))  # no digits that spell nothing
    found = model.eval().nelbo(drawn, generator(3), draws=4).total / 4
    assert abs(float(found.mean()) - math.log(5)) < 0.5  # that of a new network, which knows nothing


def test_steps_share_out_the_turns_evenly() -> None:
    free = torch.ones(3, 10, dtype=torch.bool)
    free[1, :4] = False
    rows = ls.sampling.plan.uniform_grid(4)[:, None].expand(-1, 10)
    clocks = AnyOrder().position_times(rows, free, GeneratorNoise(generator(1), 3))
    assert [(clocks[i, 0] == 0).sum().item() for i in range(5)] == [0, 2, 5, 7, 10]
    assert [((clocks[i, 1] == 0) & free[1]).sum().item() for i in range(5)] == [0, 1, 3, 4, 6]


def test_positions_may_still_move_together() -> None:
    """A model that is asked in turn by default walks the bridges of all positions when a mover is named."""
    language = sticky_chain(3, 4)
    in_turn = joint_sphere_model("rdlm-heat", language, path="any-order")
    together = joint_sphere_model("rdlm-heat", language, path="joint")
    settings = {"n": 16, "steps": 8, "stepper": SphericalStepper(SPHERICAL_STEPS["bridge"])}
    texts = [ls.sample(m, rng=generator(3), denoiser=Oracle(m, language), **settings) for m in (in_turn, together)]
    assert torch.equal(*texts)
    assert ls.generate(in_turn, n=4, steps=64, denoiser=Oracle(in_turn, language)).nfe == 4  # never more than positions


def test_a_network_taught_both_ways_learns_both() -> None:
    torch.manual_seed(0)
    language = sticky_chain(3, 6)
    model = ls.build("rdlm-heat", vocab_size=3, length=6, path="any-order", **SMALL)
    batches = (language.sample(64, generator(step)) for step in range(150))
    for _ in ls.fit(model, batches, steps=150, optim=ls.OptimizerConfig(lr=3e-3, warmup=10)):
        pass
    fresh = language.sample(400, generator(10**6))
    in_turn = model.eval().nelbo(fresh, generator(1), draws=6).total.mean()
    model.process = model.process.with_path("joint")
    together = model.nelbo(fresh, generator(1), draws=6).total.mean()
    both = model.train().nelbo(fresh, generator(1), draws=6).total.mean()  # as in trainer, some of each
    assert language.entropy() < both < 1.2 * max(in_turn, together)
    unigram = 6 * torch.tensor(3.0).log()
    assert language.entropy() < in_turn < 0.8 * unigram and language.entropy() < together < 0.8 * unigram


def test_rdlm_heat_is_joint_and_trained_on_both_paths() -> None:
    heat = ls.build("rdlm-heat", vocab_size=3, length=4, denoiser=None).process
    assert heat.turns is None and heat.any_order_fraction == 0.5
    for options in ({"stagger": 0.5}, {"timesteps": 8}, {"start": "step:0.35"}, {"loss": "drift"}, {"switch": 0.5}):
        assert ls.build("rdlm-heat", vocab_size=3, length=4, denoiser=None, **options).process.any_order_fraction == 0
    assert ls.build("rdlm", vocab_size=3, length=4, denoiser=None).process.any_order_fraction == 0
    assert ls.build("rdlm", vocab_size=3, length=4, denoiser=None, path="any-order").process.any_order_fraction == 0.5


def test_impossible_turns_are_refused() -> None:
    cases = [
        ({"path": "sideways"}, "not a choice for path"),
        ({"path": "any-order", "timesteps": 8}, "path=joint"),
        ({"path": "any-order", "start": "step:0.35"}, "path=joint"),
        ({"any_order_fraction": 1.0}, "below 1"),
        ({"any_order_fraction": 0.5, "loss": "drift"}, "cross-entropy"),
    ]
    for options, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            ls.build("rdlm-heat", vocab_size=3, length=4, denoiser=None, **options)


def test_a_model_on_disk_may_take_the_other_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=3, length=4, path="any-order", **SMALL)
    model.save(tmp_path / "model")
    assert ls.load(tmp_path / "model").process.path_name == "any-order"
    together = ls.load(tmp_path / "model", {"path": "joint"})
    assert together.process.path_name == "joint" and torch.equal(*(next(m.parameters()) for m in (model, together)))
    with pytest.raises(UserError, match="no option 'pth'"):
        ls.load(tmp_path / "model", {"pth": "joint"})


@pytest.mark.parametrize("options", [{}, {"base": 2}, {"start": "mask+uniform"}, {"transitions": "normal"}], ids=str)
def test_one_model_has_the_bounds_of_both_paths(options: dict[str, object]) -> None:
    """Those of models that are built with one path or the other and have the same weights."""
    tokens, shared = torch.randint(5, (16, 4), generator=generator(1)), {"any_order_fraction": 0.5}
    models = {}
    for path in ("joint", "any-order"):
        torch.manual_seed(0)
        models[path] = ls.build("rdlm-heat", vocab_size=5, length=4, path=path, **shared, **options, **SMALL).eval()
    names = {"joint": "joint", "any-order": "any-order"}
    for model in models.values():
        assert isinstance(model.process, SeveralPaths) and model.process.path_names == tuple(names)
        for name, option in names.items():
            one = Model(model.process.with_path(name), model.denoiser, length=4, block=4).eval()
            assert one.process.path_name == name and one.process.time_sampler is model.process.time_sampler
            ours, theirs = (m.nelbo(tokens, generator(2), draws=4) for m in (one, models[option]))
            assert ours.kind == theirs.kind and torch.equal(ours.total, theirs.total)
            assert one.process.time_conditional == models[option].process.time_conditional


def test_paths_that_do_not_exist_are_refused() -> None:
    chain = ls.build("rdlm", vocab_size=3, length=4, denoiser=None, timesteps=8).process
    assert chain.path_names == ("joint",)
    for process, name in ((chain, "any-order"), (chain.with_path("joint"), "sideways")):
        with pytest.raises(UserError, match=f"no path '{name}'"):
            process.with_path(name)
