"""logosphere train --dry-run"""

import re
from dataclasses import asdict
from typing import Any

from logosphere.cli.console import DISPLAY, print_json
from logosphere.data.datasets import is_dataset
from logosphere.data.text8 import is_letters
from logosphere.errors import UserError
from logosphere.runs.config import TrainConfig
from logosphere.runs.estimate import CPU_REACHED, GPUS, cost, machine_speed
from logosphere.runs.train import open_with_display

TEAMS = (1, 8, 64)


def dry_run(config: TrainConfig, processes: int, *, json: bool) -> int:
    """Say what a training would cost; nothing is written."""
    if processes < 1:
        raise UserError(f"The number of processes must be at least 1, not {processes}.")
    vocabulary, conditions = _read(config)
    bill = cost(config, vocabulary, processes, conditions)
    days = {gpu: {number: bill.days(gpu, number) for number in sorted({*TEAMS, processes})} for gpu in GPUS}
    here = bill.seconds(machine_speed() * CPU_REACHED)
    if json:
        content: dict[str, Any] = asdict(bill) | {"memory": bill.memory, "days": days, "seconds_here": here}
        print_json(content)
        return 0
    print(f"{config.system} on {config.data}, {config.network.depth} × {config.network.width}")
    print(f"  parameters        {bill.parameters:,}")
    print(f"  FLOPs per token   {bill.flops_per_token:.3g}")
    print(f"  memory            {_size(bill.state_bytes)} of weights, gradients, moments and average")
    where = "each process" if processes > 1 else "one process"
    print(f"                    {_size(bill.activation_bytes)} of activations, on {where}")
    if bill.steps is None or here is None:
        print("  time              as long as the config says, in minutes")
        return 0
    print(f"  tokens            {bill.steps * bill.tokens_per_step:.3g} in {bill.steps:,} steps")
    print(f"  on a free core    about {_span(here)}")
    for gpu, spans in days.items():
        line = ", ".join(f"{number} × {_span(86_400 * span)}" for number, span in spans.items() if span is not None)
        print(f"  on {gpu}s          {line}")
    return 0


def _read(config: TrainConfig) -> tuple[int, dict[str, int]]:
    """The size of the vocabulary and what conditions need, without fetching a running text whose tokenizer says all."""
    if not is_dataset(config.data):
        named = {"text8": 27, "byte": 256}
        if config.tokenizer in named:
            return named[config.tokenizer], {}
        if config.tokenizer == "auto" and (config.data in ("text8", "pydoc") or is_letters(config.data)):
            return named["text8"], {}
        if sized := re.fullmatch(r"(?:bpe|wordpiece):([0-9]{1,9})", config.tokenizer):
            return int(sized[1]), {}
    corpus = open_with_display(config.data, config.tokenizer, DISPLAY)
    return corpus.tokenizer.size, corpus.conditions


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
