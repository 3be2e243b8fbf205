"""Wrappers of denoisers: logit filters, caching, counting, and the posterior head."""

import pytest
import torch
from torch import Tensor
from toy_languages import generator, skewed_chain
from toy_models import random_network

from logosphere.errors import UserError
from logosphere.networks.base import Denoiser, PosteriorHead
from logosphere.networks.wrappers import CachedDenoiser, CountedDenoiser, LogitsFilter, NFECounter

LANGUAGE = skewed_chain(5, 6)


class FixedDenoiser(Denoiser):
    """Predicts fixed logits at every position and records the sequences it was evaluated on."""

    def __init__(self, logits: Tensor, reads_time: bool = False):
        super().__init__()
        self.block, self.reads_time, self.logits, self.inputs = 6, reads_time, logits, []

    def forward(self, z, t, context, where=None):
        self.inputs.append(z)
        out = self.logits.expand(*z.shape, -1) + z[..., None]  # a shift identifies z without changing the distribution
        return out if where is None else out[where]


def evaluate(denoiser: Denoiser, z: Tensor, where: Tensor | None = None) -> Tensor:
    return denoiser(z, torch.ones(z.shape), z, where)


P = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
Z = torch.zeros(2, 6).long()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_raises_probabilities_to_a_power(temperature: float) -> None:
    sharp = evaluate(LogitsFilter(FixedDenoiser(P.log()), temperature), Z).softmax(-1)
    power = P ** (1 / temperature)
    torch.testing.assert_close(sharp[0, 0], power / power.sum())


@pytest.mark.parametrize(
    "top_p, kept", [(0.01, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.94, 4), (0.96, 5), (1.0, 5)]
)
def test_top_p_keeps_the_smallest_sufficient_set(top_p: float, kept: int) -> None:
    order = torch.tensor([3, 0, 4, 1, 2])  # the order of the tokens must not matter
    shuffled = P[order]
    nucleus = evaluate(LogitsFilter(FixedDenoiser(shuffled.log()), top_p=top_p), Z).softmax(-1)[0, 0]
    expected = torch.where(shuffled >= P[kept - 1], shuffled, 0.0)
    torch.testing.assert_close(nucleus, expected / expected.sum())


@pytest.mark.parametrize("top_k, kept", [(1, 1), (3, 3), (5, 5), (9, 5)])
def test_top_k_keeps_the_likeliest_tokens(top_k: int, kept: int) -> None:
    out = evaluate(LogitsFilter(FixedDenoiser(P.flip(0).log()), top_k=top_k), Z).softmax(-1)[0, 0]
    torch.testing.assert_close(out.flip(0)[:kept], P[:kept] / P[:kept].sum())
    assert out.flip(0)[kept:].eq(0).all()


@pytest.mark.parametrize("min_p, kept", [(0.0, 5), (0.2, 4), (0.3, 3), (0.7, 2), (0.8, 1), (1.0, 1)])
def test_min_p_keeps_tokens_relative_to_the_likeliest(min_p: float, kept: int) -> None:
    assert evaluate(LogitsFilter(FixedDenoiser(P.log()), min_p=min_p), Z).isfinite().sum(-1).eq(kept).all()


def test_temperature_is_applied_before_top_p() -> None:
    """At temperature 1/2 the two likeliest tokens have probability 0.87 instead of 0.7."""
    kept = evaluate(LogitsFilter(FixedDenoiser(P.log()), 0.5, 0.8), Z).isfinite().sum(-1)
    assert kept.eq(2).all()


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_p": -0.1},
        {"min_p": 1.1},
    ],
)
def test_invalid_filters_are_refused(setting: dict) -> None:
    with pytest.raises(UserError):
        LogitsFilter(FixedDenoiser(P.log()), **setting)


def test_caching_evaluates_only_changed_sequences() -> None:
    inner = FixedDenoiser(P.log())
    cached = CachedDenoiser(inner)
    z = torch.arange(3)[:, None].expand(3, 6)
    moved = z.clone()
    moved[1, 4] = 4
    where = torch.zeros(3, 6).bool()
    where[1, 4] = where[2, 0] = True
    for state in (z, z, moved, moved, z):
        assert torch.equal(evaluate(cached, state, where), evaluate(FixedDenoiser(P.log()), state, where))
    assert [len(rows) for rows in inner.inputs] == [3, 1, 1]
    assert torch.equal(inner.inputs[1], moved[1:2])


def test_caching_refuses_time_conditional_networks() -> None:
    with pytest.raises(UserError, match="time"):
        CachedDenoiser(FixedDenoiser(P.log(), reads_time=True))


def test_counting_is_per_sequence() -> None:
    counter = NFECounter()
    counted = CountedDenoiser(FixedDenoiser(P.log()), counter)
    for n in (3, 1, 5):
        evaluate(counted, torch.zeros(n, 6).long())
    assert counter.sequences == 9


@pytest.mark.parametrize("wrap", [LogitsFilter, CachedDenoiser, lambda inner: CountedDenoiser(inner, NFECounter())])
def test_wrappers_with_neutral_settings_keep_predictions(wrap) -> None:
    inner = random_network("mdlm", LANGUAGE).denoiser.requires_grad_(False)
    z = torch.randint(6, (4, 6), generator=generator(1))
    where = torch.rand(4, 6, generator=generator(2)) < 0.5
    torch.testing.assert_close(evaluate(wrap(inner), z, where), evaluate(inner, z, where))
    assert wrap(inner).block == inner.block and wrap(inner).reads_time == inner.reads_time


@pytest.mark.parametrize("name", ["mdlm", "d3pm-uniform"])
def test_the_posterior_head_adds_the_log_likelihood(name: str) -> None:
    model = random_network(name, LANGUAGE).requires_grad_(False)
    head = model.denoiser
    assert isinstance(head, PosteriorHead)
    z = LANGUAGE.sample(4, generator(3))
    t = torch.full(z.shape, 0.3)
    plain = head.inner(z, t, z)
    torch.testing.assert_close(head(z, t, z), plain + model.process.log_likelihood(z, t))
    where = torch.rand(z.shape, generator=generator(4)) < 0.5
    torch.testing.assert_close(head(z, t, z, where), head(z, t, z)[where])
    assert torch.equal(head(z, torch.zeros_like(t), z).argmax(-1), z)
