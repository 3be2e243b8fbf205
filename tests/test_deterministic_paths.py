"""Deterministic flows: order of the solvers, ODE likelihoods, and optimal transport within a batch."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from statistical_checks import mean_and_error
from torch import Tensor
from toy_languages import enumerate_sequences, generator, independent_tokens, random_joint, sticky_chain
from toy_models import SMALL, System, calibrated_system, random_network

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.evaluation.ode_likelihood import ode_nelbo
from logosphere.geometry.simplex import linear_assignment
from logosphere.processes.simplex.flow_matching import GeodesicPath
from logosphere.rng import GeneratorNoise
from logosphere.sampling.loop import TimeGrid, sample_loop
from logosphere.sampling.registry import sampler
from logosphere.types import Batch

DETERMINISTIC = [System("dirichlet-flow", {"churn": 0}), System("fisher-flow", {"prior": "simplex"})]


# ---- solvers ---------------------------------------------------------------------------------------------------------


@functools.cache
def final_states(which: int, name: str, steps: int) -> Tensor:
    """The states of a sampler before decoding, from fixed starts and in equal steps."""
    language = sticky_chain(3, 2)
    model = calibrated_system(DETERMINISTIC[which], language)

    def grid(count: int) -> Tensor:
        return torch.cat([model.process.time(torch.linspace(0, 1, count)), torch.zeros(1)])

    batch, times = Batch.of(torch.zeros(200, 2, dtype=torch.long)), TimeGrid.diffuse(2, steps + 1, grid)
    stepper, noise = sampler(name, model).stepper, GeneratorNoise(generator(1), 200)
    return list(sample_loop(model.process, Oracle(model, language), times, batch, noise, stepper))[-2].z.double()


@pytest.mark.parametrize("which", [0, 1], ids=map(str, DETERMINISTIC))
def test_euler_is_of_first_and_heun_of_second_order(which: int) -> None:
    truth = final_states(which, "heun", 192)
    errors = {
        name: [float((final_states(which, name, steps) - truth).square().mean().sqrt()) for steps in (12, 24)]
        for name in ("ancestral", "heun")
    }
    assert 0.8 < math.log2(errors["ancestral"][0] / errors["ancestral"][1]) < 1.5
    assert 1.8 < math.log2(errors["heun"][0] / errors["heun"][1]) < 2.3
    assert errors["heun"][0] < errors["ancestral"][0] / 4


def test_heun_refuses_stochastic_flows() -> None:
    with pytest.raises(UserError, match="churn=0"):
        sampler("heun", ls.build("dirichlet-flow", vocab_size=3, length=4, denoiser=None))


# ---- likelihoods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", DETERMINISTIC, ids=str)
def test_ode_likelihood_is_exact_for_every_sequence(system: System) -> None:
    """log q(z | x) - log p(z) - log p(x | z) is -log p(x) at every z and not only on average, for any posterior."""
    language = sticky_chain(3, 2)
    model = calibrated_system(system, language)
    tokens = language.sample(200, generator(3))
    for believed in (language, independent_tokens(3, 2)):
        found = ode_nelbo(model, tokens, generator(4), Oracle(model, believed), steps=64, exact=True)
        off = found.total + believed.log_prob(tokens)
        mean, error = mean_and_error(off)
        assert error < 0.01 * language.entropy() and abs(mean) < 3 * error + 0.002 * language.entropy()
        assert float(off.abs().median()) < 0.03
        assert found.kind == "surrogate"  # the error of a solver can have either sign


@pytest.mark.parametrize("system", DETERMINISTIC, ids=str)
def test_the_random_divergence_estimate_is_unbiased(system: System) -> None:
    language = sticky_chain(3, 2)
    model = calibrated_system(system, language)
    tokens = language.sample(1000, generator(3))
    found = ode_nelbo(model, tokens, generator(4), Oracle(model, language), steps=24)
    mean, error = mean_and_error(found.total + language.log_prob(tokens))
    assert abs(mean) < 3 * error + 0.01 * language.entropy() and error < 0.05 * language.entropy()


@pytest.mark.parametrize("system", DETERMINISTIC, ids=str)
def test_ode_likelihood_of_a_random_network_is_above_the_entropy(system: System) -> None:
    language = sticky_chain(3, 2)
    model = random_network(system.name, language, seed=5, **system.options)
    tokens = language.sample(150, generator(3))
    mean, error = mean_and_error(ode_nelbo(model, tokens, generator(4), steps=24, exact=True).total)
    assert math.isfinite(mean) and mean > language.entropy() + 3 * error


def test_ode_likelihood_with_known_positions_is_conditional() -> None:
    language, known = random_joint(2, 3), torch.tensor([False, True, False])
    model = calibrated_system(DETERMINISTIC[0], language)
    tokens = language.sample(200, generator(3))
    found = ode_nelbo(
        model, tokens, generator(4), Oracle(model, language), steps=48, exact=True, known=known.expand(200, 3)
    )
    sequences, p = enumerate_sequences(language)
    agrees = (sequences[None, :, known] == tokens[:, None][..., known]).all(-1)
    off = found.total + language.log_prob(tokens) - (agrees * p).sum(1).log()
    mean, error = mean_and_error(off)
    assert abs(mean) < 3 * error + float(found.recon.mean()) and error < 0.02 * language.entropy()
    assert (found.count == 2).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mdlm", {}, "are for flows"),
        ("ddsm", {}, "are for flows"),
        ("dirichlet-flow", {}, "churn=0"),
        ("fisher-flow", {}, "prior=simplex"),
        ("fisher-flow", {"geometry": "flat"}, "prior=simplex"),
        ("dirichlet-flow", {"churn": 0}, "no denoiser"),
    ],
)
def test_ode_likelihood_is_refused_where_undefined(name: str, options: dict[str, Any], message: str) -> None:
    model = ls.build(name, vocab_size=3, length=4, denoiser=None, **options)
    with pytest.raises(UserError, match=message):
        ode_nelbo(model, torch.zeros(2, 4, dtype=torch.long), generator(1))


# ---- optimal transport -----------------------------------------------------------------------------------------------


def test_linear_assignment_has_minimal_cost() -> None:
    for n in range(1, 7):
        cost = torch.randn(n, n, generator=generator(n))
        best = min(sum(float(cost[i, j]) for i, j in enumerate(order)) for order in itertools.permutations(range(n)))
        found = linear_assignment(cost)
        assert sorted(found.tolist()) == list(range(n))
        assert float(cost[torch.arange(n), found].sum()) == pytest.approx(best, abs=1e-5)
    for cost in (
        torch.rand(40, 40, generator=generator(7)),
        torch.randint(0, 3, (40, 40), generator=generator(8)).float(),
    ):
        rows, columns = linear_sum_assignment(cost.numpy())
        assert float(cost[torch.arange(40), linear_assignment(cost)].sum()) == pytest.approx(
            cost.numpy()[rows, columns].sum()
        )
    with pytest.raises(UserError, match="square matrix"):
        linear_assignment(torch.zeros(2, 3))


def test_optimal_coupling_permutes_starts_and_shortens_paths() -> None:
    """In training only: starts are permuted among the sequences so that the total distance is smaller."""
    tokens = torch.randint(0, 5, (32, 3), generator=generator(1))
    u, s = torch.nn.functional.one_hot(tokens, 5).float(), torch.zeros(32, 3)
    plain, optimal = GeodesicPath(5), GeodesicPath(5, ot_coupling=True)
    independent, coupled = (path.q_sample(u, s, GeneratorNoise(generator(2), 32)) for path in (plain, optimal))
    order = torch.cdist(coupled.flatten(1), independent.flatten(1)).argmin(1)
    assert sorted(order.tolist()) == list(range(32)) and order.tolist() != list(range(32))
    torch.testing.assert_close(coupled, independent[order])
    lengths = [float((z * u).sum(-1).clamp(0, 1).acos().square().sum()) for z in (independent, coupled)]
    assert lengths[1] < 0.95 * lengths[0]
    torch.testing.assert_close(optimal.eval().q_sample(u, s, GeneratorNoise(generator(2), 32)), independent)


@pytest.mark.parametrize("geometry", ["sphere", "flat"])
def test_training_with_optimal_coupling_learns(geometry: str) -> None:
    language = sticky_chain(3, 4, stay=0.95)
    torch.manual_seed(0)
    how = {"geometry": geometry, "coupling": "optimal", "posterior_head": False, "input": "state"}
    model = ls.build("fisher-flow", vocab_size=3, length=4, **SMALL, **how)
    batches = (language.sample(32, generator(i)) for i in range(60))
    losses = [p.loss for p in ls.fit(model, batches, steps=60, optim=ls.OptimizerConfig(lr=5e-3, warmup=20))]
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])
    drawn = ls.sample(model.eval(), n=300, steps=16, rng=generator(12))
    assert (drawn[:, 1:] == drawn[:, :-1]).float().mean() > 0.45  # 1/3 by chance


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coupling": "optimal"}, "posterior_head=False"),
        ({"coupling": "optmal"}, "Did you mean 'optimal'"),
        ({"geometry": "flt"}, "Did you mean 'flat'"),
        ({"geometry": "flat", "prior": "sphere"}, "prior=simplex"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build("fisher-flow", vocab_size=3, length=4, denoiser=None, **options)
