"""Carry out a recipe: train, validate, save; yield what happens, stop when asked, go on from where it stopped."""

import os
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
from logosphere.denoisers.convolution import ConvolutionTrunk
from logosphere.denoisers.trunk import Trunk
from logosphere.denoisers.unet import Stage
from logosphere.errors import UserError
from logosphere.evaluation.report import Report, evaluate
from logosphere.model import Model
from logosphere.parallel.team import ALONE, Team
from logosphere.recipes.recipe import Recipe
from logosphere.runs.beginning import beginning
from logosphere.runs.folder import BEGIN, BEST, SHORT, RunFolder
from logosphere.runs.saves import Saves
from logosphere.systems import build
from logosphere.training.checkpoint import checkpoint_of, latest
from logosphere.training.fit import Diverged, Progress, Training
from logosphere.training.safety import determinism, keep_batch
from logosphere.weights import fill, read_tensors, write_tensors

SAVE_SECONDS = 300.0
"""A checkpoint is saved at least this often."""
VALIDATION_DRAWS = 4


@dataclass(frozen=True)
class Advanced:
    """A step was taken."""

    progress: Progress
    done: float
    """Share of the whole training, by steps or by time, whichever is further."""


@dataclass(frozen=True)
class Validated:
    """The bound was measured on the validation split."""

    step: int
    report: Report


@dataclass(frozen=True)
class Saved:
    """Everything up to this step is on disk."""

    step: int


Event = Advanced | Validated | Saved


@dataclass
class Clock:
    """Time spent on training steps, over all resumptions."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def later(self, seconds: float, cpu_seconds: float, team: Team) -> "Clock":
        """The time after a step, the same for a whole team: wall time of the first process, processor time of all."""
        spent, busy = team.total(seconds if team.leads else 0.0, cpu_seconds)
        return Clock(self.seconds + spent, self.cpu_seconds + busy)

    def done(self, recipe: Recipe, step: int) -> float:
        """The share of the budget that is used up."""
        shares = []
        if recipe.steps is not None:
            shares.append(step / recipe.steps)
        if recipe.minutes is not None:
            shares.append(self.seconds / (60 * recipe.minutes))
        if recipe.cpu_minutes is not None:
            shares.append(self.cpu_seconds / (60 * recipe.cpu_minutes))
        return max(shares)


def device_of(name: str) -> torch.device:
    """A device by name; 'auto' takes a GPU where there is one, and of several processes each takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        if device.type == "mps":
            raise RuntimeError("it has no numbers of 64 bits, which noise and bounds are made of; use cpu")
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # what is made without naming a device, as by FSDP, is made on this one
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise UserError(f"The device '{name}' cannot be used here ({str(problem).splitlines()[0]}).") from None
    return device


def build_model(recipe: Recipe, corpus: Corpus) -> Model:
    """A fresh model for the texts and conditions of a corpus, its weights determined by the seed."""
    size = vars(recipe.network) | corpus.conditions
    options = recipe.system_options()
    if clash := sorted(options.keys() & size.keys()):
        raise UserError(f"Set the size of the network with --network.{clash[0]}, not as an option of the system.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(
            recipe.system, vocab_size=corpus.tokenizer.size, length=recipe.length, preset=recipe.preset,
            **size, **options,
        )  # fmt: skip
    if recipe.recompute:
        _recompute(model)
    return model.to(device_of(recipe.device))


def _recompute(model: Model) -> None:
    """Keep no activations inside the blocks of the network."""
    for module in model.modules():
        if isinstance(module, Trunk | ConvolutionTrunk | Stage):
            module.recompute = True


def _compile(model: Model) -> None:
    """Compile the blocks of the network, whose shapes never change; what is packed around them stays as it is."""
    for module in model.modules():
        if isinstance(module, Trunk | ConvolutionTrunk | Stage):
            module.compile()


