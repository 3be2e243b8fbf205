"""How much of a training is done, and the stages of latent systems: their budgets, and what the first one leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import Reconstruction
from logosphere.model import Model
from logosphere.parallel.process_group import ProcessGroup
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run
from logosphere.training.stages import CARD, measure_stage_one, overall, save_autoencoder
from logosphere.training.trainer import Trainer


@dataclass(frozen=True)
class Elapsed:
    """Time spent on training steps, over all resumptions, and the part of it that was a stage with its own budget."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    first_steps: int = 0
    first_seconds: float = 0.0
    first_cpu_seconds: float = 0.0

    @staticmethod
    def read(saved: Mapping[str, Any]) -> "Elapsed":
        """The time in a checkpoint; those before there were stages have two entries."""
        first, cpu_first = float(saved.get("first_seconds", 0.0)), float(saved.get("first_cpu_seconds", 0.0))
        steps = int(saved.get("first_steps", 0))
        return Elapsed(float(saved["seconds"]), float(saved["cpu_seconds"]), steps, first, cpu_first)

    def add(self, seconds: float, cpu_seconds: float, group: ProcessGroup) -> "Elapsed":
        """The time after a step, the same in every process: wall time of the main process, processor time of all."""
        spent, busy = group.all_reduce(seconds if group.is_main else 0.0, cpu_seconds)
        return replace(self, seconds=self.seconds + spent, cpu_seconds=self.cpu_seconds + busy)

    def end_stage_one(self, step: int) -> "Elapsed":
        """The budget of the second stage begins here."""
        return replace(self, first_steps=step, first_seconds=self.seconds, first_cpu_seconds=self.cpu_seconds)

    def in_stage_one(self, config: TrainConfig) -> bool:
        """Whether this is a first stage with a budget of its own."""
        return config.stage_one_minutes is not None and self.first_steps == 0

    def stage_done(self, config: TrainConfig, step: int) -> float:
        """The fraction of the budget that is used up: of the current stage, where stages have their own."""
        if self.in_stage_one(config):
            assert config.stage_one_minutes is not None
            return min(1.0, self.cpu_seconds / (60 * config.stage_one_minutes))
        fractions = []
        if config.steps is not None:
            fractions.append((step - self.first_steps) / config.steps)
        if config.minutes is not None:
            fractions.append((self.seconds - self.first_seconds) / (60 * config.minutes))
        if config.cpu_minutes is not None:
            fractions.append((self.cpu_seconds - self.first_cpu_seconds) / (60 * config.cpu_minutes))
        return max(fractions)

    def done(self, config: TrainConfig, step: int, first_stage: float = 0.5) -> float:
        """The completed fraction of the whole training, of which the first stage is `first_stage`."""
        done = self.stage_done(config, step)
        if config.stage_one_minutes is None and config.autoencoder is None:
            return done
        return overall(first_stage, 1 if self.in_stage_one(config) else 2, done)


class Stages:
    """The stages of a training; systems that are not latent have one."""

    def __init__(self, model: Model, run: Run, config: TrainConfig):
        process = model.process if isinstance(model.process, AutoencoderStage) else None
        check_stages(model, config)
        self.process, self.fraction = process, 0.5 if process is None else process.stage_one
        self.own = config.stage_one_minutes is not None or config.autoencoder is not None
        # An autoencoder that is trained all the time, or that was trained elsewhere, has no end here; of shards none is
        # saved, because no process holds the whole.
        ends = process is not None and not (process.joint or config.shard) and config.autoencoder is None
        self.pending = ends and not (run.path / CARD).exists()

    def ends(self, elapsed: Elapsed, config: TrainConfig, step: int) -> bool:
        """Whether the first stage has just used up its budget."""
        if elapsed.in_stage_one(config):
            return elapsed.stage_done(config, step) >= 1
        # With a common budget its last step is the one after which the process has reached its fraction.
        return self.pending and self.process is not None and float(self.process.progress) >= self.fraction

    def save(
        self, run: Run, trainer: Trainer, corpus: Corpus, config: TrainConfig, cpu_seconds: float
    ) -> Reconstruction:
        """Measure the autoencoder on the validation split and save it in the folder of the run, by the main process."""
        self.pending = False
        texts = eval_batches(corpus.valid, config.length, config.batch, config.validation_sequences)
        reached = measure_stage_one(trainer.model, texts)
        if trainer.group.is_main:
            about = {"name": corpus.name, "sha256": corpus.sha256, "cpu_seconds": round(cpu_seconds, 1)}
            origin = {"tokenizer": corpus.tokenizer.describe(), "corpus": about}
            save_autoencoder(trainer.model, run.path, reached, origin)
            run.log({
                "step": trainer.step, "val/reconstruction": reached.accuracy, "val/reconstruction_error": reached.error,
                "val/reconstructed_texts": reached.exact_match,
            })  # fmt: skip
        return reached


def check_stages(model: Model, config: TrainConfig) -> None:
    """Raise UserError for budgets of stages that a model does not have."""
    named = "autoencoder" if config.autoencoder is not None else "stage-one-minutes"
    if config.autoencoder is None and config.stage_one_minutes is None:
        return
    if not isinstance(model.process, AutoencoderStage):
        raise UserError(f"--{named} is for latent systems: ld4lg, planner, tencdm and cosmos, not {config.system}.")
    if model.process.joint:
        raise UserError(f"With joint=True both stages are one training; leave out --{named}.")
    if config.shard:
        raise UserError(f"--{named} needs whole weights and --shard divides them; leave out one of them.")
