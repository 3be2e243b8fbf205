"""Published flows on the simplex: unconstrained vector fields, inputs, times and samplers; large vocabularies."""

import math
from typing import Any

import pytest
import torch
from scipy import stats
from statistical_checks import MIN_P_VALUE, bound_excess, mean_and_error, sequence_p_value
from torch import Tensor
from toy_languages import generator, random_joint, sticky_chain
from toy_models import SMALL, System, calibrated_model, random_network

import logosphere as ls
from logosphere.data.languages import Oracle
from logosphere.errors import UserError
from logosphere.processes.simplex.dirichlet import DirichletPath
from logosphere.processes.simplex.flow_matching import TangentFlow
from logosphere.processes.simplex.process import SimplexProcess
from logosphere.processes.simplex.stick_breaking import StickScores
from logosphere.rng import GeneratorNoise
from logosphere.systems import find_preset
from logosphere.types import Batch

VELOCITY = {
    "predicts": "velocity", "posterior_head": False, "input": "state", "loss": "velocity", "time_sampler": "uniform",
}  # fmt: skip
SCORE = {
    "construction": "sticks", "predicts": "score", "posterior_head": False, "input": "state", "loss": "diffusion",
    "concentration": 16,
}  # fmt: skip
FREE = [
    System("fisher-flow", VELOCITY),
    System("fisher-flow", VELOCITY | {"prior": "simplex"}),
    System("ddsm", SCORE),
]
PUBLISHED = [("bfn", "paper"), ("fisher-flow", "paper"), ("fisher-flow", "sfm"), ("dirichlet-flow", "paper"),
             ("ddsm", "paper")]  # fmt: skip


def skewed_token(num_classes: int) -> Any:
    """A language of one token with unequal probabilities."""
    return ls.languages.independent(torch.arange(1, num_classes + 1).double().pow(-0.5).softmax(0).tolist(), 1)


# ---- large vocabularies ------------------------------------------------------------------------------------------


def test_dirichlet_flow_bound_of_256_tokens_is_the_entropy() -> None:
    language = skewed_token(256)
    mean, error = mean_and_error(
        bound_excess(calibrated_model("dirichlet-flow", language, churn=0), language, n=2000, draws=48)
    )
    assert error < 0.01 * language.entropy()
    assert abs(mean) < 3 * error + 0.005 * language.entropy()


@pytest.mark.slow
def test_a_noisy_dirichlet_flow_of_256_tokens_has_a_bound() -> None:
    language = skewed_token(256)
    mean, error = mean_and_error(bound_excess(calibrated_model("dirichlet-flow", language), language, n=2000, draws=48))
    assert error < 0.02 * language.entropy()
    assert -3 * error < mean < 0.1 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("churn", [0, 1])
def test_samples_of_256_tokens_follow_the_language(churn: int) -> None:
    language = skewed_token(256)
    model = calibrated_model("dirichlet-flow", language, churn=churn)
    drawn = ls.sample(model, n=3000, steps=48, rng=generator(1), denoiser=Oracle(model, language))
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


@pytest.mark.parametrize("options", [{}, {"churn": 0}, {"alpha": 60.0}])
def test_a_dirichlet_flow_of_2048_tokens_is_finite(options: dict[str, Any]) -> None:
    model = ls.build("dirichlet-flow", vocab_size=2048, length=4, **SMALL, **options)
    path = model.process.path
    assert isinstance(path, DirichletPath)
    assert path.table.isfinite().all() and path.noise_table.isfinite().all() and (path.table > 0).all()
    tokens = torch.randint(2048, (4, 4), generator=generator(1))
    assert model.nelbo(tokens, generator(2), draws=4).total.isfinite().all()
    drawn = ls.sample(model, n=8, steps=4, rng=generator(3))
    assert len(drawn.unique()) > 16  # NaN states would decode to the last token


# ---- vector fields -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("system", FREE, ids=str)
def test_value_of_an_exact_field_is_the_entropy(system: System) -> None:
    """It equals that of the token-predicting system: the oracle's output is converted to a field and back."""
    language = sticky_chain(3, 4)
    model = calibrated_model(system.name, language, **system.options)
    draws = 192 if system.name == "fisher-flow" else 48  # cells are sampled uniformly, and nats are rare and large
    mean, error = mean_and_error(bound_excess(model, language, n=2000, draws=draws))
    assert error < 0.05 * language.entropy()
    assert abs(mean) < 3 * error + 0.01 * language.entropy()


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", ["ancestral", "euler-flow"])
@pytest.mark.parametrize("system", FREE, ids=str)
def test_samples_of_an_exact_field_follow_the_language(system: System, sampler: str) -> None:
    language = random_joint()
    model = calibrated_model(system.name, language, **system.options)
    steps = 300 if system.name == "ddsm" else 128
    drawn = ls.sample(model, n=2000, steps=steps, rng=generator(3), denoiser=Oracle(model, language), sampler=sampler)
    assert sequence_p_value(drawn, language) > MIN_P_VALUE


