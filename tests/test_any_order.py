"""Any-order path, one position at a time: the bound in closed form, samples, and training on both paths."""

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
from logosphere.networks.backbone import Backbone
from logosphere.networks.base import PosteriorHead
from logosphere.processes.base import uniform_grid
from logosphere.processes.capabilities import SeveralPaths
from logosphere.processes.spherical.steps import SPHERICAL_STEPS
from logosphere.processes.spherical.times import AnyOrder
from logosphere.rng import GeneratorNoise
from logosphere.sampling.registry import SAMPLERS, UNMASKING
from logosphere.sampling.steppers import SphericalStepper

ORDERS = ["random", "left-to-right"]
JOINT = {"path": "joint"}


@pytest.fixture(autouse=True)
def shared_tables(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge tables are computed once for all tests."""
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(Path(tmp_path_factory.getbasetemp()) / "tables"))


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{"start": "mask"}, {"start": "uniform"}, {"total_noise": 0.3}], ids=str)
def test_oracle_bound_is_the_entropy(options: dict[str, object], order: str) -> None:
    language = skewed_chain(5, 6)
    for name in ("rdlm", "rdlm-heat"):
        model = joint_sphere_model(name, language, path="any-order", order=order, **options)
        assert model.process.kind == "bound"
        mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=24))
        assert abs(mean) < 3 * error + 1e-5 and error < 0.01 * language.entropy()


def test_stratified_bound_is_exact_with_known_positions() -> None:
    """With as many draws as positions each draw has another position; for a fixed order the bound has no variance."""
    language, known = random_joint(2, 4), torch.tensor([False, True, False, False])
    model = joint_sphere_model("rdlm-heat", language, path="any-order", order="left-to-right")
    assert float(bound_excess(model, language, n=200, draws=4).abs().max()) < 1e-4
    assert float(bound_excess(model, language, n=200, draws=3, known=known).abs().max()) < 1e-4


def test_a_wrong_denoiser_is_above_the_entropy() -> None:
    language = sticky_chain(3, 8)
    model = joint_sphere_model("rdlm", language, path="any-order")
    uniform = Oracle(model, ls.languages.independent(torch.full((3,), 1 / 3), 8))
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=uniform))
    assert mean > 10 * error


def test_joint_bound_of_one_position_is_the_closed_form() -> None:
    """The integral over the bridge of one position, with exact evidence, is -log p, as the any-order bound assumes.

    With one position the joint and any-order paths are the same: both bounds of a wrong model p are -Σ q log p.
    """
    truth = ls.languages.independent(torch.tensor([0.5, 0.3, 0.15, 0.05]).double(), 1)
    believed = ls.languages.independent(torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), 1)
    excesses = {}
    for path in ("joint", "any-order"):
        model = joint_sphere_model("rdlm-heat", truth, path=path)
        found = bound_excess(model, truth, n=4000, draws=64, denoiser=Oracle(model, believed))
        excesses[path] = mean_and_error(found)
    (integrated, error), (closed, _) = excesses["joint"], excesses["any-order"]
    assert closed > 0.5 and error < 0.02
    assert abs(integrated - closed) < 3 * error + 0.003


@pytest.mark.parametrize("order", ORDERS)
def test_oracle_samples_have_the_distribution_of_the_language(order: str) -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order", order=order)
    drawn = ls.sample(model, n=4000, steps=4, rng=generator(5), denoiser=Oracle(model, language))
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 4000) > MIN_P_VALUE


@pytest.mark.parametrize("name", ["random", "entropy"])
def test_adaptive_orders_sample_the_language(name: str) -> None:
    """One position at a time is exact in any order that does not depend on the drawn token, as with masks."""
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order")
    chosen = ls.sampler(name, model)
    drawn = ls.sample(model, n=4000, steps=4, rng=generator(5), denoiser=Oracle(model, language), sampler=chosen)
    assert chi_square_p_value(torch.bincount(language.index(drawn), minlength=16), language.p * 4000) > MIN_P_VALUE


@pytest.mark.parametrize("name", [name for name, info in SAMPLERS.items() if info.supports == UNMASKING])
def test_unmasking_samplers_work_on_the_sphere(name: str) -> None:
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
def test_unmasking_samplers_refuse_other_paths(system: str, options: dict[str, object]) -> None:
    model = ls.build(system, vocab_size=5, length=4, **options, **SMALL)
    with pytest.raises(UserError, match="path=any-order and without base"):
        ls.sampler("entropy", model)


def test_infilling_has_the_conditional_distribution() -> None:
    language = random_joint()
    model = joint_sphere_model("rdlm-heat", language, path="any-order")
    known, tokens = torch.tensor([True, False, False, True]), torch.tensor([1, 0, 0, 0])
    drawn = ls.sample(
        model, n=3000, steps=2, rng=generator(6), denoiser=Oracle(model, language), known=known, tokens=tokens
    )
    assert (drawn[:, 0] == 1).all() and (drawn[:, 3] == 0).all()
    given = language.p.view(2, 2, 2, 2)[1, :, :, 0].flatten()
    counts = torch.bincount(drawn[:, 1] * 2 + drawn[:, 2], minlength=4)
    assert chi_square_p_value(counts, given / given.sum() * 3000) > MIN_P_VALUE


def test_digits_of_a_token_have_the_same_time() -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=5, length=4, path="any-order", base=3, **SMALL)
    free = torch.ones(50, 8, dtype=torch.bool)
    waiting, _ = AnyOrder(states_per_token=2).waiting(torch.rand(50, 1), free, GeneratorNoise(generator(1), 50))
    assert (waiting[:, ::2] == waiting[:, 1::2]).all()
    drawn = ls.sample(model, n=200, steps=3, rng=generator(2))
    assert drawn.shape == (200, 4) and set(drawn.flatten().tolist()) == set(range(5))  # no invalid codes
    found = model.eval().nelbo(drawn, generator(3), draws=4).total / 4
    assert abs(float(found.mean()) - math.log(5)) < 0.5  # an untrained network is close to uniform


def test_steps_divide_the_positions_evenly() -> None:
    free = torch.ones(3, 10, dtype=torch.bool)
    free[1, :4] = False
    rows = uniform_grid(4)[:, None].expand(-1, 10)
    times = AnyOrder().position_times(rows, free, GeneratorNoise(generator(1), 3))
    assert [(times[i, 0] == 0).sum().item() for i in range(5)] == [0, 2, 5, 7, 10]
    assert [((times[i, 1] == 0) & free[1]).sum().item() for i in range(5)] == [0, 1, 3, 4, 6]


def test_spherical_steppers_use_the_joint_path() -> None:
    """A model with path=any-order samples all positions jointly with a spherical stepper."""
    language = sticky_chain(3, 4)
    any_order = joint_sphere_model("rdlm-heat", language, path="any-order")
    joint = joint_sphere_model("rdlm-heat", language, path="joint")
    settings = {"n": 16, "steps": 8, "stepper": SphericalStepper(SPHERICAL_STEPS["bridge"])}
    texts = [ls.sample(m, rng=generator(3), denoiser=Oracle(m, language), **settings) for m in (any_order, joint)]
    assert torch.equal(*texts)
    assert (
        ls.generate(any_order, n=4, steps=64, denoiser=Oracle(any_order, language)).nfe == 4
    )  # at most the number of positions


def test_a_network_trained_on_both_paths_learns_both() -> None:
    torch.manual_seed(0)
    language = sticky_chain(3, 6)
    model = ls.build("rdlm-heat", vocab_size=3, length=6, path="any-order", any_order_fraction=0.5, **SMALL)
    batches = (language.sample(64, generator(step)) for step in range(150))
    for _ in ls.fit(model, batches, steps=150, optim=ls.OptimizerConfig(lr=3e-3, warmup=10)):
        pass
    fresh = language.sample(400, generator(10**6))
    any_order = model.eval().nelbo(fresh, generator(1), draws=6).total.mean()
    model.process = model.process.with_path("joint")
    joint = model.nelbo(fresh, generator(1), draws=6).total.mean()
    both = model.train().nelbo(fresh, generator(1), draws=6).total.mean()  # as in training, a mixture of both paths
    assert language.entropy() < both < 1.2 * max(any_order, joint)
    unigram = 6 * torch.tensor(3.0).log()
    assert language.entropy() < any_order < 0.8 * unigram and language.entropy() < joint < 0.8 * unigram


@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
def test_sequences_of_a_training_are_those_of_its_path(name: str) -> None:
    """By default none is any-order on the joint path; on the any-order path their fraction rises."""

    def fraction(**options: object) -> object:
        return ls.build(name, vocab_size=3, length=4, denoiser=None, **options).process.any_order_fraction

    assert ls.build(name, vocab_size=3, length=4, denoiser=None).process.path_name == "joint"
    assert fraction() == 0 and fraction(path="any-order") == "rising"
    assert fraction(path="any-order", loss="drift") == 0 and fraction(path="any-order", switch=0.5) == 0


def test_networks_of_the_joint_path_predict_from_the_other_positions() -> None:
    for options, head in (({}, True), ({"path": "any-order"}, False), ({"any_order_fraction": 0.5}, False)):
        model = ls.build("rdlm-heat", vocab_size=3, length=4, **SMALL, **options)
        assert isinstance(model.denoiser, PosteriorHead) == head
        subtracted = [module.out is not None for module in model.modules() if isinstance(module, Backbone)]
        assert subtracted == [head]


def test_invalid_options_are_refused() -> None:
    cases = [
        ({"path": "sideways"}, "not a choice for path"),
        ({"path": "any-order", "timesteps": 8}, "path=joint"),
        ({"path": "any-order", "start": "step:0.35"}, "path=joint"),
        ({"any_order_fraction": 1.0}, "below 1"),
        ({"any_order_fraction": 0.5, "loss": "drift"}, "cross-entropy"),
    ]
    for options, message in cases:
        with pytest.raises(UserError, match=message):
            ls.build("rdlm-heat", vocab_size=3, length=4, denoiser=None, **options)


def test_a_saved_model_loads_with_the_other_path(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ls.build("rdlm-heat", vocab_size=3, length=4, path="any-order", **SMALL)
    model.save(tmp_path / "model")
    assert ls.load(tmp_path / "model").process.path_name == "any-order"
    joint = ls.load(tmp_path / "model", {"path": "joint"})
    assert joint.process.path_name == "joint" and torch.equal(*(next(m.parameters()) for m in (model, joint)))
    with pytest.raises(UserError, match="no option 'pth'"):
        ls.load(tmp_path / "model", {"pth": "joint"})


@pytest.mark.parametrize("options", [{}, {"base": 2}, {"start": "mask+uniform"}, {"transitions": "normal"}], ids=str)
def test_one_model_has_the_bounds_of_both_paths(options: dict[str, object]) -> None:
    """The bounds equal those of models built with either path and the same weights."""
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


def test_unknown_paths_are_refused() -> None:
    chain = ls.build("rdlm", vocab_size=3, length=4, denoiser=None, timesteps=8).process
    assert chain.path_names == ("joint",)
    for process, name in ((chain, "any-order"), (chain.with_path("joint"), "sideways")):
        with pytest.raises(UserError, match=f"no path '{name}'"):
            process.with_path(name)
