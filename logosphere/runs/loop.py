"""The resumable training of a run: train, validate, save; events are yielded, and a stopped run continues exactly."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Corpus
from logosphere.data.datasets.examples import Examples
from logosphere.data.splits import check_length
from logosphere.data.streaming import StreamBatches
from logosphere.data.tasks import find_task
from logosphere.errors import UserError
from logosphere.evaluation.report import Report, evaluate
from logosphere.model import Model
from logosphere.networks.backbone import Backbone
from logosphere.networks.convolution import ConvolutionBackbone, UNetStage
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.processes.capabilities import AutoencoderStage
from logosphere.runs.checkpoints import CheckpointManager
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import BEGIN, BEST, SHORT, Run
from logosphere.runs.warm_start import load_parent
from logosphere.systems import build
from logosphere.training.checkpoint import checkpoint_of, latest
from logosphere.training.debug import dump_batch, use_deterministic
from logosphere.training.trainer import Diverged, Progress, Trainer, training_loop
from logosphere.types import Batch
from logosphere.weights import fill, read_tensors, write_tensors

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


Event = StepTaken | Validated | Saved


@dataclass
class Elapsed:
    """Time spent on training steps, over all resumptions."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, seconds: float, cpu_seconds: float, group: ProcessGroup) -> "Elapsed":
        """The time after a step, the same in every process: wall time of the main process, processor time of all."""
        spent, busy = group.all_reduce(seconds if group.is_main else 0.0, cpu_seconds)
        return Elapsed(self.seconds + spent, self.cpu_seconds + busy)

    def done(self, config: TrainConfig, step: int) -> float:
        """The fraction of the budget that is used up."""
        fractions = []
        if config.steps is not None:
            fractions.append(step / config.steps)
        if config.minutes is not None:
            fractions.append(self.seconds / (60 * config.minutes))
        if config.cpu_minutes is not None:
            fractions.append(self.cpu_seconds / (60 * config.cpu_minutes))
        return max(fractions)


def build_model(config: TrainConfig, corpus: Corpus) -> Model:
    """A fresh model for the texts and conditions of a corpus, its weights determined by the seed."""
    size = vars(config.network) | corpus.conditions
    options = config.system_options()
    if clash := sorted(options.keys() & size.keys()):
        raise UserError(f"Set the size of the network with --network.{clash[0]}, not as an option of the system.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build(
            config.system, vocab_size=corpus.tokenizer.size, length=config.length, preset=config.preset,
            **size, **options,
        )  # fmt: skip
    if config.recompute:
        _for_blocks(model, _recompute_activations)
    return model.to(find_device(config.device))


def _recompute_activations(blocks: Backbone | ConvolutionBackbone | UNetStage) -> None:
    blocks.recompute = True


def _for_blocks(model: Model, change: Callable[[Backbone | ConvolutionBackbone | UNetStage], None]) -> None:
    """Apply a change to every stack of blocks of the networks."""
    for module in model.modules():
        if isinstance(module, Backbone | ConvolutionBackbone | UNetStage):
            change(module)


def create_run(config: TrainConfig, corpus: Corpus, path: str | Path) -> Run:
    """Check a configuration against its data and create the folder of its run."""
    return create_run_and_model(config, corpus, path)[0]


def create_run_and_model(config: TrainConfig, corpus: Corpus, path: str | Path) -> tuple[Run, Model]:
    """A new run and its initial model, which need not be built again to train it."""
    for split in (corpus.train, corpus.valid):
        check_length(split, config.length)
    model = build_model(config, corpus)
    batches = train_batches(corpus.train, config.length, config.batch, config.seed, config.order)
    chosen = find_task(config.task)
    if chosen.shortens and (model.block < model.length or not model.process.codec.local or config.network.axes):
        raise UserError(
            f"The task '{config.task}' cuts sequences, which blocks, latents and networks with a shape do not allow; "
            "use another task, or a system such as mdlm."
        )
    model.check_known(chosen.apply(batches.at(0), config.seed).known.to(model.device))
    assert model.spec is not None
    parent = None if config.begin is None else load_parent(config.begin, model, corpus.tokenizer, corpus.labels)
    return Run.create(path, config, model.spec, corpus, parent), model


