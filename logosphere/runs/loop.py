"""The resumable training of a run: train, validate, save; events are yielded, and a stopped run continues exactly."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch.distributed as dist

from logosphere.allocator import release_if_scarce
from logosphere.data.batches import eval_batches, find_task, train_batches
from logosphere.data.corpus import Corpus, Examples
from logosphere.data.streaming import StreamBatches
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import Reconstruction
from logosphere.evaluation.report import Report, evaluate
from logosphere.model import Model
from logosphere.networks.compilation import compile_blocks
from logosphere.networks.convolution import UNetStage
from logosphere.networks.precision import precision_name
from logosphere.networks.published.denoiser import open_attention
from logosphere.networks.published.lora import trained_state
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.pretrained.hashes import write_hashed
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import initial_model, stacks_of_blocks
from logosphere.runs.run import BEST, SHORT, Run
from logosphere.runs.stage_budgets import Elapsed, Stages
from logosphere.training.checkpoint import (
    checkpoint_of,
    dump_batch,
    latest,
    load_checkpoint,
    newest,
    save_checkpoint,
    saved_already,
    use_deterministic,
)
from logosphere.training.stages import begin_second_stage
from logosphere.training.trainer import Diverged, Progress, Trainer, sharding
from logosphere.types import Batch

if TYPE_CHECKING:
    from logosphere.training.sharded import ShardedSave

SAVE_SECONDS = 300.0
"""A checkpoint is saved at least this often."""
VALIDATION_DRAWS = 4


@dataclass(frozen=True)
class StepTaken:
    """A step was taken."""

    progress: Progress
    done: float
    """Fraction of the whole training, by steps or by time, whichever is further."""


@dataclass(frozen=True)
class Validated:
    """The bound was measured on the validation split."""

    step: int
    report: Report


@dataclass(frozen=True)
class Saved:
    """Everything up to this step is on disk."""

    step: int


@dataclass(frozen=True)
class AutoencoderTrained:
    """The autoencoder of a latent system is trained and saved in the folder of the run."""

    step: int
    cpu_seconds: float
    reached: Reconstruction
    """Its reconstruction of the validation split."""


Event = StepTaken | Validated | Saved | AutoencoderTrained


def run_training(
    run: Run,
    corpus: Corpus,
    should_stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup = SINGLE,
    model: Model | None = None,
) -> Iterator[Event]:
    """Train the run in its folder to its end, from its last checkpoint if there is one, and yield events.

    When `should_stop` returns True, the current step is finished and saved, and the iterator ends. All processes of a
    group run this: they see the same events, and the main process writes. `model` is the initial model, where the
    caller has it already.
    """
    with use_deterministic(run.config.deterministic):
        session = _Session(run, corpus, group, model or initial_model(run, corpus))
        trainer, config = session.trainer, session.config
        if config.begin is not None and not session.resumed:  # the bound that the training starts from
            yield session.validate()
        done = session.done()
        yield from session.finish_stage_one()  # where a training was killed between its checkpoint and this
        if done >= 1 or session.ended_early:  # nothing is left to train, but the caller needs the report
            yield Validated(trainer.step, validate(config, trainer, corpus, group))
        while done < 1 and not session.ended_early:
            if group.all_reduce(should_stop())[0]:
                yield from session.save(wait=True)
                return
            before, cpu = done, time.process_time()
            batch = session.batch(trainer.step)
            open_attention(session.model, done)
            try:
                progress = trainer.train_step(batch, done, session.stage())
            except Diverged as problem:
                dump_batch(run.bad_batch_path(trainer.step + 1, group.rank), batch)
                if trainer.all_finite():
                    yield from session.save(wait=True)
                raise Diverged(f"{problem} {_describe_saved(run, trainer)}, with the batch.") from None
            session.elapsed = session.elapsed.add(progress.seconds, time.process_time() - cpu, group)
            done = session.done()
            if group.is_main:
                run.log(_metrics(progress, session.elapsed, corpus.tokenizer.unit))
            release_if_scarce()
            yield StepTaken(progress, min(done, 1.0))
            yield from session.finish_stage_one()
            done = session.done()  # a stage that has just begun is a part of its own
            if int(before * config.validations) < int(min(done, 1.0) * config.validations):
                yield session.validate()
                yield from session.save(wait=done >= 1 or session.ended_early)
            elif session.elapsed.seconds - session.last_save > SAVE_SECONDS:
                yield from session.save(wait=False)
            else:
                yield from session.finished_saves(wait=False)


class _Session:
    """The part of one process in a training: the trainer, its data, its checkpoints and the time it has taken."""

    def __init__(self, run: Run, corpus: Corpus, group: ProcessGroup, model: Model):
        self.run, self.corpus, self.group, self.model, self.config = run, corpus, group, model, run.config
        config = self.config
        _check_corpus(run, corpus)
        if config.batch < group.size * config.accumulate and group.size > 1:
            raise UserError(
                f"A batch of {config.batch} cannot be shared by {group.size} processes in {config.accumulate} parts "
                "each; use a larger --batch or fewer processes."
            )
        # Runs name their precision since "auto" can be bfloat16 on a CPU; those before were float32 there.
        auto = "float32" if model.device.type == "cpu" else "auto"
        self.trainer = Trainer(
            model, optim=config.optim, ema=config.ema, seed=config.seed, accumulate=config.accumulate,
            precision=auto if config.precision == "auto" else config.precision, cond_dropout=config.cond_dropout,
            draws=config.draws, group=group, sharded=config.shard, steps=config.steps or 0,
        )  # fmt: skip
        self.elapsed, self.best, self.waited = Elapsed(), float("inf"), 0
        self.stages = Stages(model, run, config)
        group.on_main(run.clean_temporary)
        self.checkpoints = CheckpointManager(run, self.trainer, sharded=config.shard)
        saved = self.checkpoints.resume()
        self.resumed = saved is not None
        if saved is not None:
            self.elapsed, self.best = Elapsed.read(saved), saved["best"]
            self.waited = int(saved.get("waited", 0))
        if config.compile:
            for stack in stacks_of_blocks(model):
                compile_blocks(
                    stack.blocks, None if isinstance(stack, UNetStage) else getattr(stack, "length", model.length)
                )
        group.on_main(lambda: _precompute(model, config, corpus))  # the others then find it done
        _precompute(model, config, corpus)
        group.on_main(lambda: run.truncate_metrics(self.trainer.step if self.resumed else -1))
        self.batches = train_batches(
            corpus.train, config.length, config.batch, config.seed, config.order, pack=config.pack
        )
        if isinstance(self.batches, StreamBatches) and self.trainer.step > 0:
            self.batches.seek(self.trainer.position)
        self.rows, self.task = group.local_slice(config.batch), find_task(config.task)
        self.last_save = self.elapsed.seconds

    def done(self) -> float:
        """The fraction of the training that is done."""
        return self.elapsed.done(self.config, self.trainer.step, self.stages.fraction)

    def stage(self) -> tuple[int, float]:
        """The steps before the current stage and its own completed fraction, where stages have budgets of their own."""
        if not self.stages.own:
            return 0, -1.0
        return self.elapsed.first_steps, self.elapsed.stage_done(self.config, self.trainer.step)

    def finish_stage_one(self) -> Iterator[AutoencoderTrained]:
        """At the end of the first stage: measure and save the autoencoder, and begin the budget of the second."""
        step, stages = self.trainer.step, self.stages
        if not stages.ends(self.elapsed, self.config, step):
            return
        if stages.own:
            self.elapsed = self.elapsed.end_stage_one(step)
            begin_second_stage(self.model)
        reached = stages.save(self.run, self.trainer, self.corpus, self.config, self.elapsed.cpu_seconds)
        yield AutoencoderTrained(step, self.elapsed.cpu_seconds, reached)

    @property
    def ended_early(self) -> bool:
        """Whether the bound has not improved for as many validations as the configuration waits."""
        return self.config.patience is not None and self.waited >= self.config.patience

    def batch(self, step: int) -> Batch:
        """The part of this process of the batch of a step."""
        return self.task.apply(self.batches.at(step, self.rows), self.config.seed)

    def validate(self) -> Validated:
        """Measure the bound, log it, and save the weights if they are the best so far."""
        report = validate(self.config, self.trainer, self.corpus, self.group)
        metrics = self.model.metrics()  # by all processes: each may hold a shard of the weights only
        if self.group.is_main:
            bits: dict[str, object] = {f"val/{SHORT[unit]}": value for unit, (value, _) in report.in_units().items()}
            bits |= {"val/error": report.error, "val/kind": report.kind}
            self.run.log({"step": self.trainer.step} | bits | metrics)
        self.waited += 1
        if report.bits < self.best:
            self.best, self.waited = report.bits, 0
            _save_best(self.run, self.trainer)
        return Validated(self.trainer.step, report)

    def save(self, *, wait: bool) -> Iterator[Saved]:
        """Save a checkpoint; with `wait` it is complete before this returns."""
        yield from self.finished_saves(wait=True)
        if not self.trainer.all_finite():  # the checkpoint that this would replace is better
            raise Diverged(
                f"The weights are no longer finite after step {self.trainer.step}; try a smaller learning rate "
                f"(--optim.lr) or a longer warm-up (--optim.warmup). {_describe_saved(self.run, self.trainer)}."
            )
        if isinstance(self.batches, StreamBatches):
            self.trainer.position = self.batches.position(self.trainer.step)
        waited = {} if self.config.patience is None else {"waited": self.waited}
        self.checkpoints.begin({**vars(self.elapsed), "best": self.best, **waited})
        self.last_save = self.elapsed.seconds
        yield from self.finished_saves(wait=wait)

    def finished_saves(self, *, wait: bool) -> Iterator[Saved]:
        """The event of a checkpoint that has become complete, if any."""
        if (step := self.checkpoints.done(wait=wait)) is not None:
            yield Saved(step)


def _describe_saved(run: Run, trainer: Trainer) -> str:
    """What a diverged training has left on disk."""
    checkpoint = newest(run.state)
    if checkpoint is None:
        return f"Nothing was saved before in {run.path}"
    if checkpoint == checkpoint_of(run.state, trainer.step):
        return f"The weights before that step are in {run.path}"
    return f"The last finite checkpoint, {checkpoint.name}, is in {run.path}"


def _save_best(run: Run, trainer: Trainer) -> None:
    """Write the weights that are evaluated and sampled."""
    model = trainer.model
    shards = trained_state(model) if trainer.ema is None else trainer.ema.tensors(model)
    weights = {name: trainer.objective.full_tensor(tensor) for name, tensor in shards.items()}
    trainer.group.on_main(lambda: write_hashed(run.path, BEST, weights))


def _precompute(model: Model, config: TrainConfig, corpus: Corpus) -> None:
    """Precompute what depends on examples alone: they come again in every epoch; crops of a running text do not."""
    examples = corpus.train
    if isinstance(examples, Examples) and isinstance(model.process, AutoencoderStage):
        origin = f"{corpus.sha256[:24]}-{corpus.tokenizer.fingerprint[:24]}"
        model.process.precompute(lambda: examples.padded_rows(config.length), origin)


def validate(config: TrainConfig, trainer: Trainer, corpus: Corpus, group: ProcessGroup = SINGLE) -> Report:
    """The bound of the averaged weights on the validation split."""
    batches = eval_batches(corpus.valid, config.length, config.batch, config.validation_sequences)
    with trainer.ema.applied() if trainer.ema is not None else nullcontext():
        return evaluate(
            trainer.model, batches, draws=VALIDATION_DRAWS, rng=config.seed, name=config.system,
            corpus=corpus, split="valid", precision=precision_name(trainer.precision),
            group=group,
        )  # fmt: skip


def _metrics(progress: Progress, elapsed: Elapsed, unit: str) -> dict[str, float | int | str | bool]:
    return {
        "step": progress.step,
        "train/loss": progress.loss,
        f"train/{SHORT[unit]}": progress.nats / 0.6931471805599453,
        "lr": progress.lr,
        "gradient": progress.gradient,
        "tokens": progress.tokens,
        "seconds": round(elapsed.seconds, 3),
        "cpu_seconds": round(elapsed.cpu_seconds, 3),
        **({"skipped": True} if progress.skipped else {}),
    }


def _check_corpus(run: Run, corpus: Corpus) -> None:
    made_with = run.content.get("corpus", {})
    if made_with.get("sha256") != corpus.sha256 or made_with.get("tokenizer") != corpus.tokenizer.fingerprint:
        raise UserError(
            f"The text has changed since the run in {run.path} began; restore it, or start anew with another --out."
        )


class CheckpointManager:
    """Saves a training in the folder of its run: at once, or shard by shard while training continues."""

    def __init__(self, run: Run, trainer: Trainer, *, sharded: bool):
        self.run, self.trainer, self.group = run, trainer, trainer.group
        self.shards: ModuleType | None = sharding() if sharded else None  # fails here rather than at the first save
        self.underway: "ShardedSave | None" = None
        self.finished: int | None = None
        self.save_group = dist.new_group(backend="gloo") if sharded and self.group.size > 1 else None

    def resume(self) -> dict[str, float] | None:
        """Load the latest checkpoint; the other numbers saved with it, or None where there is none."""
        checkpoint = latest(self.run.state)
        if checkpoint is None:
            return None
        rest = (load_checkpoint if self.shards is None else self.shards.load_sharded)(checkpoint, self.trainer)
        if missing := sorted({"seconds", "cpu_seconds", "best"} - rest.keys()):
            raise UserError(f"{checkpoint} has no entry '{missing[0]}'; restore it from a copy.")
        self.group.on_main(lambda: self.run.link_latest(checkpoint))
        return rest

    def begin(self, extra: dict[str, object]) -> None:
        """Save the training as it is now; the previous save must be finished."""
        assert self.underway is None
        state, step = self.run.state, self.trainer.step
        if self.shards is None:
            self.group.on_main(lambda: self._publish(save_checkpoint(state, self.trainer, extra)))
            self.finished = step
        elif self.group.all_reduce(saved_already(state, step) is not None)[0] == self.group.size:
            self.finished = step
        else:
            self.underway = self.shards.ShardedSave(state, self.trainer, extra, self.save_group)

    def done(self, *, wait: bool) -> int | None:
        """The step whose checkpoint has become complete since the last call, if any."""
        if self.underway is not None and (wait or self.underway.written()):
            checkpoint = self.underway.finish()
            self.group.on_main(lambda: self._publish(checkpoint))
            self.finished, self.underway = self.underway.step, None
        step, self.finished = self.finished, None
        return step

    def _publish(self, checkpoint: Path) -> None:
        self.run.sync_metrics()
        self.run.link_latest(checkpoint)
