"""The portrait of one model: where its bound is spent, what it writes, how fast and how well."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from logosphere.data.batches import Split, first_tokens, sequences
from logosphere.data.corpora import Corpus
from logosphere.errors import UserError
from logosphere.evaluation.integrand import integrand
from logosphere.evaluation.samples.catalogue import measured
from logosphere.evaluation.samples.texts import TRAIN_TOKENS, Metric, Reference, Texts
from logosphere.model import Model
from logosphere.report.animation import Animation, build_animation
from logosphere.report.comparison import SampleReport, SamplingResult, Value
from logosphere.sampling.generate import filters, generate, model_plan
from logosphere.sampling.trajectory import Recorder
from logosphere.types import Batch, Condition

SLICES, SLICE_SEQUENCES = 12, 64
"""How finely the bound is followed over time, and on how many sequences."""
SHOWN = 3
"""Texts in the report."""
FILMED, FILM_STEPS, MOST_FRAMES = 2, 64, 48
LARGEST_BATCH = 64


@dataclass(frozen=True)
class Ways:
    """How samples are made."""

    samples: int = 32
    """Texts in each way."""
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


def reference(corpus: Corpus, split: str, length: int, count: int) -> Reference:
    """Held-out text as a row beside the samples, and the training text they are held against."""
    real = next(iter(sequences(part_of(corpus, split), length, count, count))).tokens
    return Reference(corpus.tokenizer, first_tokens(corpus.train, TRAIN_TOKENS), Texts.spelt(real, corpus.tokenizer))


def part_of(corpus: Corpus, split: str) -> Split:
    return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]


def portrait(
    model: Model,
    corpus: Corpus,
    split: str,
    against: Reference,
    chosen: Sequence[Metric],
    ways: Ways,
    units_per_token: float,
    watch: Callable[[str], None],
) -> SampleReport:
    """Draw samples in every way and measure them; `watch` is told what is being done."""
    row = part_of(corpus, split)
    condition = next(iter(sequences(row, model.length, ways.samples, ways.samples))).condition

    def held_out() -> list[Batch]:
        return list(sequences(row, model.length, SLICE_SEQUENCES, SLICE_SEQUENCES))

    watch("the bound over time")
    slices = integrand(model, held_out, slices=SLICES, units_per_token=units_per_token)
    samplings, texts, tried = [], against.real, set()
    every = [(steps, 1.0) for steps in sorted(ways.steps)]
    if filters(model.process):
        every += [(max(ways.steps), temperature) for temperature in ways.temperatures if temperature != 1]
    for steps, temperature in every:
        taken = len(model_plan(model, steps).times) - 1
        if (taken, temperature) in tried:
            continue  # a model that writes token by token takes the same steps whatever is asked
        tried.add((taken, temperature))
        watch(f"sampling, {steps} steps, temperature {temperature:g}")
        sampling, drawn = _sampled(model, against, chosen, ways, steps, temperature, condition)
        samplings.append(sampling)
        texts = drawn if temperature == 1 else texts
    watch("filming")
    film = filmed(model, against, ways.seed, condition)
    return SampleReport(slices, samplings, list(texts.strings[:SHOWN]), film)


def _sampled(
    model: Model,
    against: Reference,
    chosen: Sequence[Metric],
    ways: Ways,
    steps: int,
    temperature: float,
    condition: Condition | None,
) -> tuple[SamplingResult, Texts]:
    rng = torch.Generator(model.device).manual_seed(ways.seed)
    parts, nfe, seconds, started = [], 0.0, 0.0, time.process_time()
    for first in range(0, ways.samples, LARGEST_BATCH):
        n = min(LARGEST_BATCH, ways.samples - first)
        given = _part(condition, first, n)
        drawn = generate(model, n=n, steps=steps, rng=rng, temperature=temperature, condition=given)
        parts.append(drawn.tokens)
        nfe, seconds = nfe + drawn.nfe * n / ways.samples, seconds + drawn.seconds
    cpu_seconds = time.process_time() - started
    texts = Texts.spelt(torch.cat(parts), against.tokenizer)
    figures = values(texts, against, chosen)
    return SamplingResult(steps, temperature, ways.samples, nfe, seconds, cpu_seconds, figures), texts


def values(texts: Texts, against: Reference, chosen: Sequence[Metric]) -> dict[str, Value]:
    """The figures of some texts, as a report holds them."""
    figures = measured(texts, against, chosen)
    return {
        name: Value(figure.value, figure.error if figure.error == figure.error else None)
        for name, figure in figures.items()
    }


def _part(condition: Condition | None, first: int, n: int) -> Condition | None:
    return None if condition is None else condition.each(lambda field: field[first : first + n])


def filmed(model: Model, against: Reference, seed: int, condition: Condition | None = None) -> Animation:
    """Two samples while they condense: the changes from frame to frame."""
    recorder = Recorder(model)
    rng = torch.Generator(model.device).manual_seed(seed)
    steps = min(FILM_STEPS, 2 * model.length)
    generate(model, n=FILMED, steps=steps, rng=rng, condition=_part(condition, 0, FILMED), watch=recorder.see)
    return build_animation(recorder.trajectory, against.tokenizer.symbol, MOST_FRAMES)