def test_a_random_score_is_not_below_the_entropy() -> None:
    language = sticky_chain(3, 6)
    model = random_network("ddsm", language, seed=5, **SCORE)
    assert model.process.kind == "bound"
    mean, error = mean_and_error(bound_excess(model, language, n=1000, draws=8, denoiser=model.denoiser))
    assert math.isfinite(mean) and mean > 3 * error


def test_velocity_determines_the_token_distribution() -> None:
    process = ls.build("fisher-flow", vocab_size=6, length=1, denoiser=None, **VELOCITY).process
    assert isinstance(process, TangentFlow) and process.kind == "surrogate"
    z = process.prior(50, 1, GeneratorNoise(generator(1), 50)).double()[:, 0]
    t, p = torch.full((50,), 0.8, dtype=torch.float64), torch.randn(50, 6, generator=generator(2)).double().softmax(-1)
    found = process.logits(process.from_posterior(p.log(), z, t), z, t).exp()
    assert (found - p).abs().max() < 1e-5  # up to the floor of small probabilities


def test_fields_refuse_temperature_and_guides() -> None:
    for name, options in (("fisher-flow", VELOCITY), ("ddsm", SCORE)):
        model = ls.build(name, vocab_size=3, length=4, **SMALL, **options)
        with pytest.raises(UserError, match="predicts states, not tokens"):
            ls.sample(model, temperature=0.5)


# ---- times -------------------------------------------------------------------------------------------------------


def drawn_times(model: Any, n: int = 4000) -> Tensor:
    """t of the first position of n sequences, as in training."""
    process = model.process.train()
    u = process.codec.encode(torch.zeros(n, 1, dtype=torch.long))
    w = torch.rand(n, 1, generator=generator(1), dtype=torch.float64)
    times: Tensor = process.sample_zt(u, w, torch.ones(n, 1, dtype=torch.bool), GeneratorNoise(generator(2), n)).t
    return times.flatten()


def test_training_samples_alpha_from_an_untruncated_exponential() -> None:
    model = ls.build("dirichlet-flow", vocab_size=4, length=1, denoiser=None, preset="paper")
    process = model.process
    assert isinstance(process, SimplexProcess) and isinstance(process.path, DirichletPath)
    alpha = process.path.alpha(process.fraction(drawn_times(model)))
    assert stats.kstest(alpha.double() - 1, stats.expon(scale=2).cdf).pvalue > MIN_P_VALUE
    assert abs(float((alpha > 8).double().mean()) - math.exp(-3.5)) < 0.01 and float(alpha.max()) > 12


@pytest.mark.parametrize("name", ["bfn", "fisher-flow"])
def test_training_samples_times_uniformly(name: str) -> None:
    model = ls.build(name, vocab_size=4, length=1, denoiser=None, preset="paper")
    t = drawn_times(model)
    gone = model.process.fraction(t) if isinstance(model.process, SimplexProcess) else 1 - t
    assert stats.kstest(gone.double(), stats.uniform.cdf).pvalue > MIN_P_VALUE


def test_importance_sampling_follows_the_rms_score() -> None:
    """Times sampled in proportion to √w equalise the root of the nats per draw over all cells."""
    model = ls.build("ddsm", vocab_size=3, length=1, denoiser=None, preset="paper")
    process = model.process
    assert isinstance(process, SimplexProcess) and isinstance(process.path, StickScores)
    n, s = 4000, torch.tensor([0.2, 0.5, 0.9])
    x = torch.arange(n)[:, None] % 3
    u, rates = process.codec.encode(x), []
    for fraction in s:
        z = process.path.q_sample(u, fraction.expand(n, 1), GeneratorNoise(generator(3), n))
        nats = process.path.elbo_term(torch.zeros(n, 1, 3), u, z, fraction.expand(n, 1), 1.0)
        steep = float(process.path.sticks.times.diff().abs()[int(fraction * 256)]) * 256
        rates.append((2 * float(nats.mean()) / steep) ** 0.5)  # √w
        rates[-1] *= steep  # per unit of s
    density = process.path.importance(128)[(s * 128).long()]
    torch.testing.assert_close(density / density.sum(), torch.tensor(rates).double() / sum(rates), rtol=0.05, atol=0.0)


def test_diffusion_loss_excludes_the_reconstruction_term() -> None:
    tokens = sticky_chain(3, 4).sample(64, generator(1))
    losses = {}
    for loss in ("bound", "diffusion"):
        torch.manual_seed(0)
        model = ls.build("bfn", vocab_size=3, length=4, **SMALL, loss=loss, time_sampler="even", posterior_head=False)
        losses[loss] = model.train().bound(Batch.of(tokens), GeneratorNoise(generator(2), 64), draws=65)
    both, without = losses["bound"], losses["diffusion"]
    torch.testing.assert_close(both.loss, both.recon + both.diffusion)
    torch.testing.assert_close(without.loss, without.diffusion)
    assert float(without.recon.detach().mean()) > 0.1


