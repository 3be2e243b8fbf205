"""Training as one function: open the data, create or resume a run, train it to its end, measure and sample it."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from logosphere.atomic import write_whole
from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus
from logosphere.data.hub_stream import is_stream
from logosphere.data.splits import describe_size
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.evaluation.report import Report
from logosphere.model import Model
from logosphere.parallel.process_group import SINGLE, ProcessGroup
from logosphere.runs.config import TrainConfig
from logosphere.runs.interrupts import Interrupts
from logosphere.runs.loop import Event, Saved, StepTaken, Validated, create_run_and_model, run_training
from logosphere.runs.progress import SILENT, Bar, Display
from logosphere.runs.run import SHORT, Run, unused_path
from logosphere.runs.warm_start import tokenizer_for
from logosphere.sampling.generate import generate
from logosphere.systems import DEFAULT, preset_label

SAMPLES, SAMPLING_STEPS = 4, 128
"""Texts that are sampled at the end of a training, and the largest number of steps they take."""

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
    """Did a signal ask to stop, even if nothing was left to do?"""


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
    outcome = run_to_end(run, corpus, display, on_event=on_event, should_stop=should_stop, model=model)
    return finish(outcome, corpus)


def resume(
    path: str | Path,
    *,
    display: Display = SILENT,
    on_event: OnEvent = ignore,
    should_stop: Callable[[], bool] = never,
) -> Run:
    """Continue the training in a run folder from its last checkpoint; the result is the same to the last bit."""
    run = Run(path)
    corpus = open_with_display(run.config.data, run.tokenizer, display)
    return finish(run_to_end(run, corpus, display, on_event=on_event, should_stop=should_stop), corpus)


def create(config: TrainConfig, out: str | Path | None, display: Display = SILENT) -> tuple[Run, Corpus, Model]:
    """Open the data of a new training and create its run folder; the run, its data and its initial model."""
    if out is not None and Path(out).exists() and any(Path(out).iterdir()):
        raise UserError(f"{out} exists already; choose another --out, or continue the run in it with --resume.")
    corpus = open_with_display(config.data, tokenizer_for(config), display)
    run, model = create_run_and_model(config, corpus, out or unused_path(config.system, config.data))
    return run, corpus, model


def open_again(run: Run, config: TrainConfig, display: Display = SILENT) -> Corpus:
    """The data of a run that another process has created."""
    if is_stream(config.data):  # a stream has no cache that processes could share
        return open_with_display(run.config.data, run.tokenizer, display)
    return open_with_display(config.data, tokenizer_for(config), display)


def open_with_display(source: str, tokenizer: str | Tokenizer, display: Display) -> Corpus:
    """Open a corpus and show the progress of preparing it."""
    with display.bar(source) as bar:

        def show(stage: str, done: int, total: int) -> None:
            if stage == "rebuilding a damaged cache":
                display.log("The cached tokens of this text were damaged; they are built again.")
            bar.update(done / total if total else 0.0, stage)

        return open_corpus(source, tokenizer, report=show)


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
    name = f"[bold]{run.config.system}[/]" + ("" if preset == DEFAULT else f" (preset {preset})")
    display.log(f"{name} on {corpus.name} ({describe_size(corpus.train)}) in {run.path}")
    report: Report | None = None
    done, step = 0.0, 0
    event: Event | None = None
    interrupts = Interrupts()
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
                case Saved():
                    step = event.step
    stopped = isinstance(event, Saved) and done < 1
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
    outcome.report.save(run.path / "eval" / "valid.json")
    drawn = generate(run.model(), n=SAMPLES, steps=min(SAMPLING_STEPS, run.config.length))
    texts = [corpus.tokenizer.decode(row) for row in drawn.tokens.cpu().numpy()]
    write_whole(run.path / "samples" / f"step-{outcome.step:08d}.txt", "\n\n".join(texts).encode() + b"\n")
    return run
