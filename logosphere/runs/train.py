"""Training verbs: train or resume a run to its end, then measure and sample it; train auxiliary networks of a run."""

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch

from logosphere.data.batches import eval_batches, train_batches
from logosphere.data.corpus import Corpus, Examples, Split, describe_size
from logosphere.errors import UserError, quote_path
from logosphere.evaluation.report import Report
from logosphere.io import REMASKER, check_folder, write_atomic
from logosphere.model import Model
from logosphere.networks.config import NetworkConfig
from logosphere.parallel.lifetime import stop_signals
from logosphere.parallel.process_group import SINGLE, ProcessGroup, find_device
from logosphere.pretrained.hashes import write_hashed
from logosphere.runs.adaptation import AdaptConfig
from logosphere.runs.budget import explain_unresumable, extend, stopped_early
from logosphere.runs.config import TrainConfig
from logosphere.runs.create import create_run_and_model
from logosphere.runs.loop import AutoencoderTrained, Event, Saved, StepTaken, Validated, run_training
from logosphere.runs.memory import can_predict, describe_memory, predict_memory
from logosphere.runs.parents import check_autoregressive, open_parent
from logosphere.runs.run import SHORT, Run, unused_path
from logosphere.runs.settings import SILENT, AuxiliaryConfig, Bar, Display
from logosphere.runs.train_data import open_run_data, open_training_data
from logosphere.sampling.classifier_checkpoint import ClassifierCheckpoint
from logosphere.sampling.generate import generate
from logosphere.systems import DEFAULT, preset_label
from logosphere.training.auxiliary import RemaskerStep, measure_classifier, train_classifier, train_remasker
from logosphere.training.optimizer import OptimizerConfig
from logosphere.types import Batch

SAMPLES, SAMPLING_STEPS = 4, 128
"""Texts that are sampled at the end of a training, and the largest number of steps they take."""
MANY_LOGITS, FEW_STEPS = 1 << 23, 32
"""Logits of all these texts from which on they are sampled one by one, in fewer steps."""
RESULT = Path("eval") / "valid.json"
"""The validation report of a finished training, in its folder."""
CLASSIFIER_SEQUENCES = 512
"""Validation sequences that a classifier is measured on."""