def start(recipe: Recipe, corpus: Corpus, path: str | Path) -> RunFolder:
    """Check a recipe against its data and set up its folder."""
    for split in (corpus.train, corpus.valid):
        check_length(split, recipe.length)
    model = build_model(recipe, corpus)
    crops = train_batches(corpus.train, recipe.length, recipe.batch, recipe.seed, recipe.order)
    chosen = find_task(recipe.task)
    if chosen.shortens and (model.block < model.length or not model.process.codec.local or recipe.network.axes):
        raise UserError(
            f"The task '{recipe.task}' cuts sequences, which blocks, latents and networks with a shape do not allow; "
            "use another task, or a system such as mdlm."
        )
    model.check_known(chosen.apply(crops.at(0), recipe.seed).known.to(model.device))
    assert model.spec is not None
    begun = None if recipe.begin is None else beginning(recipe.begin, model, corpus.tokenizer, corpus.labels)
    return RunFolder.create(path, recipe, model.spec, corpus, begun)


def first_model(run: RunFolder, corpus: Corpus) -> Model:
    """The model of a run as it is before its first step; where a checkpoint will fill it, its weights are any."""
    model = build_model(run.recipe, corpus)
    if run.recipe.begin is not None and latest(run.state) is None:
        fill(model, read_tensors(run.path / BEGIN), run.path / BEGIN)
    return model


def train(
    run: RunFolder, corpus: Corpus, stop: Callable[[], bool] = lambda: False, team: Team = ALONE
) -> Iterator[Event]:
    """Take the run in its folder to its end, from its last checkpoint if there is one.

    When `stop` answers True, the current step is finished and saved, and the iterator ends. The processes of a `team`
    all run this: they see the same events, and the first of them writes.
    """
    with determinism(run.recipe.deterministic):
        yield from _train(run, corpus, stop, team)


