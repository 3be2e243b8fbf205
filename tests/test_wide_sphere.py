"""The sphere with many tokens: the same numbers as the formulas for few tokens, and the same noise however divided."""

from typing import Any

import pytest
import torch

import logosphere as ls
from logosphere.geometry import sphere
from logosphere.geometry.bridges import tangent_normal_log_p
from logosphere.networks.base import BeliefInput, ConditionalNetwork, PosteriorHead
from logosphere.processes.spherical.diffusion import SphericalDiffusion
from logosphere.processes.spherical.wide import MEASURED_ONE_IN, WideSphericalDiffusion
from logosphere.rng import WIDE, CounterNoise, GeneratorNoise, Noise, categorical
from logosphere.training.trainer import Trainer
from logosphere.types import Batch, Bound

L, FEW, MANY = 16, 300, 1500
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("rdlm", {}),
    ("rdlm", {"start": "uniform"}),
    ("rdlm", {"start": "mask+uniform"}),
    ("rdlm", {"loss": "drift"}),
    ("rdlm-heat", {}),
    ("rdlm-heat", {"path": "any-order"}),
    ("rdlm", {"block": 4}),
    ("rdlm-heat", {"block": 4, "path": "any-order"}),
    ("rdlm-heat", {"block": 4, "stagger": 0.7, "order": "left-to-right", "decoder_depth": 1, "depth": 2}),
]


def build(name: str, vocab_size: int, **options: Any) -> ls.Model:
    torch.manual_seed(0)
    model = ls.build(name, vocab_size=vocab_size, length=L, **({"width": 32, "depth": 1, "heads": 2} | options))
    assert type(model.process) is WideSphericalDiffusion
    with torch.no_grad():
        network = next(module for module in model.modules() if isinstance(module, ConditionalNetwork))
        network.head.weight.normal_(std=0.1)
    return model


def counter_noise(batch: Batch, step: int = 3) -> CounterNoise:
    return CounterNoise(0, step, batch.ids, batch.global_index, batch.total)


def draw_batch(vocab_size: int, size: int = 6) -> Batch:
    return Batch.of(torch.randint(vocab_size, (size, L), generator=torch.Generator().manual_seed(1)))


def measure_bound(model: ls.Model, batch: Batch) -> tuple[Bound, list[torch.Tensor]]:
    model.zero_grad()
    torch.manual_seed(5)
    bound = model.bound(batch, counter_noise(batch))
    if model.training:
        bound.loss.sum().backward()
    return bound, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("training", [True, False])
