"""Carry out a recipe: train, validate, save; yield what happens, stop when asked, go on from where it stopped."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from logosphere.data.batches import Crops, check_length, windows
from logosphere.data.corpora import Corpus
from logosphere.denoisers.trunk import Trunk
from logosphere.errors import UserError
from logosphere.evaluation.report import Report, evaluate
from logosphere.model import Model
from logosphere.recipes.recipe import Recipe
from logosphere.runs.folder import BEST, RunFolder
from logosphere.systems import build
from logosphere.tasks import task
from logosphere.training.checkpoint import latest, load_checkpoint, save_checkpoint
from logosphere.training.fit import Diverged, Progress, Training
from logosphere.weights import write_tensors

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
    """A device by name; 'auto' takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise UserError(f"The device '{name}' cannot be used here ({str(problem).splitlines()[0]}).") from None
    return device


def build_model(recipe: Recipe, vocab_size: int) -> Model:
    """A fresh model, its weights determined by the seed."""
    size = vars(recipe.network)
    options = recipe.system_options()
    if clash := sorted(options.keys() & size.keys()):
        raise UserError(f"Set the size of the network with --network.{clash[0]}, not as an option of the system.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(recipe.system, vocab_size=vocab_size, length=recipe.length, **size, **options)
    return model.to(device_of(recipe.device))


def _compile(model: Model) -> None:
    """Compile the blocks of the network, whose shapes never change; what is packed around them stays as it is."""
    for module in model.modules():
        if isinstance(module, Trunk):
            module.compile()


def start(recipe: Recipe, corpus: Corpus, path: str | Path) -> RunFolder:
    """Check a recipe against its data and set up its folder."""
    for split in (corpus.train, corpus.valid):
        check_length(split, recipe.length)
    model = build_model(recipe, corpus.tokenizer.size)
    crops = Crops(corpus.train, recipe.length, recipe.batch, recipe.seed)
    model.check_known(task(recipe.task).pose(crops.at(0), recipe.seed).known.to(model.device))
    assert model.spec is not None
    return RunFolder.create(path, recipe, model.spec, corpus)


def train(run: RunFolder, corpus: Corpus, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Take the run in its folder to its end, from its last checkpoint if there is one.

    When `stop` answers True, the current step is finished and saved, and the iterator ends.
    """
    recipe = run.recipe
    _check_corpus(run, corpus)
    model = build_model(recipe, corpus.tokenizer.size)
    training = Training(
        model, optim=recipe.optim, ema=recipe.ema, seed=recipe.seed,
        accumulate=recipe.accumulate, precision=recipe.precision,
    )  # fmt: skip
    clock, best = Clock(), float("inf")
    if (checkpoint := latest(run.state)) is not None:
        saved = load_checkpoint(checkpoint, training)
        clock = Clock(float(saved["seconds"]), float(saved["cpu_seconds"]))  # type: ignore[arg-type]
        best = float(saved["best"])  # type: ignore[arg-type]
        run.publish(checkpoint)
    if recipe.compile:
        _compile(model)
    run.forget_after(training.step)
    crops = Crops(corpus.train, recipe.length, recipe.batch, recipe.seed)
    posed = task(recipe.task)
    last_save = time.monotonic()

    def save() -> Saved:
        nonlocal last_save
        state: dict[str, object] = {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "best": best}
        run.publish(save_checkpoint(run.state, training, state))
        last_save = time.monotonic()
        return Saved(training.step)

    if clock.done(recipe, training.step) >= 1:  # nothing is left to do, but the result is still wanted
        yield Validated(training.step, validate(recipe, training, corpus))
    while (done := clock.done(recipe, training.step)) < 1:
        if stop():
            yield save()
            return
        cpu = time.process_time()
        batch = posed.pose(crops.at(training.step), recipe.seed)
        try:
            progress = training.advance(batch, recipe.steps or 0, done)
        except Diverged as problem:
            yield save()
            raise Diverged(f"{problem} The weights before that step are in {run.path}.") from None
        clock = Clock(clock.seconds + progress.seconds, clock.cpu_seconds + time.process_time() - cpu)
        before, done = done, clock.done(recipe, training.step)
        run.log(_metrics(progress, clock, corpus.tokenizer.unit))
        yield Advanced(progress, min(done, 1.0))
        if int(before * recipe.validations) < int(min(done, 1.0) * recipe.validations):
            report = validate(recipe, training, corpus)
            run.log(_validation(training.step, report))
            if report.bits < best:
                best = report.bits
                averaged = training.averaged
                write_tensors(run.path / BEST, model.state_dict() if averaged is None else averaged.tensors(model))
            yield Validated(training.step, report)
            yield save()
        elif time.monotonic() - last_save > SAVE_SECONDS:
            yield save()


def validate(recipe: Recipe, training: Training, corpus: Corpus) -> Report:
    """The bound of the averaged weights on the validation split."""
    batches = windows(corpus.valid, recipe.length, recipe.batch, recipe.validation_sequences)
    with training.averaged.applied() if training.averaged is not None else nullcontext():
        return evaluate(
            training.model, batches, draws=VALIDATION_DRAWS, rng=recipe.seed, name=recipe.system,
            unit=corpus.tokenizer.unit, data=f"{corpus.name} valid", tokenizer=corpus.tokenizer.fingerprint,
        )  # fmt: skip


SHORT = {"character": "bpc", "byte": "bpb", "token": "bpt"}
"""Names of bits per unit in metrics."""


def _metrics(progress: Progress, clock: Clock, unit: str) -> dict[str, float | int | str]:
    return {
        "step": progress.step,
        "train/loss": progress.loss,
        f"train/{SHORT[unit]}": progress.nats / 0.6931471805599453,
        "lr": progress.lr,
        "gradient": progress.gradient,
        "tokens": progress.tokens,
        "seconds": round(clock.seconds, 3),
        "cpu_seconds": round(clock.cpu_seconds, 3),
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
