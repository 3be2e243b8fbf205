"""The checkpoints of a run: written one at a time, and reported as saved only when they are complete."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from logosphere.errors import UserError
from logosphere.runs.run import Run
from logosphere.training.checkpoint import latest, load_checkpoint, save_checkpoint, saved_already
from logosphere.training.trainer import Trainer

if TYPE_CHECKING:
    from logosphere.training.sharded import ShardedSave


class CheckpointManager:
    """Writes a training into the folder of its run: at once, or shard by shard while training goes on."""

    def __init__(self, run: Run, trainer: Trainer, *, sharded: bool):
        self.run, self.trainer, self.sharded = run, trainer, sharded
        self.group = trainer.group
        self.underway: "ShardedSave | None" = None
        if sharded:
            _check_library()  # before anything is trained that could not be saved
        self.finished: int | None = None
        self.save_group: Any = dist.new_group(backend="gloo") if sharded and self.group.size > 1 else None

    def resume(self) -> dict[str, float] | None:
        """Take up the latest checkpoint; what else was saved with it, or None where there is none."""
        checkpoint = latest(self.run.state)
        if checkpoint is None:
            return None
        if self.sharded:
            from logosphere.training.sharded import load_sharded  # slow to load, and seldom used

            rest = load_sharded(checkpoint, self.trainer)
        else:
            rest = load_checkpoint(checkpoint, self.trainer)
        if missing := sorted({"seconds", "cpu_seconds", "best"} - rest.keys()):
            raise UserError(f"{checkpoint} does not say {missing[0]}; restore it from a copy.")
        self.group.on_main(lambda: self.run.link_latest(checkpoint))
        return rest

    def begin(self, extra: dict[str, object]) -> None:
        """Save the training as it is now; the one before must be done."""
        assert self.underway is None
        state = self.run.state
        if not self.sharded:
            self.group.on_main(lambda: self._shown(save_checkpoint(state, self.trainer, extra)))
            self.finished = self.trainer.step
        elif (done := self._already()) is not None:
            self.finished = done
        else:
            from logosphere.training.sharded import ShardedSave

            self.underway = ShardedSave(state, self.trainer, extra, self.save_group)

    def done(self, *, wait: bool) -> int | None:
        """The step whose checkpoint has become whole since the last time, if any."""
        if self.underway is not None and (wait or self.underway.written()):
            checkpoint = self.underway.finish()
            self.group.on_main(lambda: self._shown(checkpoint))
            self.finished, self.underway = self.underway.step, None
        step, self.finished = self.finished, None
        return step

    def _already(self) -> int | None:
        found = self.group.all_reduce(saved_already(self.run.state, self.trainer.step) is not None)[0]
        return self.trainer.step if found == self.group.size else None

    def _shown(self, checkpoint: Path) -> None:
        self.run.sync_metrics()
        self.run.link_latest(checkpoint)


def _check_library() -> None:
    """Can torch write shares as safetensors?"""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        able = "save_distributed" in inspect.signature(HuggingFaceStorageWriter).parameters
    except ImportError:
        able = False
    if not able:
        raise UserError(
            f"torch {torch.__version__} cannot save shares as safetensors; get a newer one, or leave out --shard."
        )