T = TypeVar("T")
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The default of `on_event`."""


def never() -> bool:
    """The default of `should_stop`."""
    return False


@dataclass(frozen=True)
class Outcome:
    """How a training ended: at its last step, or because it was stopped."""

    run: Run
    step: int
    report: Report | None
    """The last validation of this call; None where none was reached."""
    stopped: bool
    """Was it stopped before its end? Everything up to `step` is saved."""
    interrupted: bool
    """Was there a signal to stop, even if nothing was left to do?"""


def train(
    config: TrainConfig,
    out: str | Path | None = None,
    *,
    display: Display = SILENT,
    on_event: OnEvent = ignore,
    should_stop: Callable[[], bool] = never,
) -> Run:
    """Train a model as configured; its folder holds weights, metrics, a validation report and samples.

    `on_event` is called after every step, validation and save. When `should_stop` returns True, the step is finished
    and saved, and `resume` continues the run. Ctrl-C does the same.
    """
    run, corpus, model = create(config, out, display)
    return finish(run_to_end(run, corpus, display, on_event=on_event, should_stop=should_stop, model=model), corpus)


def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    cpu_minutes: float | None = None,
    display: Display = SILENT,
    on_event: OnEvent = ignore,
    should_stop: Callable[[], bool] = never,
) -> Run:
    """Continue the training in a run folder from its last checkpoint; the result is the same to the last bit.

    A larger budget (`steps`, `minutes` or `cpu_minutes` in all) trains a finished run longer.
    """
    run = Run(path, trust_references=True)  # who continues a training has agreed to its data
    if reason := explain_unresumable(run):
        raise UserError(f"{reason} begin another run with its weights: TrainConfig(begin={str(path)!r})")
    if steps is not None or minutes is not None or cpu_minutes is not None:
        run = extend(run, replace(run.config, steps=steps, minutes=minutes, cpu_minutes=cpu_minutes))
    corpus = open_run_data(run, display)
    return finish(run_to_end(run, corpus, display, on_event=on_event, should_stop=should_stop), corpus)


def resume_command(run: Run) -> str:
    """The command that continues a run."""
    return f"logosphere train --out {quote_path(run.path)} --resume"


def create(
    config: TrainConfig, out: str | Path | None, display: Display = SILENT, adapt: AdaptConfig | None = None
) -> tuple[Run, Corpus, Model]:
    """Open the data of a new training and create its run folder; the run, its data and its initial model."""
    if out is not None:
        check_folder(Path(out))
    if out is not None and Path(out).exists() and any(Path(out).iterdir()):
        raise UserError(f"{out} exists already; choose another --out, or continue the run in it with --resume.")
    if adapt is not None and config.begin is not None:
        check_autoregressive(open_parent(config.begin, display))  # before any data is opened
    if not config.data:
        raise UserError(f"The model in {config.begin} was imported or saved without a training; name a text by --data.")
    config, corpus = open_training_data(config, display)
    run, model = create_run_and_model(config, corpus, out or unused_path(config.system, config.data), adapt)
    if config.begin is not None and can_predict(model):
        display.log(describe_memory(predict_memory(model, run.config)))
    return run, corpus, model


def run_to_end(
    run: Run,
    corpus: Corpus,
    display: Display = SILENT,
    *,
    on_event: OnEvent = ignore,
    should_stop: Callable[[], bool] = never,
    group: ProcessGroup = SINGLE,
    model: Model | None = None,
) -> Outcome:
    """Train a run until its end, a signal or `should_stop`, with its folder locked against other trainings."""
    preset = preset_label(run.spec)
    name = run.config.system + ("" if preset == DEFAULT else f" (preset {preset})")
    display.log(f"{name} on {corpus.name} ({describe_size(corpus.train)}) in {run.path}")
    report: Report | None = None
    done, step = 0.0, 0
    event: Event | None = None
    interrupts = Interrupts(resume_command(run))
    with interrupts.handled(), ExitStack() as stack, display.bar(run.config.system) as bar:
        group.on_main(lambda: stack.enter_context(run.lock()))
        for event in run_training(run, corpus, lambda: interrupts.requested or should_stop(), group, model):
            on_event(event)
            match event:
                case StepTaken():
                    done, step = event.done, event.progress.step
                    _show_step(bar, event, corpus.tokenizer.unit)
                case Validated():
                    report, step = event.report, event.step
                    display.log(f"step {event.step:>7,}  validation {report}")
                case AutoencoderTrained():
                    spent = f"{event.cpu_seconds / 60:.1f} CPU minutes"
                    display.log(f"step {event.step:>7,}  autoencoder trained in {spent}: {event.reached}")
                case Saved():
                    step = event.step
    ended_early = stopped_early(run)
    if ended_early:
        display.log(
            f"The bound has not improved in {run.config.patience} validations, so the training ends at step {step:,}; "
            "its best weights are used with --weights best."
        )
    stopped = isinstance(event, Saved) and done < 1 and not ended_early
    return Outcome(run, step, report, stopped=stopped, interrupted=interrupts.requested)


def _show_step(bar: Bar, event: StepTaken, unit: str) -> None:
    progress = event.progress
    step = f"{progress.step:,}" + (f"/{progress.steps:,}" if progress.steps else "")
    speed = progress.tokens_per_step / progress.seconds
    bits = f"{progress.nats / math.log(2):.3f} {SHORT[unit]}"
    bar.update(event.done, f"step {step}  loss {progress.loss:.3f}  {bits}  {speed:,.0f} tokens/s")


def finish(outcome: Outcome, corpus: Corpus) -> Run:
    """Save the validation report and some samples of a training that has reached its end."""
    run = outcome.run
    if outcome.stopped:
        return run
    assert outcome.report is not None  # the last step of a run is always validated
    outcome.report.save(run.path / RESULT)
    texts = [corpus.tokenizer.decode(row) for row in _sample(run.model())]
    write_atomic(run.path / "samples" / f"step-{outcome.step:08d}.txt", "\n\n".join(texts).encode() + b"\n")
    return run


def _sample(model: Model) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Some texts; where logits are large one by one and in fewer steps, to take no more memory than the training."""
    if SAMPLES * model.length * model.vocab_size <= MANY_LOGITS:
        return list(generate(model, n=SAMPLES, steps=min(SAMPLING_STEPS, model.length)).tokens.cpu().numpy())
    steps = min(FEW_STEPS, model.length)
    return [generate(model, n=1, steps=steps, rng=seed).tokens[0].cpu().numpy() for seed in range(SAMPLES)]


