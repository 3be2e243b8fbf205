"""The report of a comparison, assembled from rankings, runs and samples."""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch

from logosphere.data.batches import eval_batches
from logosphere.data.corpus import Corpus, take_first_tokens
from logosphere.errors import plural
from logosphere.evaluation.leaderboard import LeaderboardRow
from logosphere.evaluation.likelihood import elbo_over_time
from logosphere.evaluation.report import Report
from logosphere.evaluation.sample_metrics import measure_samples
from logosphere.evaluation.texts import TRAIN_TOKENS, Metric, Reference, Texts
from logosphere.io import cached, file_sha256
from logosphere.model import Model
from logosphere.pretrained import build_from_recipe
from logosphere.report.comparison import (
    ComparisonReport,
    Costs,
    CurvePoint,
    Entry,
    MetricInfo,
    SampleReport,
    SamplingResult,
    SeedResult,
    Value,
    load_published_results,
    parse_sample_report,
)
from logosphere.report.page import Animation, build_animation
from logosphere.runs.config import TrainConfig
from logosphere.runs.costs import count_step_flops
from logosphere.runs.run import SHORT, Run, environment
from logosphere.runs.settings import Display, EvaluateConfig, SampleMetrics
from logosphere.runs.training_records import sum_records
from logosphere.sampling.generate import generate, model_time_grid
from logosphere.sampling.trajectory import Recorder
from logosphere.systems import system
from logosphere.types import Batch, Condition

COSTS = "costs.json"
"""The peak memory of a training, in its run folder."""
SHOWN = 3
"""Texts of each system in the report."""
TIME_BINS, TIME_BIN_SEQUENCES = 12, 64
"""Bins of time in which the bound is measured, and on how many sequences."""
ANIMATED, ANIMATION_STEPS, MOST_FRAMES = 2, 64, 48
LARGEST_BATCH = 64


def make_report(
    rows: Sequence[LeaderboardRow],
    groups: Mapping[str, Sequence[Run]],
    corpus: Corpus,
    chosen: Sequence[Metric],
    settings: SampleMetrics,
    measure: EvaluateConfig,
    display: Display,
) -> ComparisonReport:
    """The report of ranked runs; the curves, samples and costs of a system are those of its first seed."""
    first = rows[0].report
    recipes = [run.config for row in rows for run in groups[row.name]]
    against = make_reference(corpus, measure.split, recipes[0].length, max(settings.samples, 2))
    count = min(settings.samples, len(against.real.strings))
    notes = [
        f"{metric.title} is not shown: it needs at least {metric.min_texts} samples and held-out texts, and there are "
        f"{count} (--samples {metric.min_texts})."
        for metric in chosen
        if settings.samples and count < metric.min_texts
    ]
    chosen = [metric for metric in chosen if count >= metric.min_texts]
    samples: dict[str, SampleReport] = {}
    for row in rows if settings.samples else []:
        run = groups[row.name][0]
        samples[row.name] = _cached_samples(run, row.report, corpus, against, chosen, settings, measure, display)
    return ComparisonReport(
        title=f"{plural(len(rows), 'system')} on {corpus.name}",
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=["logosphere", *sys.argv[1:]],
        data=first.data,
        data_sha256=first.data_sha256,
        corpus_sha256=corpus.sha256,
        tokenizer=f"{corpus.tokenizer.name}, {corpus.tokenizer.size} tokens, {corpus.tokenizer.fingerprint[:12]}",
        unit=first.unit,
        length=first.length,
        sequences=first.sequences,
        draws=first.draws,
        budget=shared_budget(recipes),
        own_rates=len({recipe.optim.lr for recipe in recipes}) > 1,
        entries=[_entry(row, groups[row.name], samples.get(row.name)) for row in rows],
        metrics=[MetricInfo(m.name, m.title, m.unit, m.better, m.definition) for m in chosen],
        real=measure_texts(against.real, against, chosen) if settings.samples else {},
        real_texts=list(against.real.strings[:SHOWN]),
        published=load_published_results(corpus.name, first.unit),
        notes=notes,
        environment=environment(),
    )


