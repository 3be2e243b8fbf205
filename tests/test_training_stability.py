"""Training stability: non-finite losses stop a run and dump the batch, gradient spikes are skipped, determinism."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_helpers import metrics_without_times, stop_after, tensor_bytes
from tiny_run import RECIPE
from toy_models import random_network
from training_helpers import LANGUAGE, QUICK, batches

from logosphere.data.batches import Crops
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.io import read_tensors
from logosphere.runs.create import create_run
from logosphere.runs.loop import run_training
from logosphere.runs.run import Run
from logosphere.training.checkpoint import latest
from logosphere.training.optimizer import OptimizerConfig
from logosphere.training.trainer import Diverged, Progress, Trainer
from logosphere.types import Batch


def test_the_batch_of_a_divergence_is_saved(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(replace(RECIPE, optim=OptimizerConfig(lr=1e30, warmup=0)), corpus, tmp_path / "run")
    with pytest.raises(Diverged, match="with the batch"):
        list(run_training(run, corpus))
    (saved,) = run.path.glob("broke-*.safetensors")
    step = int(saved.name.split("-")[2]) - 1
    batch = Crops(corpus.train, RECIPE.length, RECIPE.batch, RECIPE.seed).at(step)
    tensors = read_tensors(saved)
    assert torch.equal(tensors["tokens"], batch.tokens) and torch.equal(tensors["ids"], batch.ids)


def test_a_gradient_spike_is_skipped() -> None:
    """A step with an exploding gradient is skipped and changes neither weights nor averages."""
    trainer = Trainer(random_network("mdlm", LANGUAGE), optim=replace(QUICK, grad_spike_factor=5.0), ema=0.9)
    given = batches()
    normal_steps = [trainer.train_step(Batch.of(next(given)), 0.0) for _ in range(6)]
    assert not any(progress.skipped for progress in normal_steps)
    before = [weight.detach().clone() for weight in [*trainer.parameters, *trainer.ema.shadow]]
    norm_before = trainer.grad_norm_ema
    trainer.grad_norm_ema /= 100  # equivalent to a gradient a hundred times larger
    assert trainer.train_step(Batch.of(next(given)), 0.0).skipped and trainer.step == 7
    after = [*trainer.parameters, *trainer.ema.shadow]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    trainer.grad_norm_ema = norm_before
    assert not trainer.train_step(Batch.of(next(given)), 0.0).skipped
    with pytest.raises(UserError, match="above 1"):
        OptimizerConfig(grad_spike_factor=0.5)


def test_a_skipped_step_leaves_empty_accumulators() -> None:
    """Statistics of a skipped step are in no checkpoint, so a resumed run would differ otherwise."""
    trainer = Trainer(random_network("rdlm", LANGUAGE), optim=replace(QUICK, grad_spike_factor=5.0, warmup=2))
    given = batches()
    for _ in range(4):
        trainer.train_step(Batch.of(next(given)), 0.0)
    trainer.grad_norm_ema /= 100
    assert trainer.train_step(Batch.of(next(given)), 0.0).skipped
    accumulators = trainer.model.process.accumulators()
    assert accumulators and not any(bool(buffer.any()) for buffer in accumulators)


@pytest.mark.parametrize("shard", [False, True])
def test_non_finite_weights_never_replace_a_checkpoint(shard: bool, corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(replace(RECIPE, shard=shard, steps=20, validations=2), corpus, tmp_path / "run")
    list(run_training(run, corpus, stop_after(4)))
    train_step = Trainer.train_step
    for step in (5, 10):  # detected by the loss of the next step, or before a checkpoint is written
        broken: list[Trainer] = []

        def break_weights(
            trainer: Trainer,
            batch: Batch,
            done: float,
            stage: tuple[int, float],
            step: int = step,
            seen: list[Trainer] = broken,
        ) -> Progress:
            progress = train_step(trainer, batch, done, stage)
            if trainer.step == step:
                seen.append(trainer)
                trainer.parameters[0].data.fill_(torch.nan)
            return progress

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Diverged, match="checkpoint, step-00000004, is in"):
            patch.setattr(Trainer, "train_step", break_weights)
            list(run_training(Run(run.path), corpus))
        assert broken and latest(run.state) == run.state / "step-00000004"
    assert not [event for event in run_training(Run(run.path), corpus) if isinstance(event, Diverged)]
    assert latest(run.state) == run.state / "step-00000020"


def test_the_average_gradient_norm_survives_resuming(corpus: Corpus, tmp_path: Path) -> None:
    recipe = replace(RECIPE, optim=replace(RECIPE.optim, grad_spike_factor=1.01))
    uninterrupted, resumed = (create_run(recipe, corpus, tmp_path / name) for name in ("straight", "broken"))
    list(run_training(uninterrupted, corpus))
    for steps in (5, 99):
        list(run_training(Run(resumed.path), corpus, stop_after(steps)))
    assert metrics_without_times(uninterrupted) == metrics_without_times(resumed)
    assert any(line.get("skipped") for line in uninterrupted.metrics()), (
        "the limit is so low that some steps are skipped"
    )


def test_deterministic_mode_is_enabled_during_training_only(corpus: Corpus, tmp_path: Path) -> None:
    plain, strict = create_run(RECIPE, corpus, tmp_path / "plain"), replace(RECIPE, deterministic=True)
    list(run_training(plain, corpus))
    run = create_run(strict, corpus, tmp_path / "strict")
    for _ in run_training(run, corpus):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert tensor_bytes(run.path / "model.safetensors") == tensor_bytes(plain.path / "model.safetensors")