class Interrupts:
    """Signals as requests to stop: the step is finished and saved first; a second Ctrl-C does not wait."""

    def __init__(self, command: str) -> None:
        self.requested, self.command = False, command

    def request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt(self.command)
        self.requested = True

    @contextmanager
    def handled(self) -> Iterator["Interrupts"]:
        """Handle signals inside this block; only possible in the main thread of a process."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self.request) for number in stop_signals()}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


# ---- auxiliary networks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier and its accuracy on the validation split, averaged over the times of the noise."""

    folder: Path
    labels: tuple[str, ...]
    loss: float
    """Training loss of the last step, nats per label."""
    valid_loss: float
    valid_right: float
    """How often its most likely label is right."""


def train_remasker_of(run: Run, config: AuxiliaryConfig, display: Display = SILENT) -> RemaskerStep:
    """Train the remasker of a g-star run on its frozen model and save it in the run; the result of the last step."""
    config.check()
    model = run.model().place(find_device(run.config.device))
    if model.remasker is None:
        raise UserError("Only g-star models have a remasker; train one with: logosphere train --system g-star")
    corpus = open_run_data(run, display)
    steps = train_remasker(
        model, _batches(corpus.train, model, config), steps=config.steps, optim=_optimizer(config), seed=config.seed
    )
    last = _take_all(steps, config, display, "train-remasker", lambda s: f"{s.loss:.3f} nats  {s.wrong:.0%} wrong")
    write_hashed(run.path, REMASKER, model.remasker.state_dict())
    return last


def train_classifier_of(
    run: Run,
    config: AuxiliaryConfig,
    network: NetworkConfig,
    *,
    out: Path | None = None,
    data: str = "",
    display: Display = SILENT,
) -> TrainedClassifier:
    """Train a classifier of the noisy states of a run on labelled data, and save it in `out` or in the run."""
    config.check()
    folder = out or run.path / "classifier"
    check_folder(folder)
    model = run.model().place(find_device(run.config.device))
    corpus = open_run_data(run, display, data or None)
    examples = corpus.train
    if not isinstance(examples, Examples) or examples.labels is None:
        raise UserError(f"{corpus.name} has no labels; use data with labels: --data labelled:FILE, or --data digits.")
    if corpus.tokenizer.fingerprint != run.tokenizer.fingerprint:
        raise UserError(f"{corpus.name} has other tokens than the run in {run.path}; use data with its tokenizer.")
    torch.manual_seed(config.seed)
    names = corpus.labels or tuple(map(str, range(examples.label_count)))
    checkpoint = ClassifierCheckpoint.fresh(model, names, network)
    steps = train_classifier(
        checkpoint.classifier, model, _batches(examples, model, config), steps=config.steps, optim=_optimizer(config),
        seed=config.seed,
    )  # fmt: skip
    last = _take_all(steps, config, display, "train-classifier", lambda step: f"{step.loss:.3f} nats")
    held_out = eval_batches(corpus.valid, model.length, config.batch, CLASSIFIER_SEQUENCES)
    nats, right = measure_classifier(checkpoint.classifier, model, held_out, config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder, model, run.tokenizer.fingerprint)
    return TrainedClassifier(folder, tuple(checkpoint.labels), last.loss, nats, right)


def _batches(split: Split, model: Model, config: AuxiliaryConfig) -> Iterator[Batch]:
    """One for each step."""
    return map(train_batches(split, model.length, config.batch, config.seed).at, range(config.steps))


def _optimizer(config: AuxiliaryConfig) -> OptimizerConfig:
    return OptimizerConfig(lr=config.lr, warmup=min(50, config.steps // 10))


def _take_all(
    steps: Iterable[T], config: AuxiliaryConfig, display: Display, title: str, figures: Callable[[T], str]
) -> T:
    """Take all steps and show their figures; the last one."""
    with display.bar(title) as bar:
        for number, step in enumerate(steps, start=1):
            bar.update(number / config.steps, f"step {number}/{config.steps}  {figures(step)}")
    return step
