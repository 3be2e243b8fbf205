"""The remasker of G-Star: it learns which tokens are wrong, and the denoiser stays frozen."""

import math
from itertools import repeat

import pytest
import torch
from toy_languages import generator, sticky_chain
from toy_models import SMALL, fill_zero_weights, random_network

import logosphere as ls
from logosphere.errors import UserError
from logosphere.training.auxiliary import resample
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch

LANGUAGE = sticky_chain(4, 8, stay=0.97)


def train_remasker(steps: int = 80, seed: int = 0) -> tuple[ls.Model, list]:
    model = random_network("g-star", LANGUAGE)
    torch.nn.init.zeros_(model.remasker.head.weight)
    batches = (LANGUAGE.sample(64, generator(i)) for i in range(steps))
    return model, list(
        ls.train_remasker(model, batches, steps=steps, optim=OptimizerConfig(lr=5e-3, warmup=5), seed=seed)
    )


def test_the_remasker_beats_the_error_rate_baseline() -> None:
    """The language has runs of equal tokens, in which a wrong token is easy to detect."""
    model, steps = train_remasker()
    wrong = sum(step.wrong for step in steps[-20:]) / 20
    baseline = -wrong * math.log(wrong) - (1 - wrong) * math.log(1 - wrong)
    assert sum(step.loss for step in steps[-20:]) / 20 < 0.8 * baseline
    text = torch.tensor([[2, 2, 2, 0, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 3, 1]])
    assert torch.equal(model.remasker(text).argmax(1), torch.tensor([3, 6]))


def test_the_denoiser_is_frozen_and_training_depends_on_the_seed() -> None:
    before = random_network("g-star", LANGUAGE).denoiser.state_dict()
    (one, _), (same, _), (other, _) = train_remasker(3), train_remasker(3), train_remasker(3, seed=1)
    for name, weight in one.denoiser.state_dict().items():
        assert torch.equal(weight, before[name])
    weights = [model.remasker.head.weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_resampling_uses_the_condition() -> None:
    torch.manual_seed(0)
    model = ls.build("g-star", vocab_size=5, length=8, labels=2, width=16, depth=1, heads=1).eval()
    for parameter in model.denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens = torch.zeros(200, 8, dtype=torch.long)
    texts = []
    for label in (0, 1):
        batch = ls.Batch.of(tokens, condition=ls.Condition.of(labels=torch.full((200,), label)))
        texts.append(resample(model, batch, torch.Generator().manual_seed(1)))
    assert not torch.equal(*texts)


def test_known_tokens_are_never_resampled() -> None:
    model, tokens = random_network("g-star", LANGUAGE), LANGUAGE.sample(50, generator(1))
    known = torch.rand(tokens.shape, generator=generator(2)) < 0.5
    resampled = resample(model, Batch.of(tokens, known), generator(3))
    assert torch.equal(resampled[known], tokens[known]) and not torch.equal(resampled, tokens) and resampled.max() < 4


def test_a_trained_mdlm_gets_a_remasker_and_is_saved_with_it(tmp_path) -> None:
    plain = ls.build("mdlm", vocab_size=4, length=8, **SMALL)
    fill_zero_weights(plain)
    model = ls.with_remasker(plain)
    fill_zero_weights(model.remasker)
    model.save(tmp_path)
    again = ls.load(tmp_path)
    assert again.sampler == "g-star"
    text = LANGUAGE.sample(3, generator(1))
    assert torch.equal(again.remasker(text), model.remasker.eval()(text))
    for name, weight in plain.denoiser.state_dict().items():
        assert torch.equal(again.denoiser.state_dict()[name], weight)
    assert torch.equal(ls.sample(again, 4, 8, generator(2)), ls.sample(model, 4, 8, generator(2)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: list(ls.train_remasker(random_network("mdlm", LANGUAGE), [], steps=1)), "g-star"),
        (lambda: list(ls.train_remasker(random_network("g-star", LANGUAGE), [], steps=1)), "data ended"),
        (lambda: ls.with_remasker(random_network("d3pm-uniform", LANGUAGE)), "mdlm"),
        (lambda: ls.build("g-star", vocab_size=4, length=8, depth=2, remasker_depth=3), "1 to 2"),
    ],
)
def test_invalid_calls_are_refused(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_training_accepts_batch_objects() -> None:
    batch = Batch.of(LANGUAGE.sample(4, generator(1)))
    assert len(list(ls.train_remasker(random_network("g-star", LANGUAGE), repeat(batch), steps=2))) == 2
