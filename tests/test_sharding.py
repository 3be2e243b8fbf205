"""Sharded weights: the steps equal those of one process, checkpoints can be read by any number of processes, and
exported weights are complete.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed_helpers import run_in_processes
from run_helpers import LOW_RATE, metric_values, stop_after, tensor_bytes

import logosphere as ls
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.runs.create import create_run
from logosphere.runs.loop import Saved, run_training
from logosphere.runs.run import Run
from logosphere.training.trainer import Trainer

SHARDED = replace(LOW_RATE, shard=True, accumulate=2, recompute=True, batch=8)


@pytest.mark.slow
def test_sharded_training_takes_the_steps_of_one_process(corpus: Corpus, tmp_path: Path) -> None:
    """Two processes start, three continue and one finishes, with EMA, moments, accumulation and recomputation."""
    single = create_run(replace(SHARDED, shard=False, accumulate=1, recompute=False), corpus, tmp_path / "alone")
    list(run_training(single, corpus))
    run = create_run(SHARDED, corpus, tmp_path / "run")

    def train_for(steps: int):
        def work(group: ProcessGroup) -> list[int]:
            events = run_training(Run(run.path), corpus, stop_after(steps), group)
            return [event.step for event in events if isinstance(event, Saved)]

        return work

    saved = run_in_processes(2, train_for(3), tmp_path / "begun")
    assert saved == [[3], [3]]
    continued = run_in_processes(3, train_for(3), tmp_path / "middle")
    assert all(steps[-1] == 6 for steps in continued)
    list(run_training(Run(run.path), corpus))
    assert len(list((run.state / "step-00000008" / "shards").glob("*.safetensors"))) == 1
    for key in ("train/loss", "val/bpc", "gradient"):
        assert metric_values(run, key) == pytest.approx(metric_values(single, key), rel=1e-5), key
    expected = single.model("ema").state_dict()
    for key, tensor in run.model("ema").state_dict().items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["diffusion-lm", "gaussian-ce", "ld4lg"])
def test_sharded_embeddings_and_autoencoders_resume(system: str, corpus: Corpus, tmp_path: Path) -> None:
    """Metrics of embeddings are those of unsharded ones; in the first of two stages the path has no moments."""
    recipe = replace(LOW_RATE, system=system, task="unconditional", shard=True, steps=4)
    run, single = create_run(recipe, corpus, tmp_path / "run"), create_run(recipe, corpus, tmp_path / "alone")
    run_in_processes(
        2, lambda group: len(list(run_training(Run(run.path), corpus, stop_after(1), group))), tmp_path / "begun"
    )
    run_in_processes(2, lambda group: len(list(run_training(Run(run.path), corpus, group=group))), tmp_path / "ended")
    list(run_training(single, corpus, stop_after(1)))
    list(run_training(Run(single.path), corpus))
    figures = [name for name in single.metrics()[-1] if not name.startswith(("val/bpc", "step")) and "sec" not in name]
    for name in ("val/bpc", *(name for name in figures if isinstance(single.metrics()[-1][name], float))):
        assert metric_values(run, name) == pytest.approx(metric_values(single, name), rel=1e-4), name


def test_nested_stages_are_sharded(tmp_path: Path) -> None:
    def take_step(group: ProcessGroup) -> float:
        torch.manual_seed(0)
        model = ls.build("mdlm", vocab_size=5, length=64, width=16, depth=1, heads=1, body="unet", shape="8x8")
        trainer = Trainer(model, group=group, sharded=True)
        return trainer.train_step(ls.Batch.of(torch.arange(128).view(2, 64) % 5).select(group.local_slice(2)), 0.5).loss

    single = take_step(SINGLE)
    assert run_in_processes(2, take_step, tmp_path) == pytest.approx([single, single], rel=1e-5)


def test_damaged_shards_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    run = create_run(replace(LOW_RATE, shard=True), corpus, tmp_path / "run")
    list(run_training(run, corpus, stop_after(2)))
    (shard_file,) = (run.state / "step-00000002" / "shards").glob("*.safetensors")
    whole = shard_file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:100], b"", b"\xff" * len(whole)):
        shard_file.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged or belongs"):
            next(run_training(Run(run.path), corpus))
    shard_file.unlink()
    with pytest.raises(UserError, match="damaged or belongs"):
        next(run_training(Run(run.path), corpus))
    shard_file.write_bytes(whole)
    next(run_training(Run(run.path), corpus))


@pytest.mark.parametrize("system", ["mdlm", "d3pm-uniform"])
def test_activation_checkpointing_is_bit_identical(system: str, corpus: Corpus, tmp_path: Path) -> None:
    network = replace(LOW_RATE.network, dropout=0.2)
    plain = replace(LOW_RATE, system=system, steps=3, validations=1, network=network)
    runs = []
    for name, recipe in (("plain", plain), ("anew", replace(plain, recompute=True))):
        runs.append(create_run(recipe, corpus, tmp_path / name))
        list(run_training(runs[-1], corpus))
    assert metric_values(runs[0]) == metric_values(runs[1])
    assert tensor_bytes(runs[0].path / "model.safetensors") == tensor_bytes(runs[1].path / "model.safetensors")