def test_bound_loss_and_gradient_are_those_of_the_dense_formulas(
    name: str, options: dict[str, Any], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = build(name, FEW, **options).train(training), draw_batch(FEW)
    monkeypatch.setattr("logosphere.processes.spherical.wide.MEASURED_ONE_IN", 1)
    ours, our_gradients = measure_bound(model, batch)
    monkeypatch.setattr(sphere, "WIDE", 10**9)
    model.process.__class__ = SphericalDiffusion
    for wrapper in model.modules():
        if isinstance(wrapper, BeliefInput):
            wrapper.belief = model.process.belief
        if isinstance(wrapper, PosteriorHead):
            wrapper.add_evidence = model.process.add_evidence
    dense, gradients = measure_bound(model, batch)
    torch.testing.assert_close(ours.total, dense.total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.loss, dense.loss, rtol=1e-4, atol=1e-4)
    for one, other in zip(our_gradients, gradients, strict=True):
        assert float((one - other).norm()) <= 2e-3 * float(other.norm()) + 1e-6


@pytest.mark.parametrize("name", ["rdlm", "rdlm-heat"])
@pytest.mark.parametrize("t", [0.9, 0.5, 0.05])
def test_polynomials_give_the_beliefs_of_the_formula_in_float64(name: str, t: float) -> None:
    model = build(name, MANY)
    process: Any = model.process
    z = model.corrupt(draw_batch(MANY).tokens, torch.tensor(t), 0)
    times = torch.full(z.shape[:2], t)
    x = z.double()
    if name == "rdlm":
        exact = tangent_normal_log_p(
            x[..., :-1], x[..., -1:], process.moments[0][process._node(times)].double(), MANY + 1
        )
    else:
        exact = process.bridge.log_p(x[..., :-1], process._s(times).double())
    assert float((process.belief(z, times) / MANY**0.5 - exact.softmax(-1)).abs().sum(-1).max()) < 1e-4
    assert float((process.log_likelihood(z, times).softmax(-1) - exact.softmax(-1)).abs().sum(-1).max()) < 1e-4


def test_clean_states_are_certain() -> None:
    process, tokens = build("rdlm", MANY).process, draw_batch(MANY).tokens
    z = process.corrupt(tokens, torch.zeros(tokens.shape), GeneratorNoise(torch.Generator().manual_seed(0), 6))
    assert torch.equal(z, process.codec.encode(tokens))
    assert torch.equal(process.belief(z, torch.zeros(tokens.shape)).argmax(-1), tokens)


def test_part_of_the_positions_estimates_the_bound_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build("rdlm", FEW).train(), draw_batch(FEW, 32)
    totals = []
    for seed in range(60):
        torch.manual_seed(seed)
        totals.append(float(model.bound(batch, counter_noise(batch)).total.mean()))
    observed = float(model.process.time_sampler.accumulated[3].sum())  # type: ignore[union-attr, index, operator]
    assert abs(observed / (60 * 32 * L) - 1 / MEASURED_ONE_IN) < 0.03
    monkeypatch.setattr("logosphere.processes.spherical.wide.MEASURED_ONE_IN", 1)
    found, exact = torch.tensor(totals), float(model.bound(batch, counter_noise(batch)).total.mean())
    assert abs(float(found.mean()) - exact) < 4 * float(found.std()) / 60**0.5


def test_training_does_not_depend_on_how_a_batch_is_divided() -> None:
    losses = []
    for parts in (1, 3):
        trainer = Trainer(build("rdlm", FEW), accumulate=parts)
        losses.append([trainer.train_step(draw_batch(FEW), 0.0) for _ in range(3)])
    for one, other in zip(*losses, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.nats == pytest.approx(other.nats, rel=1e-5)


@pytest.mark.parametrize("make", ["counter", "generator", "packed"])
def test_wide_normal_numbers_are_standard_normal(make: str) -> None:
    ids = torch.arange(4)
    counter: Noise = CounterNoise(0, 1, ids, ids, 4)
    shape = (4, 50, 2 * WIDE + 1)
    if make == "generator":
        counter = GeneratorNoise(torch.Generator().manual_seed(0), 4)
    if make == "packed":
        counter, shape = counter.for_positions(torch.ones(4, 50, dtype=torch.bool)), (200, 2 * WIDE + 1)
    x = counter.normal(*shape)
    assert x.dtype == torch.float32
    x = x.double().flatten()
    n = len(x)
    assert abs(float(x.mean())) < 5 / n**0.5
    assert abs(float(x.var()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float((x**4).mean()) - 3) < 5 * (96 / n) ** 0.5
    assert abs(float((x[:-1] * x[1:]).mean())) < 5 / n**0.5
    p = torch.special.ndtr(x).sort().values
    assert float((p - torch.arange(n) / n).abs().max()) < 2 / n**0.5  # Kolmogorov and Smirnov


def test_wide_normal_numbers_belong_to_their_sequences() -> None:
    ids = torch.arange(6)
    whole = CounterNoise(0, 1, ids, ids, 6).normal(6, 3, 500)
    part = CounterNoise(0, 1, ids[2:4], ids[2:4], 6).normal(2, 3, 500)
    assert torch.equal(whole[2:4], part)
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole[0, 0], whole[0, 1])


@pytest.mark.parametrize("sampler", ["bridge", "geodesic", "matched", "rdlm"])
def test_samplers_end_in_tokens(sampler: str) -> None:
    samples = ls.sample(build("rdlm", FEW).eval(), n=2, steps=3, sampler=sampler, rng=torch.Generator().manual_seed(0))
    assert samples.shape == (2, L)
    assert 0 <= int(samples.min()) and int(samples.max()) < FEW


def test_steps_stay_on_the_sphere_and_reach_their_vertices() -> None:
    process, tokens = build("rdlm", FEW).process, draw_batch(FEW).tokens
    noise = GeneratorNoise(torch.Generator().manual_seed(0), 6)
    z = process.corrupt(tokens, torch.full(tokens.shape, 0.6), noise).flatten(0, 1)
    out = 50 * process.codec.encode(tokens).flatten(0, 1)[:, :FEW]
    t = torch.full((len(z),), 0.6)
    moved = process.step(out, z, t, t / 2, noise)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(len(z)))
    own = tokens.flatten()[:, None]
    assert bool((moved.gather(1, own) > z.gather(1, own)).float().mean() > 0.95)
    assert torch.equal(process.step(out, z, t, 0 * t, noise).argmax(1), tokens.flatten())


def test_categorical_by_blocks_draws_the_same_tokens() -> None:
    rng = torch.Generator().manual_seed(0)
    log_p, u = torch.randn(100, 3000, generator=rng), torch.rand(100, generator=rng, dtype=torch.float64)
    assert torch.equal(
        categorical(log_p, u), torch.cat([categorical(log_p[i : i + 1], u[i : i + 1]) for i in range(100)])
    )


def test_evaluation_leaves_the_prediction_as_it_is() -> None:
    """The memory of logits holds their gradient in training only; a denoiser may keep what it returns."""
    model = ls.build("rdlm-heat", vocab_size=300, length=4, denoiser=None)
    stored = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    before, tokens = stored.clone(), torch.zeros(2, 4, dtype=torch.long)
    model.nelbo(tokens, 0, denoiser=lambda z, t, context, where: stored[: int(where.sum())])
    assert torch.equal(stored, before)
