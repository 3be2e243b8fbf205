"""Conditions: networks use them, training drops them, and guidance extrapolates the difference."""

import pytest
import torch
from toy_languages import generator
from toy_models import SMALL, fill_zero_weights

import logosphere as ls
from logosphere import Condition, UserError
from logosphere.networks.base import PosteriorHead
from logosphere.networks.conditioning import Conditioner, SignalFeatures
from logosphere.networks.guidance import ClassifierFreeGuidance
from logosphere.types import NO_TOKEN, Batch

K, L = 4, 6
CONDITIONAL = {"labels": 3, "source": 5, "source_length": 7, "signal": 2}
NAMES = ["ar", "mdlm", "d3pm-uniform", "rdlm-heat"]


def model_of(name: str, **options):
    torch.manual_seed(3)
    model = ls.build(name, vocab_size=K, length=L, **SMALL | CONDITIONAL | options)
    fill_zero_weights(model)
    return model.eval()


def conditions(n: int) -> dict[str, Condition]:
    source = torch.randint(5, (n, 7), generator=generator(4))
    source[:, 5:] = NO_TOKEN
    return {
        "labels": Condition.of(labels=torch.arange(n) % 3),
        "source": Condition.of(source=source),
        "signal": Condition.of(signal=torch.randn(n, L, 2, generator=generator(5))),
    }


def other(condition: Condition) -> Condition:
    def changed(field: torch.Tensor) -> torch.Tensor:
        if field.dtype == torch.bool:
            return field
        return torch.where(field == NO_TOKEN, NO_TOKEN, (field + 1) % 3) if field.dtype == torch.long else field + 1.0

    return condition.map(changed)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["labels", "source", "signal"])
@pytest.mark.parametrize("name", [*NAMES, "block"])
def test_conditions_change_the_bound_unless_dropped(name: str, kind: str) -> None:
    model = model_of("mdlm", block=2) if name == "block" else model_of(name)
    condition = conditions(4)[kind]
    tokens = torch.randint(K, (4, L), generator=generator(6))

    def nats(condition: Condition | None) -> torch.Tensor:
        return model.nelbo(tokens, generator(7), condition=condition).total

    total = nats(condition)
    assert (total != nats(other(condition))).all()
    assert (total != nats(None)).all()
    everywhere = torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(nats(condition.drop(everywhere)), nats(None))


def test_each_sequence_uses_its_own_condition() -> None:
    model, condition = model_of("mdlm"), conditions(4)["source"]
    tokens, rng = torch.randint(K, (4, L), generator=generator(6)), generator(7)
    z, t = model.corrupt(tokens, 0.5, rng), torch.full((4, L), 0.5)
    joint = model.denoiser.with_condition(condition)(z, t, tokens)
    for row in range(4):
        single = condition.map(lambda field, row=row: field[row : row + 1])
        separate = model.denoiser.with_condition(single)(z[row : row + 1], t[row : row + 1], tokens[row : row + 1])
        torch.testing.assert_close(separate[0], joint[row])


def test_source_padding_changes_nothing() -> None:
    """Sources are trimmed to the longest of a batch, which must not change their features."""
    model, condition = model_of("mdlm"), conditions(2)["source"]
    memory = model.denoiser.inner.conditioner(condition)
    assert memory.valid.sum(1).tolist() == [6, 6]  # the null token and five tokens
    shorter = model.denoiser.inner.conditioner(Condition.of(source=condition.source[:, :5]))
    torch.testing.assert_close(shorter.features, memory.features)
    assert torch.equal(shorter.valid, memory.valid)