@pytest.mark.parametrize(("name", "which"), [*PUBLISHED, ("bfn", "default"), ("ddsm", "default")])
def test_constants_are_buffers(name: str, which: str) -> None:
    """Other tensors would not follow a model to another device."""
    model = ls.build(name, vocab_size=4, length=4, **SMALL, preset=which)
    for part in model.modules():
        assert not [key for key, value in vars(part).items() if isinstance(value, Tensor)], type(part)


# ---- inputs and samplers -----------------------------------------------------------------------------------------


def record_inputs(model: Any) -> list[tuple[Tensor, Tensor]]:
    """The inputs and times of the network of a model, recorded while it runs."""
    recorded: list[tuple[Tensor, Tensor]] = []
    inner = model.denoiser
    while hasattr(inner, "inner"):
        inner = inner.inner
    trunk = inner.features

    def features(z: Tensor, t: Tensor, context: Tensor, memory: Any) -> Tensor:
        recorded.append((z.clone(), t.clone()))
        features_out: Tensor = trunk(z, t, context, memory)
        return features_out

    inner.features = features
    return recorded


def test_bfn_network_input_is_scaled_to_minus_one_to_one() -> None:
    model = ls.build("bfn", vocab_size=3, length=4, **SMALL, preset="paper")
    recorded = record_inputs(model)
    model.nelbo(torch.zeros(5, 4, dtype=torch.long), generator(1))
    assert recorded[0][0].shape == (5, 4, 3)
    torch.testing.assert_close(recorded[0][0].sum(-1), torch.full((5, 4), -1.0))  # Σ (2 θ_k - 1) = 2 - K


def test_bfn_steps_are_equally_spaced_and_end_with_decoding() -> None:
    model = ls.build("bfn", vocab_size=3, length=4, **SMALL, preset="paper")
    recorded = record_inputs(model)
    generated = ls.generate(model, n=2, steps=8, rng=0)
    fractions = model.process.fraction(torch.stack([t[0, 0] for _, t in recorded]))
    assert generated.nfe == 9
    torch.testing.assert_close(fractions, torch.arange(9) / 8, rtol=0, atol=1e-6)


def test_dirichlet_flow_doubles_its_input_and_takes_99_steps() -> None:
    model = ls.build("dirichlet-flow", vocab_size=3, length=4, **SMALL, preset="paper")
    recorded = record_inputs(model)
    ls.sample(model, n=2, steps=99, rng=0)
    assert len(recorded) == 99
    for i, (z, _) in enumerate(recorded):
        alpha = 1 + 7 * i / 99
        torch.testing.assert_close(z[..., :3].sum(-1), torch.full((2, 4), 1 - 2 / (alpha + 1)), rtol=0, atol=1e-4)
        torch.testing.assert_close(z[..., 3:].sum(-1), torch.full((2, 4), 2 / (alpha + 1)), rtol=0, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "which"), PUBLISHED)
def test_a_published_system_trains_and_samples(name: str, which: str) -> None:
    language = sticky_chain(3, 4, stay=0.95)
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=3, length=4, **SMALL, preset=which)
    batches = (language.sample(64, generator(i)) for i in range(120))
    losses = [p.loss for p in ls.fit(model, batches, steps=120, optim=ls.OptimizerConfig(lr=5e-3, warmup=20))]
    assert sum(losses[-20:]) < sum(losses[:20])
    assert model.sampler == find_preset(name, which).sampler
    drawn = ls.sample(model.eval(), n=500, steps=32, rng=generator(12))
    repeats = float((drawn[:, 1:] == drawn[:, :-1]).float().mean())
    assert repeats > 0.75, repeats  # 1/3 by chance ± 0.012, 0.95 in the language


INVALID = [
    ("fisher-flow", VELOCITY | {"time_sampler": "even"}, "needs loss=velocity and time_sampler=uniform"),
    ("fisher-flow", VELOCITY | {"geometry": "flat"}, "needs geometry=sphere"),
    ("fisher-flow", VELOCITY | {"posterior_head": True}, "needs posterior_head=False"),
    ("fisher-flow", {"predicts": "velocty"}, "Did you mean 'velocity'"),
    ("ddsm", SCORE | {"construction": "shares"}, "needs construction=sticks"),
    ("ddsm", SCORE | {"self_conditioning": 0.5}, "self_conditioning=0"),
    ("ddsm", {"time_sampler": "importance"}, "needs predicts=score"),
    ("ddsm", {"predicts": "noise"}, "'noise' is not a choice for predicts"),
    ("bfn", {"input": "doubled"}, "'doubled' is not a choice for input"),
    ("dirichlet-flow", {"time_sampler": "unbound"}, "Did you mean 'unbounded'"),
]


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_settings_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ls.build(name, vocab_size=3, length=4, **options, denoiser=None)


@pytest.mark.parametrize(
    ("name", "sampler"), [("bfn", "euler-flow"), ("dirichlet-flow", "euler-flow"), ("ddsm", "messages")]
)
def test_a_sampler_of_another_system_is_refused(name: str, sampler: str) -> None:
    model = ls.build(name, vocab_size=3, length=4, **SMALL)
    with pytest.raises(UserError, match=f"'{sampler}' needs"):
        ls.sample(model, sampler=sampler)