def _train(run: RunFolder, corpus: Corpus, stop: Callable[[], bool], team: Team) -> Iterator[Event]:
    recipe = run.recipe
    _check_corpus(run, corpus)
    _check_team(recipe, team)
    model = first_model(run, corpus)
    training = Training(
        model, optim=recipe.optim, ema=recipe.ema, seed=recipe.seed,
        accumulate=recipe.accumulate, precision=recipe.precision, withhold=recipe.withhold,
        team=team, sharded=recipe.shard,
    )  # fmt: skip
    clock, best = Clock(), float("inf")
    team.first(run.sweep)
    saves = Saves(run, training, sharded=recipe.shard)
    if (saved := saves.resume()) is not None:
        clock, best = Clock(saved["seconds"], saved["cpu_seconds"]), saved["best"]
    if recipe.compile:
        _compile(model)
    team.first(lambda: _prepare(model, recipe, corpus))  # which leaves the others nothing to do
    _prepare(model, recipe, corpus)
    team.first(lambda: run.forget_after(training.step if saved is not None else -1))
    crops = train_batches(corpus.train, recipe.length, recipe.batch, recipe.seed, recipe.order)
    if isinstance(crops, StreamBatches) and training.step > 0:
        crops.seek(training.position)
    rows, posed = team.share(recipe.batch), find_task(recipe.task)
    last_save = clock.seconds

    def save(*, wait: bool) -> Iterator[Saved]:
        nonlocal last_save
        yield from done_saves(wait=True)
        if not training.sound():  # the checkpoint that this would replace is better
            raise Diverged(
                f"The weights are no longer numbers after step {training.step}; try a smaller learning rate "
                f"(--optim.lr) or a longer warm-up (--optim.warmup). {_left(run, training)}."
            )
        if isinstance(crops, StreamBatches):
            training.position = crops.position(training.step)
        saves.begin({"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "best": best})
        last_save = clock.seconds
        yield from done_saves(wait=wait)

    def validated() -> Report:
        nonlocal best
        report = validate(recipe, training, corpus, team)
        figures = model.figures()  # by all processes: each may have a share of the weights only
        if team.leads:
            run.log(_validation(training.step, report) | figures)
        if report.bits < best:
            best = report.bits
            _keep_best(run, training)
        return report

    def done_saves(*, wait: bool) -> Iterator[Saved]:
        if (step := saves.done(wait=wait)) is not None:
            yield Saved(step)

    if recipe.begin is not None and saved is None:  # what is to be improved upon
        yield Validated(training.step, validated())
    if clock.done(recipe, training.step) >= 1:  # nothing is left to do, but the result is still wanted
        yield Validated(training.step, validate(recipe, training, corpus, team))
    while (done := clock.done(recipe, training.step)) < 1:
        if team.total(stop())[0]:
            yield from save(wait=True)
            return
        cpu = time.process_time()
        batch = posed.apply(crops.at(training.step, rows), recipe.seed)
        try:
            progress = training.advance(batch, recipe.steps or 0, done)
        except Diverged as problem:
            keep_batch(run.offence(training.step + 1, team.rank), batch)
            if training.sound():
                yield from save(wait=True)
            raise Diverged(f"{problem} {_left(run, training)}, with the batch.") from None
        clock = clock.later(progress.seconds, time.process_time() - cpu, team)
        before, done = done, clock.done(recipe, training.step)
        if team.leads:
            run.log(_metrics(progress, clock, corpus.tokenizer.unit))
        yield Advanced(progress, min(done, 1.0))
        if int(before * recipe.validations) < int(min(done, 1.0) * recipe.validations):
            yield Validated(training.step, validated())
            yield from save(wait=done >= 1)
        elif clock.seconds - last_save > SAVE_SECONDS:
            yield from save(wait=False)
        else:
            yield from done_saves(wait=False)


def _left(run: RunFolder, training: Training) -> str:
    """What is there after a training that broke."""
    checkpoint = latest(run.state)
    if checkpoint is None:
        return f"Nothing was saved before in {run.path}"
    if checkpoint == checkpoint_of(run.state, training.step):
        return f"The weights before that step are in {run.path}"
    return f"The last checkpoint that was sound, {checkpoint.name}, is in {run.path}"


def _keep_best(run: RunFolder, training: Training) -> None:
    """Write the weights that are evaluated and sampled."""
    averaged, model = training.averaged, training.model
    shares = model.state_dict() if averaged is None else averaged.tensors(model)
    weights = {name: training.objective.whole(tensor) for name, tensor in shares.items()}
    training.team.first(lambda: write_tensors(run.path / BEST, weights))


def _prepare(model: Model, recipe: Recipe, corpus: Corpus) -> None:
    """Examples come again and again; crops of a running text never do."""
    examples = corpus.train
    if isinstance(examples, Examples):
        origin = f"{corpus.sha256[:24]}-{corpus.tokenizer.fingerprint[:24]}"
        model.process.prepare(lambda: examples.padded_rows(recipe.length), origin)


def validate(recipe: Recipe, training: Training, corpus: Corpus, team: Team = ALONE) -> Report:
    """The bound of the averaged weights on the validation split."""
    batches = eval_batches(corpus.valid, recipe.length, recipe.batch, recipe.validation_sequences)
    with training.averaged.applied() if training.averaged is not None else nullcontext():
        return evaluate(
            training.model, batches, draws=VALIDATION_DRAWS, rng=recipe.seed, name=recipe.system,
            unit=corpus.tokenizer.unit, data=f"{corpus.name} valid", tokenizer=corpus.tokenizer.fingerprint, team=team,
        )  # fmt: skip


def _check_team(recipe: Recipe, team: Team) -> None:
    if recipe.batch < team.size * recipe.accumulate and team.size > 1:
        raise UserError(
            f"A batch of {recipe.batch} cannot be shared by {team.size} processes in {recipe.accumulate} parts each; "
            "use a larger --batch or fewer processes."
        )


def _metrics(progress: Progress, clock: Clock, unit: str) -> dict[str, float | int | str | bool]:
    return {
        "step": progress.step,
        "train/loss": progress.loss,
        f"train/{SHORT[unit]}": progress.nats / 0.6931471805599453,
        "lr": progress.lr,
        "gradient": progress.gradient,
        "tokens": progress.tokens,
        "seconds": round(clock.seconds, 3),
        "cpu_seconds": round(clock.cpu_seconds, 3),
        **({"skipped": True} if progress.skipped else {}),
    }


def _validation(step: int, report: Report) -> dict[str, float | int | str]:
    short = SHORT[report.unit]
    return {"step": step, f"val/{short}": report.bits, "val/error": report.error, "val/kind": report.kind}


def _check_corpus(run: RunFolder, corpus: Corpus) -> None:
    made_with = run.content.get("corpus", {})
    if made_with.get("sha256") != corpus.sha256 or made_with.get("tokenizer") != corpus.tokenizer.fingerprint:
        raise UserError(
            f"The text has changed since the run in {run.path} began; restore it, or start anew with another --out."
        )
