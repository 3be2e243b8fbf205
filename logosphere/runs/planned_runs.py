"""Trainings of a comparison: planned from systems, budget and seeds, then trained or continued to their end."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from logosphere.data.corpus import Corpus
from logosphere.errors import UserError
from logosphere.io import RECIPE, write_json
from logosphere.runs.budget import is_finished
from logosphere.runs.comparison_report import COSTS
from logosphere.runs.config import TrainConfig
from logosphere.runs.costs import count_step_flops, peak_memory_bytes, reset_peak_memory
from logosphere.runs.create import build_model, create_run_and_model, resolve_precision
from logosphere.runs.run import Run
from logosphere.runs.settings import Budget, Display
from logosphere.runs.system_specs import SystemSpec
from logosphere.runs.train import OnEvent, ignore, run_to_end


@dataclass(frozen=True)
class PlannedRun:
    """One training of a comparison: a system and a seed."""

    name: str
    config: TrainConfig
    folder: Path


def apply_budget(budget: Budget, config: TrainConfig, corpus: Corpus) -> TrainConfig:
    """The configuration with this budget. Tokens and operations become steps, rounded down but at least 1."""
    if not budget.given():
        return config
    steps = budget.steps
    if budget.tokens is not None:
        steps = max(1, int(budget.tokens // (config.batch * config.length)))
    if budget.flops is not None:
        steps = max(1, int(budget.flops // count_step_flops(build_model(config, corpus), config.batch)))
    return replace(config, steps=steps, minutes=budget.minutes, cpu_minutes=budget.cpu_minutes)


def plan_runs(
    specs: list[SystemSpec],
    common: TrainConfig,
    budget: Budget,
    seeds: int,
    corpus: Corpus,
    out: Path,
    fixed: Sequence[str] = (),
) -> list[PlannedRun]:
    """Every system with every seed, each in a folder of its own under `out`."""
    if seeds < 1:
        raise UserError(f"There must be at least 1 seed, not {seeds}.")
    planned = []
    for spec in specs:
        config = resolve_precision(apply_budget(budget, spec.configure(common, fixed), corpus))
        for number in range(seeds):
            name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec.name)
            folder = out / (name if number == 0 else f"{name}-seed{number}")
            planned.append(PlannedRun(spec.name, replace(config, seed=common.seed + number), folder))
    return planned


def find_existing(planned: PlannedRun) -> Run | None:
    """The run of a training that has begun, checked to be the planned one; None if it has not begun."""
    if not (planned.folder / RECIPE).exists():
        return None
    run = Run(planned.folder)
    for name, wanted in asdict(planned.config).items():
        if (found := asdict(run.config)[name]) != wanted and (name, found) != ("precision", "auto"):
            raise UserError(
                f"{planned.folder} was trained with {name} = {found}, not {wanted}; "
                "choose another --out for this comparison."
            )
    return run


def train_planned(planned: PlannedRun, corpus: Corpus, display: Display, on_event: OnEvent = ignore) -> Run | None:
    """Train one run to its end, from its last checkpoint if there is one; None if it was stopped."""
    run = find_existing(planned)
    if run is not None and is_finished(run):
        display.log(f"{planned.folder} is trained already")
        return run
    model = None
    if run is None:
        run, model = create_run_and_model(planned.config, corpus, planned.folder)
    reset_peak_memory()
    outcome = run_to_end(run, corpus, display, on_event=on_event, model=model)
    write_json(run.path / COSTS, {"peak_bytes": peak_memory_bytes()})
    if outcome.stopped:
        display.log(f"Stopped at step {outcome.step:,} of {planned.name} and saved. The same command continues.")
    elif outcome.interrupted:
        display.log(f"Stopped after {planned.name}. The same command continues.")
    return None if outcome.interrupted else run