@pytest.mark.parametrize("name", NAMES)
def test_conditioned_session_matches_the_network(name: str) -> None:
    model, condition = model_of(name), Condition.of(**{k: getattr(c, k) for k, c in conditions(3).items()})
    tokens = torch.randint(K, (3, L), generator=generator(6))
    z, t = model.corrupt(tokens, 0.5, generator(8)), torch.full((3, L), 0.5)
    conditioned = model.denoiser.with_condition(condition)
    with torch.no_grad():
        torch.testing.assert_close(
            conditioned.begin_sampling()(z, t, tokens), conditioned(z, t, tokens), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("cached", [False, True])
def test_cached_sampler_respects_conditions(cached: bool) -> None:
    model, condition = model_of("mdlm"), conditions(6)["labels"]
    drawn = ls.sample(model, n=6, steps=8, rng=generator(1), condition=condition, cached=cached)
    if cached:
        plain = ls.sample(model, n=6, steps=8, rng=generator(1), condition=condition)
        assert torch.equal(drawn, plain)
    assert drawn.shape == (6, L)


def test_guidance_is_linear_and_costs_two_evaluations() -> None:
    model, condition = model_of("rdlm-heat"), conditions(3)["labels"]
    next(part for part in model.modules() if isinstance(part, Conditioner)).withheld += 1
    tokens = torch.randint(K, (3, L), generator=generator(6))
    z, t = model.corrupt(tokens, 0.7, generator(7)), torch.full((3, L), 0.7)
    conditioned = model.denoiser.with_condition(condition)
    without = model.denoiser.with_condition(condition.drop(torch.ones(3, dtype=torch.bool)))
    c, u = conditioned(z, t, tokens), without(z, t, tokens)
    for scale in (0.0, 1.0, 3.0):
        torch.testing.assert_close(
            ClassifierFreeGuidance(conditioned, without, scale)(z, t, tokens), u + scale * (c - u)
        )
    assert ls.generate(model, n=3, steps=4, rng=generator(1), condition=condition).nfe == 4
    assert ls.generate(model, n=3, steps=4, rng=generator(1), condition=condition, guidance=3.0).nfe == 8


def test_condition_dropout_depends_on_sample_and_step() -> None:
    model = model_of("mdlm")
    tokens = torch.randint(K, (64, L), generator=generator(6))
    batch = Batch.of(tokens, condition=Condition.of(labels=torch.arange(64) % 3))
    list(ls.fit(model, [batch] * 3, steps=3, cond_dropout=0.25))
    dropped = int(model.denoiser.inner.conditioner.withheld)
    assert 20 < dropped < 80  # 48 of 192
    again = model_of("mdlm")
    list(ls.fit(again, [batch] * 3, steps=3, cond_dropout=0.25, accumulate=4))
    assert int(again.denoiser.inner.conditioner.withheld) == dropped


def test_network_learns_labels() -> None:
    """Sequences with label c repeat the token c, so the bound given the label is near zero."""
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=3, length=4, **SMALL, labels=3)
    labels = torch.arange(48) % 3
    tokens = labels[:, None].expand(-1, 4).clone()
    batch = Batch.of(tokens, condition=Condition.of(labels=labels))
    list(ls.fit(model, [batch] * 120, steps=120, optim=ls.OptimizerConfig(lr=1e-2, warmup=5)))
    known = model.nelbo(tokens, generator(1), condition=batch.condition, draws=8).total.mean()
    unknown = model.nelbo(tokens, generator(1), draws=8).total.mean()
    assert known < 0.3 and unknown > 0.7  # log 3 = 1.1 when the first token must be guessed
    drawn = ls.sample(model, n=48, steps=4, rng=generator(2), condition=batch.condition)
    assert (drawn == tokens).float().mean() > 0.9


