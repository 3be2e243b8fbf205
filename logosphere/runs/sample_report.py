"""Samples of one model and their metrics, and its bound over time, for the report of a comparison."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import Corpus
from logosphere.data.splits import take_first_tokens
from logosphere.errors import UserError
from logosphere.evaluation.likelihood import elbo_over_time
from logosphere.evaluation.sample_metrics import measure_samples
from logosphere.evaluation.texts import TRAIN_TOKENS, Metric, Reference, Texts
from logosphere.model import Model
from logosphere.report.comparison import SampleReport, SamplingResult, Value
from logosphere.report.page import Animation, build_animation
from logosphere.sampling.generate import filters, generate, model_plan
from logosphere.sampling.trajectory import Recorder
from logosphere.types import Batch, Condition

TIME_BINS, TIME_BIN_SEQUENCES = 12, 64
"""Bins of time in which the bound is measured, and on how many sequences."""
SHOWN = 3
"""Texts in the report."""
ANIMATED, ANIMATION_STEPS, MOST_FRAMES = 2, 64, 48
LARGEST_BATCH = 64


@dataclass(frozen=True)
class SamplingGrid:
    """The settings that samples are made with."""

    samples: int = 32
    """Texts for each setting."""
    steps: tuple[int, ...] = (4, 16, 64)
    """Numbers of steps to try at temperature 1."""
    temperatures: tuple[float, ...] = (0.7, 0.85)
    """Further temperatures, with the largest number of steps."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UserError(f"There must be at least 2 samples to measure, not {self.samples}.")
        if not self.steps or min(self.steps) < 1:
            raise UserError("Name at least one number of steps to sample with, each at least 1.")
        if any(temperature <= 0 for temperature in self.temperatures):
            raise UserError("Temperatures must be above 0.")


def make_reference(corpus: Corpus, split: str, length: int, count: int) -> Reference:
    """Held-out text as a row beside the samples, and the training text they are compared with."""
    real = next(iter(eval_batches(corpus.split(split), length, count, count))).tokens
    return Reference(
        corpus.tokenizer, take_first_tokens(corpus.train, TRAIN_TOKENS), Texts.from_tokens(real, corpus.tokenizer)
    )


def report_samples(
    model: Model,
    corpus: Corpus,
    split: str,
    against: Reference,
    chosen: Sequence[Metric],
    grid: SamplingGrid,
    units_per_token: float,
    watch: Callable[[str], None],
) -> SampleReport:
    """Sample with every setting and measure the samples; `watch` is called with what is being done."""
    row = corpus.split(split)
    condition = next(iter(eval_batches(row, model.length, grid.samples, grid.samples))).condition

    def held_out() -> list[Batch]:
        return list(eval_batches(row, model.length, TIME_BIN_SEQUENCES, TIME_BIN_SEQUENCES))

    watch("the bound over time")
    bins = elbo_over_time(model, held_out, bins=TIME_BINS, units_per_token=units_per_token)
    samplings, texts, tried = [], against.real, set()
    every = [(steps, 1.0) for steps in sorted(grid.steps)]
    if filters(model.process):
        every += [(max(grid.steps), temperature) for temperature in grid.temperatures if temperature != 1]
    for steps, temperature in every:
        taken = len(model_plan(model, steps).times) - 1
        if (taken, temperature) in tried:
            continue  # a model that writes token by token takes the same steps whatever is asked
        tried.add((taken, temperature))
        watch(f"sampling, {steps} steps, temperature {temperature:g}")
        sampling, drawn = _sample(model, against, chosen, grid, steps, temperature, condition)
        samplings.append(sampling)
        texts = drawn if temperature == 1 else texts
    watch("recording an animation")
    film = record_animation(model, against, grid.seed, condition)
    return SampleReport(bins, samplings, list(texts.strings[:SHOWN]), film)


def _sample(
    model: Model,
    against: Reference,
    chosen: Sequence[Metric],
    grid: SamplingGrid,
    steps: int,
    temperature: float,
    condition: Condition | None,
) -> tuple[SamplingResult, Texts]:
    rng = torch.Generator(model.device).manual_seed(grid.seed)
    parts, nfe, seconds, started = [], 0.0, 0.0, time.process_time()
    for first in range(0, grid.samples, LARGEST_BATCH):
        n = min(LARGEST_BATCH, grid.samples - first)
        given = _slice(condition, first, n)
        drawn = generate(model, n=n, steps=steps, rng=rng, temperature=temperature, condition=given)
        parts.append(drawn.tokens)
        nfe, seconds = nfe + drawn.nfe * n / grid.samples, seconds + drawn.seconds
    cpu_seconds = time.process_time() - started
    texts = Texts.from_tokens(torch.cat(parts), against.tokenizer)
    figures = measure(texts, against, chosen)
    return SamplingResult(steps, temperature, grid.samples, nfe, seconds, cpu_seconds, figures), texts


def measure(texts: Texts, against: Reference, chosen: Sequence[Metric]) -> dict[str, Value]:
    """The metrics of some texts, as the report holds them."""
    figures = measure_samples(texts, against, chosen)
    return {
        name: Value(figure.value, figure.error if figure.error == figure.error else None)
        for name, figure in figures.items()
    }


def _slice(condition: Condition | None, first: int, n: int) -> Condition | None:
    return None if condition is None else condition.each(lambda field: field[first : first + n])


def record_animation(model: Model, against: Reference, seed: int, condition: Condition | None = None) -> Animation:
    """Two samples while they are denoised: the changes from frame to frame."""
    recorder = Recorder(model)
    rng = torch.Generator(model.device).manual_seed(seed)
    steps = min(ANIMATION_STEPS, 2 * model.length)
    generate(model, n=ANIMATED, steps=steps, rng=rng, condition=_slice(condition, 0, ANIMATED), watch=recorder.see)
    return build_animation(recorder.trajectory, against.tokenizer.symbol, MOST_FRAMES)