def initial_model(run: Run, corpus: Corpus) -> Model:
    """The model of a run before its first step; where a checkpoint will replace its weights, they are arbitrary."""
    model = build_model(run.config, corpus)
    if run.config.begin is not None and latest(run.state) is None:
        fill(model, read_tensors(run.path / BEGIN), run.path / BEGIN)
    return model


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
        yield from _Session(run, corpus, group, model or initial_model(run, corpus)).events(should_stop)


class _Session:
    """One process's share of a training: the trainer, its data, its checkpoints and the time it has taken."""

    def __init__(self, run: Run, corpus: Corpus, group: ProcessGroup, model: Model):
        self.run, self.corpus, self.group, self.model, self.config = run, corpus, group, model, run.config
        config = self.config
        _check_corpus(run, corpus)
        _check_group(config, group)
        self.trainer = Trainer(
            model, optim=config.optim, ema=config.ema, seed=config.seed, accumulate=config.accumulate,
            precision=config.precision, withhold=config.withhold, group=group, sharded=config.shard,
            steps=config.steps or 0,
        )  # fmt: skip
        self.elapsed, self.best = Elapsed(), float("inf")
        group.on_main(run.clean_temporary)
        self.checkpoints = CheckpointManager(run, self.trainer, sharded=config.shard)
        saved = self.checkpoints.resume()
        self.resumed = saved is not None
        if saved is not None:
            self.elapsed, self.best = Elapsed(saved["seconds"], saved["cpu_seconds"]), saved["best"]
        if config.compile:  # blocks only: their shapes never change
            _for_blocks(model, lambda blocks: blocks.compile())
        group.on_main(lambda: _precompute(model, config, corpus))  # the others then find it done
        _precompute(model, config, corpus)
        group.on_main(lambda: run.truncate_metrics(self.trainer.step if self.resumed else -1))
        self.batches = train_batches(corpus.train, config.length, config.batch, config.seed, config.order)
        if isinstance(self.batches, StreamBatches) and self.trainer.step > 0:
            self.batches.seek(self.trainer.position)
        self.rows, self.task = group.local_slice(config.batch), find_task(config.task)
        self.last_save = self.elapsed.seconds

    def events(self, should_stop: Callable[[], bool]) -> Iterator[Event]:
        trainer, config = self.trainer, self.config
        if config.begin is not None and not self.resumed:  # the bound that the training starts from
            yield self._validate()
        if self._done() >= 1:  # nothing is left to train, but the result is still wanted
            yield Validated(trainer.step, validate(config, trainer, self.corpus, self.group))
        steps = training_loop(trainer, self._batch, self._done)
        while self._done() < 1:
            if self.group.all_reduce(should_stop())[0]:
                yield from self._save(wait=True)
                return
            before, cpu = self._done(), time.process_time()
            try:
                progress = next(steps)
            except Diverged as problem:
                dump_batch(self.run.bad_batch_path(trainer.step + 1, self.group.rank), self._batch(trainer.step))
                if trainer.all_finite():
                    yield from self._save(wait=True)
                raise Diverged(f"{problem} {_describe_saved(self.run, trainer)}, with the batch.") from None
            self.elapsed = self.elapsed.add(progress.seconds, time.process_time() - cpu, self.group)
            done = self._done()
            if self.group.is_main:
                self.run.log(_metrics(progress, self.elapsed, self.corpus.tokenizer.unit))
            yield StepTaken(progress, min(done, 1.0))
            if int(before * config.validations) < int(min(done, 1.0) * config.validations):
                yield self._validate()
                yield from self._save(wait=done >= 1)
            elif self.elapsed.seconds - self.last_save > SAVE_SECONDS:
                yield from self._save(wait=False)
            else:
                yield from self._finished_saves(wait=False)

    def _done(self) -> float:
        return self.elapsed.done(self.config, self.trainer.step)

    def _batch(self, step: int) -> Batch:
        return self.task.apply(self.batches.at(step, self.rows), self.config.seed)

    def _validate(self) -> Validated:
        report = validate(self.config, self.trainer, self.corpus, self.group)
        metrics = self.model.metrics()  # by all processes: each may hold a shard of the weights only
        if self.group.is_main:
            self.run.log(_validation(self.trainer.step, report) | metrics)
        if report.bits < self.best:
            self.best = report.bits
            _save_best(self.run, self.trainer)
        return Validated(self.trainer.step, report)

    def _save(self, *, wait: bool) -> Iterator[Saved]:
        yield from self._finished_saves(wait=True)
        if not self.trainer.all_finite():  # the checkpoint that this would replace is better
            raise Diverged(
                f"The weights are no longer numbers after step {self.trainer.step}; try a smaller learning rate "
                f"(--optim.lr) or a longer warm-up (--optim.warmup). {_describe_saved(self.run, self.trainer)}."
            )
        if isinstance(self.batches, StreamBatches):
            self.trainer.position = self.batches.position(self.trainer.step)
        elapsed = {"seconds": self.elapsed.seconds, "cpu_seconds": self.elapsed.cpu_seconds}
        self.checkpoints.begin({**elapsed, "best": self.best})
        self.last_save = self.elapsed.seconds
        yield from self._finished_saves(wait=wait)

    def _finished_saves(self, *, wait: bool) -> Iterator[Saved]:
        if (step := self.checkpoints.done(wait=wait)) is not None:
            yield Saved(step)