@pytest.mark.parametrize(
    "condition, message",
    [
        (Condition.of(labels=torch.tensor([0, 3])), "0 to 2"),
        (Condition.of(source=torch.tensor([[0, 5], [1, 1]])), "0 to 4"),
        (Condition.of(source=torch.zeros(2, 8).long()), "7 tokens"),
        (Condition.of(signal=torch.zeros(2, L, 3)), "2 numbers"),
    ],
)
def test_out_of_range_conditions_are_refused(condition: Condition, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_of("mdlm").nelbo(torch.zeros(2, L).long(), generator(1), condition=condition)


def test_invalid_conditions_are_refused() -> None:
    labels = Condition.of(labels=torch.zeros(2).long())
    plain = ls.build("mdlm", vocab_size=K, length=L, **SMALL)
    with pytest.raises(UserError, match="built without conditions"):
        plain.nelbo(torch.zeros(2, L).long(), generator(1), condition=labels)
    with pytest.raises(UserError, match="needs a condition"):
        ls.sample(plain, n=2, guidance=2.0)
    with pytest.raises(UserError, match="never trained with dropped conditions"):
        ls.sample(model_of("mdlm"), n=2, condition=labels, guidance=2.0)
    with pytest.raises(UserError, match="built without labels"):
        signal_only = ls.build("mdlm", vocab_size=K, length=L, **SMALL, signal=1)
        signal_only.nelbo(torch.zeros(2, L).long(), generator(1), condition=labels)
    with pytest.raises(UserError, match="cond_dropout"):
        list(ls.fit(plain, [torch.zeros(2, L).long()], steps=1, cond_dropout=2.0))
    with pytest.raises(UserError, match="negative"):
        ls.build("mdlm", vocab_size=K, length=L, labels=-1)


def test_conditional_model_round_trips(tmp_path) -> None:
    model, condition = model_of("ar"), conditions(2)["labels"]
    model.save(tmp_path)
    tokens = torch.zeros(2, L).long()
    again = ls.load(tmp_path).nelbo(tokens, generator(1), condition=condition).total
    torch.testing.assert_close(again, model.nelbo(tokens, generator(1), condition=condition).total)


def test_rebuilt_wrappers_keep_the_training_mode() -> None:
    model, condition = model_of("mdlm"), conditions(2)["labels"]
    assert isinstance(model.denoiser, PosteriorHead)
    assert not model.denoiser.with_condition(condition).training
    assert model.train().denoiser.with_condition(condition).training


def test_signal_reaches_distant_positions_without_attention() -> None:
    """What a network is given at a position depends on the place and on the signal elsewhere."""
    torch.manual_seed(0)
    features = SignalFeatures(1, 8)
    peak = torch.zeros(2, 96, 1)
    peak[0, 68] = 1.0
    with torch.no_grad():
        strong, absent = features(peak)
    assert (strong[12] - absent[12]).abs().max() > 1e-3
    assert (absent[12] - absent[40]).abs().max() > 1e-3
    distances = torch.cdist(absent, absent) + torch.eye(96)
    assert distances.min() > 1e-3  # every place has its own features


def test_a_signal_far_away_is_learned() -> None:
    """The token at place 2 of 24 is that which the signal at place 20 says; all others are random."""
    length, place, source = 24, 2, 20

    def draw(seed: int) -> Batch:
        rng = generator(seed)
        tokens = torch.randint(K, (64, length), generator=rng)
        strength = torch.randint(2, (64,), generator=rng)
        tokens[:, place] = strength
        signal = torch.zeros(64, length, 1)
        signal[:, source, 0] = strength.float()
        return Batch.of(tokens, condition=Condition.of(signal=signal), first=64 * seed)

    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=K, length=length, width=32, depth=1, heads=2, signal=1)
    batches = [draw(seed) for seed in range(120)]
    list(ls.fit(model, batches, steps=120, optim=ls.OptimizerConfig(lr=5e-3, warmup=10)))
    test = draw(999)
    assert test.condition is not None and test.condition.signal is not None
    wrong = torch.zeros_like(test.condition.signal)
    wrong[:, source] = 1 - test.condition.signal[:, source]
    model.eval()
    right_nats, wrong_nats = (
        model.nelbo(test.tokens, generator(3), draws=4, condition=condition).total.mean()
        for condition in (test.condition, Condition.of(signal=wrong))
    )
    assert right_nats < wrong_nats - 0.5
