"""Numbers that go wrong are noticed, kept for a look, or passed over."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from laws import network
from test_parallel import corpus
from test_runs import RECIPE, after, bits, timeless
from test_training import LANGUAGE, QUICK, batches

from logosphere.data.batches import Crops
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.runs.folder import RunFolder
from logosphere.runs.train import start, train
from logosphere.training.checkpoint import latest
from logosphere.training.fit import Diverged, Training
from logosphere.training.optim import Optim
from logosphere.types import Batch
from logosphere.weights import read_tensors

__all__ = ["corpus"]  # a fixture


def test_the_batch_that_broke_a_training_is_kept(corpus: Corpus, tmp_path: Path) -> None:
    run = start(replace(RECIPE, optim=Optim(lr=1e30, warmup=0)), corpus, tmp_path / "run")
    with pytest.raises(Diverged, match="with the batch"):
        list(train(run, corpus))
    (kept,) = run.path.glob("broke-*.safetensors")
    step = int(kept.name.split("-")[2]) - 1
    shown = Crops(corpus.train, RECIPE.length, RECIPE.batch, RECIPE.seed).at(step)
    tensors = read_tensors(kept)
    assert torch.equal(tensors["tokens"], shown.tokens) and torch.equal(tensors["ids"], shown.ids)


def test_a_spike_is_passed_over() -> None:
    """A batch whose weights were blown up: its step is left out, and nothing of it stays in weights or averages."""
    training = Training(network("mdlm", LANGUAGE), optim=replace(QUICK, spike=5.0), ema=0.9)
    given = batches()
    calm = [training.advance(Batch.of(next(given)), 9, 0.0) for _ in range(6)]
    assert not any(progress.skipped for progress in calm)
    before = [weight.detach().clone() for weight in [*training.parameters, *training.averaged.shadow]]
    usual, training.usual = training.usual, training.usual / 100  # the same as a gradient a hundred times larger
    assert training.advance(Batch.of(next(given)), 9, 0.0).skipped and training.step == 7
    after_ = [*training.parameters, *training.averaged.shadow]
    assert all(torch.equal(old, new) for old, new in zip(before, after_, strict=True))
    training.usual = usual
    assert not training.advance(Batch.of(next(given)), 9, 0.0).skipped
    with pytest.raises(UserError, match="above 1"):
        Optim(spike=0.5)


def test_a_step_that_is_passed_over_leaves_nothing_to_be_settled_later() -> None:
    """What was observed in it is in no checkpoint, so a resumed run would go another way."""
    training = Training(network("rdlm", LANGUAGE), optim=replace(QUICK, spike=5.0, warmup=2))
    given = batches()
    for _ in range(4):
        training.advance(Batch.of(next(given)), 9, 0.0)
    training.usual /= 100
    assert training.advance(Batch.of(next(given)), 9, 0.0).skipped
    pending = [buffer for name, buffer in training.model.named_buffers() if name.endswith("pending")]
    assert pending and not any(bool(buffer.any()) for buffer in pending)


@pytest.mark.parametrize("shard", [False, True])
def test_weights_that_are_no_numbers_never_replace_a_checkpoint(shard: bool, corpus: Corpus, tmp_path: Path) -> None:
    run = start(replace(RECIPE, shard=shard, steps=20, validations=2), corpus, tmp_path / "run")
    list(train(run, corpus, after(4)))
    update = Training._update
    for step in (5, 10):  # noticed by the loss of the next step, or when a checkpoint is due
        broken: list[Training] = []

        def spoil(training: Training, *given: object, step: int = step, seen: list[Training] = broken) -> None:
            update(training, *given)
            if training.step == step - 1:
                seen.append(training)
                training.parameters[0].data.fill_(torch.nan)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Diverged, match="sound, step-00000004, is in"):
            patch.setattr(Training, "_update", spoil)
            list(train(RunFolder(run.path), corpus))
        assert broken and latest(run.state) == run.state / "step-00000004"
    assert not [event for event in train(RunFolder(run.path), corpus) if isinstance(event, Diverged)]
    assert latest(run.state) == run.state / "step-00000020"


def test_what_is_usual_survives_a_resume(corpus: Corpus, tmp_path: Path) -> None:
    recipe = replace(RECIPE, optim=replace(RECIPE.optim, spike=1.01))
    straight, broken = (start(recipe, corpus, tmp_path / name) for name in ("straight", "broken"))
    list(train(straight, corpus))
    for steps in (5, 99):
        list(train(RunFolder(broken.path), corpus, after(steps)))
    assert timeless(straight) == timeless(broken)
    assert any(line.get("skipped") for line in straight.metrics()), "the limit is so low that some steps are skipped"


def test_determinism_is_asked_for_and_given_back(corpus: Corpus, tmp_path: Path) -> None:
    plain, strict = start(RECIPE, corpus, tmp_path / "plain"), replace(RECIPE, deterministic=True)
    list(train(plain, corpus))
    run = start(strict, corpus, tmp_path / "strict")
    for _ in train(run, corpus):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert bits(run.path / "model.safetensors") == bits(plain.path / "model.safetensors")