def shared_budget(recipes: Sequence[TrainConfig]) -> str:
    """The budget of all trainings; empty if they differ in more than system, options, seed, learning rate and steps."""
    first = recipes[0]
    for other in recipes[1:]:
        optim = replace(other.optim, lr=first.optim.lr)
        steps = first.steps if first.steps and other.steps else other.steps  # equal operations are unequal steps
        network = replace(other.network, dropout=first.network.dropout)  # presets may differ in it
        alike = replace(
            other, system=first.system, preset=first.preset, options=first.options, seed=first.seed, optim=optim,
            network=network, steps=steps,
        )  # fmt: skip
        if alike != first:
            return ""
    counts = sorted({recipe.steps for recipe in recipes if recipe.steps})
    if counts:
        one = plural(counts[0], "step")
        return one if len(counts) == 1 else f"equal operations, {counts[0]:,} to {counts[-1]:,} steps"
    if first.cpu_minutes is None:
        assert first.minutes is not None  # a configuration has steps or a time
        return plural(first.minutes, "minute")
    return plural(first.cpu_minutes, "CPU minute")


def _entry(one: LeaderboardRow, runs: Sequence[Run], samples: SampleReport | None) -> Entry:
    run, report = runs[0], one.report
    card = system(run.config.system)
    seeds = []
    for trained, seed in zip(runs, one.seeds, strict=True):
        weights, step = file_sha256(trained.weights_file()), sum_records(trained.trainings).steps
        seeds.append(SeedResult(trained.config.seed, trained.name, seed.bits, seed.error, weights, step))
    return Entry(
        name=one.name, system=card.name, title=card.title, kind=report.kind, path=report.path,
        block=report.block,
        options=list(run.config.options),
        bits=report.bits, error=report.error, spread=one.spread, above=one.above, above_error=one.above_error,
        recon=report.recon, diffusion=report.diffusion, prior=report.prior, seeds=seeds, curve=read_curve(run),
        time_bins=[] if samples is None else samples.time_bins,
        samplings=[] if samples is None else samples.samplings,
        texts=[] if samples is None else samples.texts,
        animation=None if samples is None else samples.animation,
        costs=_costs(run, report.seconds / len(seeds)),
    )  # fmt: skip


def _last(run: Run) -> dict[str, Any]:
    steps = [line for line in run.metrics() if "train/loss" in line]
    return steps[-1] if steps else {}


def read_curve(run: Run) -> list[CurvePoint]:
    """Validations, each with the tokens and CPU seconds of the step they followed."""
    points: list[CurvePoint] = []
    at: dict[str, Any] = {}
    name = f"val/{SHORT[run.tokenizer.unit]}"
    for line in run.metrics():
        at = line if "tokens" in line else at
        if name in line and at:
            points.append(CurvePoint(line["step"], at["tokens"], at["cpu_seconds"], line[name]))
    return points


def _costs(run: Run, evaluation: float) -> Costs:
    recipe, last, seen = run.config, _last(run), sum_records(run.trainings)
    # Published networks are built without memory, which counting needs.
    model = build_from_recipe(run.path) if run.spec.published is None else run.model()
    noted = run.path / COSTS
    return Costs(
        parameters=sum(weight.numel() for weight in model.parameters()),
        step_flops=count_step_flops(model, recipe.batch),
        steps=seen.steps,
        tokens=seen.tokens,
        seconds=last.get("seconds"),  # unknown for bundled checkpoints and for a sum of trainings
        cpu_seconds=seen.cpu_seconds,
        peak_bytes=json.loads(noted.read_bytes())["peak_bytes"] if noted.exists() else None,
        evaluation_seconds=evaluation,
    )


# ---- samples -------------------------------------------------------------------------------------------------


def make_reference(corpus: Corpus, split: str, length: int, count: int) -> Reference:
    """Held-out text to measure like samples, and the training text that samples are compared with."""
    real = next(iter(eval_batches(corpus.split(split), length, count, count))).tokens
    return Reference(
        corpus.tokenizer, take_first_tokens(corpus.train, TRAIN_TOKENS), Texts.from_tokens(real, corpus.tokenizer)
    )


