"""logosphere train --dry-run: the cost of a training, phase by phase; no file is written outside the cache folder."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from logosphere.cli.console import DISPLAY, log, print_json
from logosphere.parallel.launch import explain_excess
from logosphere.runs.config import TrainConfig
from logosphere.runs.cost_model import CPU_REACHED, GPU_MEMORY, GPUS, REACHED, Cost
from logosphere.runs.costs import machine_speed
from logosphere.runs.memory import MemoryPrediction, describe_memory
from logosphere.runs.plans import PLANS, PhaseCost, Plan, find_plan, plan_costs, summarise, total_hours
from logosphere.terminal import show
from logosphere.types import SIGN

GROUP_SIZES = (1, 8, 64)
"""Numbers of devices for which a dry run prints memory and time."""
WIDTH = 116
"""Columns of running text."""
NONE = "–"


def dry_run(name: str, config: TrainConfig, processes: int, *, json: bool) -> int:
    """Print what a training would cost, and the plan it belongs to."""
    plan = find_plan(name, config)
    costs = plan_costs(plan, sorted({*GROUP_SIZES, processes}), DISPLAY)
    speed = machine_speed() * CPU_REACHED
    here = [one.cost.seconds(speed) for one in costs]
    total = sum(seconds for seconds in here if seconds is not None)
    if json:
        bill = costs[0].by_devices[processes]
        days = {gpu: {number: bill.days(gpu, number) for number in costs[0].by_devices} for gpu in GPUS}
        content: dict[str, Any] = asdict(bill) | {"memory": bill.memory, "days": days, "seconds_here": here[0]}
        print_json(content | summarise(plan, costs))
        return 0
    show(format_plan(plan, costs))
    if excess := explain_excess(processes):  # the estimate may be for another machine
        log(excess)
    if name in PLANS and not plan.expected:
        log(f"The plan of {name} is left out, because options change its training.")
    if None not in here:
        show(f"\nOn a free core of this machine: about {_span(total)} (from a measured speed of matrix products).")
    return 0


def dry_run_memory(predicted: MemoryPrediction, *, json: bool) -> int:
    """Print the memory of a training that begins with a published network."""
    if json:
        print_json(predicted.summary())
    else:
        show(describe_memory(predicted))
    return 0


def format_plan(plan: Plan, costs: list[PhaseCost]) -> str:
    """The plan as text; it does not depend on the machine if the recipe names its precision."""
    config = plan.phases[0].config
    parts = [
        f"{config.system} on {config.data}, {config.network.depth} × {config.network.width}, length {config.length}, "
        f"batch {config.batch}, {config.precision} precision",
        _table(costs),
        _assumptions(costs),
    ]
    if len(plan.phases) > 1:
        parts.append(_commands(plan))
    if plan.expected:
        parts.append(_expected(plan))
    if plan.published:
        parts.append(_published(plan))
    return "\n\n".join(parts)


def _table(costs: list[PhaseCost]) -> str:
    several = len(costs) > 1
    rows: list[list[str]] = []

    def row(title: str, cells: Sequence[str], total: str = "") -> None:
        rows.append([title, *cells, *([total] if several else [])])

    def numbers(title: str, of: Callable[[Cost], float | None], form: str, summed: bool = True) -> None:
        values = [of(one.cost) for one in costs]
        known = [value for value in values if value is not None]
        if known:
            row(title, [NONE if v is None else f"{v:{form}}" for v in values], f"{sum(known):{form}}" if summed else "")

    if several:
        row("", [one.phase.name for one in costs], "all")
    row("system", [one.phase.config.system for one in costs])
    numbers("parameters", lambda bill: bill.parameters, ",", summed=False)
    numbers("steps", lambda bill: bill.steps, ",")
    numbers("tokens", lambda bill: bill.tokens, ".2e")
    numbers("FLOPs per token", lambda bill: bill.flops_per_token, ".2e", summed=False)
    numbers("FLOPs", lambda bill: bill.flops, ".2e")
    for devices in costs[0].by_devices:
        row(
            f"memory of each of {devices}" if devices > 1 else "memory of 1 device",
            [_memory(one, devices) for one in costs],
        )
    row("disk", [_size(one.cost.disk_bytes) for one in costs], _size(sum(one.cost.disk_bytes for one in costs)))
    if all(one.cost.steps is None for one in costs):
        row("time", ["set by the configuration, in minutes"])
    else:
        for gpu in GPUS:
            for devices in costs[0].by_devices:
                cells = [_hours(one.hours(gpu, devices)) for one in costs]
                row(f"hours on {devices} × {gpu}", cells, _hours(total_hours(costs, gpu, devices)))
    return _align(rows)


def _align(rows: list[list[str]]) -> str:
    """Rows of equal length as lines: titles at the left, cells at the right of their columns."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for title, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        lines.append("  ".join(["", title.ljust(first), *aligned]).rstrip())
    return "\n".join(lines)


def _assumptions(costs: list[PhaseCost]) -> str:
    peaks = " and ".join(f"{peak / 1e12:.0f} TFLOP/s ({gpu})" for gpu, peak in GPUS.items())
    timed = any(one.cost.steps is not None for one in costs)
    assumed = (
        f"Hours assume {REACHED:.0%} of the peak in bfloat16, {peaks}, whatever the number of GPUs: an assumption, "
        "not a measurement. "
    )
    text = (assumed if timed else "") + "Memory and FLOPs are estimates; evaluation and the corpus are not included."
    if any("*" in _memory(one, devices) for one in costs for devices in one.by_devices):
        text += f" * More than {_size(GPU_MEMORY)}, the memory of such a GPU: use --accumulate, --recompute or --shard."
    return _wrap(text)


def _memory(one: PhaseCost, devices: int) -> str:
    if not one.fits(devices):
        return NONE
    memory = one.by_devices[devices].memory
    return _size(memory) + ("*" if memory > GPU_MEMORY else "")


def _commands(plan: Plan) -> str:
    return "\n".join(["Commands, one after another:", *[f"  {phase.command}" for phase in plan.phases]])


def _expected(plan: Plan) -> str:
    lines = ["Expected, not measured (bits per character of the test split):"]
    for one in plan.expected:
        lines.append(f"  {one.phase}: {SIGN[one.kind]} {one.low:.2f} to {one.high:.2f} ({one.kind})")
        lines += [_wrap(text, "    ") for text in (one.reason, f"Assumes {one.assumes}.", f"Source: {one.source}.")]
    return "\n".join(lines)


def _published(plan: Plan) -> str:
    lines = ["Published by others, quoted (= exact, ≤ bound, ~ surrogate, which is no bound):"]
    width = max(len(one.system) for one in plan.published)
    lines += [f"  {SIGN[one.kind]} {one.value:.2f}  {one.system:{width}}  {one.source}" for one in plan.published]
    return "\n".join(lines)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _hours(hours: float | None) -> str:
    return NONE if hours is None else f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _size(count: float | int) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _span(seconds: float | int) -> str:
    for unit, length in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} seconds"
