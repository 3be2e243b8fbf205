"""The report of a comparison, assembled from rankings, runs and samples."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from logosphere.atomic import file_sha256
from logosphere.data.corpus import Corpus
from logosphere.evaluation.costs import count_step_flops
from logosphere.evaluation.leaderboard import LeaderboardRow
from logosphere.evaluation.texts import Metric, Reference
from logosphere.loading import rebuild
from logosphere.report.comparison import (
    ComparisonReport,
    Costs,
    CurvePoint,
    Entry,
    MetricInfo,
    SampleReport,
    SeedResult,
    Value,
    load_published_results,
)
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import SHORT, Run, environment
from logosphere.runs.training_record import sum_records
from logosphere.systems import system

COSTS = "costs.json"
SHOWN = 3


def board(
    standing: Sequence[LeaderboardRow],
    runs: Mapping[str, Sequence[Run]],
    portraits: Mapping[str, SampleReport],
    corpus: Corpus,
    chosen: Sequence[Metric],
    against: Reference,
    real: dict[str, Value],
) -> ComparisonReport:
    """The board of a comparison; the first seed of each system stands for its curves, samples and costs."""
    first = standing[0].report
    recipes = [run.config for one in standing for run in runs[one.name]]
    return ComparisonReport(
        title=f"{len(standing)} system{'s' if len(standing) > 1 else ''} on {corpus.name}",
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
        entries=[_entry(one, runs[one.name], portraits.get(one.name)) for one in standing],
        metrics=[MetricInfo(m.name, m.title, m.unit, m.better, m.definition) for m in chosen],
        real=real,
        real_texts=list(against.real.strings[:SHOWN]),
        published=load_published_results(corpus.name, first.unit),
        environment=environment(),
    )


def shared_budget(recipes: Sequence[TrainConfig]) -> str:
    """The budget that all trainings share; empty if they differ in more than they may."""
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
        return (
            f"{counts[0]:,} steps" if len(counts) == 1 else f"equal operations, {counts[0]:,} to {counts[-1]:,} steps"
        )
    return f"{first.minutes:g} minutes" if first.cpu_minutes is None else f"{first.cpu_minutes:g} CPU minutes"


def _entry(one: LeaderboardRow, runs: Sequence[Run], portrait: SampleReport | None) -> Entry:
    run, report = runs[0], one.report
    card = system(run.config.system)
    seeds = []
    for trained, seed in zip(runs, one.seeds, strict=True):
        weights, step = file_sha256(trained.weights_file()), sum_records(trained.trainings).steps
        seeds.append(SeedResult(trained.config.seed, trained.name, seed.bits, seed.error, weights, step))
    return Entry(
        name=one.name, system=card.name, title=card.title, kind=report.kind, path=report.path,
        options=list(run.config.options),
        bits=report.bits, error=report.error, spread=one.spread, above=one.above, above_error=one.above_error,
        recon=report.recon, diffusion=report.diffusion, prior=report.prior, seeds=seeds, curve=_curve(run),
        time_bins=[] if portrait is None else portrait.time_bins,
        samplings=[] if portrait is None else portrait.samplings,
        texts=[] if portrait is None else portrait.texts,
        animation=None if portrait is None else portrait.animation,
        costs=_costs(run, report.seconds / len(seeds)),
    )  # fmt: skip


def _last(run: Run) -> dict[str, Any]:
    steps = [line for line in run.metrics() if "train/loss" in line]
    return steps[-1] if steps else {}


def _curve(run: Run) -> list[CurvePoint]:
    """Validations, each with the tokens and CPU seconds of the step they followed."""
    points: list[CurvePoint] = []
    at: dict[str, Any] = {}
    for line in run.metrics():
        at = line if "tokens" in line else at
        for short in SHORT.values():
            if f"val/{short}" in line and at:
                points.append(CurvePoint(line["step"], at["tokens"], at["cpu_seconds"], line[f"val/{short}"]))
    return points


def _costs(run: Run, evaluation: float) -> Costs:
    recipe, last, seen = run.config, _last(run), sum_records(run.trainings)
    model = rebuild(run.path)
    noted = run.path / COSTS
    return Costs(
        parameters=sum(weight.numel() for weight in model.parameters()),
        step_flops=count_step_flops(model, recipe.batch),
        steps=seen.steps,
        tokens=seen.tokens,
        seconds=last.get("seconds"),  # a box does not know, and nobody knows of all trainings together
        cpu_seconds=seen.cpu_seconds,
        peak_bytes=json.loads(noted.read_bytes())["peak_bytes"] if noted.exists() else None,
        evaluation_seconds=evaluation,
    )