def _cached_samples(
    run: Run,
    report: Report,
    corpus: Corpus,
    against: Reference,
    chosen: Sequence[Metric],
    settings: SampleMetrics,
    measure: EvaluateConfig,
    display: Display,
) -> SampleReport:
    """Samples of a run with their metrics, made once for the same weights and settings."""
    grid = {"samples": settings.samples, "steps": settings.sampling_steps, "temperatures": settings.temperatures}
    key = [
        file_sha256(run.weights_file(measure.weights)),
        grid | {"seed": measure.seed, "counted": "steps taken"},
        [(metric.name, metric.version) for metric in chosen],
        measure.split,
        measure.per,
        corpus.sha256,
    ]
    units_per_token = sum(report.nats) / math.log(2) / report.tokens / report.bits if report.bits else 1.0
    with display.bar(f"samples {run.path.name}") as bar:

        def make() -> object:
            model = run.model(measure.weights)
            return asdict(
                report_samples(
                    model, corpus, measure.split, against, chosen, settings, measure.seed, units_per_token,
                    lambda what: bar.update(0.0, what),
                )
            )  # fmt: skip

        return parse_sample_report(cached(run.results / "sample_report.json", key, make))


def report_samples(
    model: Model,
    corpus: Corpus,
    split: str,
    against: Reference,
    chosen: Sequence[Metric],
    settings: SampleMetrics,
    seed: int,
    units_per_token: float,
    watch: Callable[[str], None],
) -> SampleReport:
    """Sample with every setting and measure the samples; `watch` is called with what is being done."""
    rows, n = corpus.split(split), settings.samples
    condition = next(iter(eval_batches(rows, model.length, n, n))).condition

    def held_out() -> list[Batch]:
        return list(eval_batches(rows, model.length, TIME_BIN_SEQUENCES, TIME_BIN_SEQUENCES))

    watch("the bound over time")
    bins = elbo_over_time(model, held_out, bins=TIME_BINS, units_per_token=units_per_token)
    samplings, texts = list[SamplingResult](), against.real
    # Steps that the model takes: an autoregressive one takes one for each token, whatever is requested.
    counts = sorted({len(model_time_grid(model, steps).times) - 1 for steps in settings.sampling_steps})
    every = [(steps, 1.0) for steps in counts]
    if model.process.predicts_tokens:
        every += [(counts[-1], temperature) for temperature in settings.temperatures if temperature != 1]
    for steps, temperature in every:
        watch(f"sampling, {plural(steps, 'step')}, temperature {temperature:g}")
        sampling, drawn = _sample(model, against, chosen, n, seed, steps, temperature, condition)
        samplings.append(sampling)
        texts = drawn if temperature == 1 else texts
    watch("recording an animation")
    film = record_animation(model, against, seed, condition)
    return SampleReport(bins, samplings, list(texts.strings[:SHOWN]), film)


def _sample(
    model: Model,
    against: Reference,
    chosen: Sequence[Metric],
    samples: int,
    seed: int,
    steps: int,
    temperature: float,
    condition: Condition | None,
) -> tuple[SamplingResult, Texts]:
    rng = torch.Generator(model.device).manual_seed(seed)
    parts, nfe, seconds, started = [], 0.0, 0.0, time.process_time()
    for first in range(0, samples, LARGEST_BATCH):
        n = min(LARGEST_BATCH, samples - first)
        given = _slice(condition, first, n)
        drawn = generate(model, n=n, steps=steps, rng=rng, temperature=temperature, condition=given)
        parts.append(drawn.tokens)
        nfe, seconds = nfe + drawn.nfe * n / samples, seconds + drawn.seconds
    cpu_seconds = time.process_time() - started
    texts = Texts.from_tokens(torch.cat(parts), against.tokenizer)
    figures = measure_texts(texts, against, chosen)
    return SamplingResult(steps, temperature, samples, nfe, seconds, cpu_seconds, figures), texts


def measure_texts(texts: Texts, against: Reference, chosen: Sequence[Metric]) -> dict[str, Value]:
    """The metrics of some texts, as the report holds them."""
    figures = measure_samples(texts, against, chosen)
    return {
        name: Value(figure.value, figure.error if figure.error == figure.error else None)
        for name, figure in figures.items()
    }


def _slice(condition: Condition | None, first: int, n: int) -> Condition | None:
    return None if condition is None else condition.map(lambda field: field[first : first + n])


def record_animation(model: Model, against: Reference, seed: int, condition: Condition | None = None) -> Animation:
    """Two samples while they are denoised: the changes from frame to frame."""
    recorder = Recorder(model)
    rng = torch.Generator(model.device).manual_seed(seed)
    steps = min(ANIMATION_STEPS, 2 * model.length)
    generate(model, n=ANIMATED, steps=steps, rng=rng, condition=_slice(condition, 0, ANIMATED), watch=recorder.record)
    return build_animation(recorder.trajectory, against.tokenizer.symbol, MOST_FRAMES)