def _describe_saved(run: Run, trainer: Trainer) -> str:
    """What a diverged training has left on disk, in words."""
    checkpoint = latest(run.state)
    if checkpoint is None:
        return f"Nothing was saved before in {run.path}"
    if checkpoint == checkpoint_of(run.state, trainer.step):
        return f"The weights before that step are in {run.path}"
    return f"The last checkpoint that was sound, {checkpoint.name}, is in {run.path}"


def _save_best(run: Run, trainer: Trainer) -> None:
    """Write the weights that are evaluated and sampled."""
    averaged, model = trainer.averaged, trainer.model
    shards = model.state_dict() if averaged is None else averaged.tensors(model)
    weights = {name: trainer.objective.full_tensor(tensor) for name, tensor in shards.items()}
    trainer.group.on_main(lambda: write_tensors(run.path / BEST, weights))


def _precompute(model: Model, config: TrainConfig, corpus: Corpus) -> None:
    """Precompute what depends on examples alone: they come again in every epoch; crops of a running text do not."""
    examples = corpus.train
    if isinstance(examples, Examples) and isinstance(model.process, AutoencoderStage):
        origin = f"{corpus.sha256[:24]}-{corpus.tokenizer.fingerprint[:24]}"
        model.process.precompute(lambda: examples.padded_rows(config.length), origin)


def validate(config: TrainConfig, trainer: Trainer, corpus: Corpus, group: ProcessGroup = SINGLE) -> Report:
    """The bound of the averaged weights on the validation split."""
    batches = eval_batches(corpus.valid, config.length, config.batch, config.validation_sequences)
    with trainer.averaged.applied() if trainer.averaged is not None else nullcontext():
        return evaluate(
            trainer.model, batches, draws=VALIDATION_DRAWS, rng=config.seed, name=config.system,
            unit=corpus.tokenizer.unit, data=f"{corpus.name} valid", tokenizer=corpus.tokenizer.fingerprint,
            group=group,
        )  # fmt: skip


def _check_group(config: TrainConfig, group: ProcessGroup) -> None:
    if config.batch < group.size * config.accumulate and group.size > 1:
        raise UserError(
            f"A batch of {config.batch} cannot be shared by {group.size} processes in {config.accumulate} parts each; "
            "use a larger --batch or fewer processes."
        )


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


def _validation(step: int, report: Report) -> dict[str, float | int | str]:
    short = SHORT[report.unit]
    return {"step": step, f"val/{short}": report.bits, "val/error": report.error, "val/kind": report.kind}


def _check_corpus(run: Run, corpus: Corpus) -> None:
    made_with = run.content.get("corpus", {})
    if made_with.get("sha256") != corpus.sha256 or made_with.get("tokenizer") != corpus.tokenizer.fingerprint:
        raise UserError(
            f"The text has changed since the run in {run.path} began; restore it, or start anew with another --out."
        )
