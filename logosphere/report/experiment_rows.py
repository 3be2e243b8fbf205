"""Rows of the leaderboard from experiments of benchmarks/results/: records of single figures, without sequences.

Records are rows that have bits of a system, the number of sequences and a budget of CPU time, in experiments of the
scripts that compare systems; a new experiment of this form appears without a change here.
"""

import json
import math
import shlex
from pathlib import Path
from typing import Any

from logosphere.errors import UserError, shorten
from logosphere.report.row_records import HeldOutNumber, RowRecord, read_record
from logosphere.types import SIGN
from logosphere.untrusted import read_object

UNITS = {"bits_per_character": "character", "bits_per_token": "token"}
BUDGET = "CPU minutes"
SCRIPTS = ("benchmarks/flagship.py", "benchmarks/text8_rows.py")
"""The scripts whose experiments compare systems at equal budgets."""
STEPS = "training_steps"


def read_experiments(path: Path) -> tuple[list[RowRecord], list[str]]:
    """The rows of a file of experiments, and a sentence about each record that is damaged."""
    try:
        experiments = read_object(path).get("experiments", [])
        if not isinstance(experiments, list):
            raise ValueError("'experiments' is no list")
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror or problem}).") from None
    except (ValueError, json.JSONDecodeError) as problem:
        raise UserError(f"{path} is damaged: {str(problem).splitlines()[0]}; restore it from the repository.") from None
    rows: list[RowRecord] = []
    problems: list[str] = []
    for number, experiment in enumerate(experiments):
        try:
            common, name = experiment.get("common", {}), str(experiment["name"])
            if common.get("script") not in SCRIPTS:
                continue
            records = [{"preset": "default"} | common | record for record in experiment["records"]]
        except (KeyError, TypeError, AttributeError):
            problems.append(f"Experiment {number} of {path} is damaged: it lacks a name or records.")
            continue
        steps = {_key(record): record.get("value") for record in records if record.get("metric") == STEPS}
        for record in records:
            if record.get("metric") in UNITS and BUDGET in (record.get("budget") or {}) and "sequences" in record:
                try:
                    rows.append(_make_row(name, record, steps.get(_key(record))))
                except (KeyError, TypeError, ValueError) as problem:
                    reason = f"{problem.args[0]!r} is missing" if isinstance(problem, KeyError) else str(problem)
                    problems.append(f"A record of {name} in {path} is damaged: {reason}.")
    return rows, problems


def _key(record: dict[str, Any]) -> tuple[str, str]:
    """Steps belong to a training, whatever split it was measured on."""
    return str(record.get("row")), str(record.get("seed"))


def _make_row(part: str, record: dict[str, Any], steps: object) -> RowRecord:
    bits, error = float(record["value"]), float(record.get("error") or math.nan)
    if record["kind"] not in SIGN or not math.isfinite(bits):
        raise ValueError(f"its kind is {shorten(record['kind'])} and its value {shorten(record['value'])}")
    options = record.get("options") or {}
    arguments = options.get("arguments", "")
    budget = {name: float(value) for name, value in record["budget"].items()}
    command = record.get("command") or record["script"]
    if arguments:
        seed = "" if record.get("seed") is None else f" --seed {record['seed']}"
        command = f"logosphere train text8-tiny {arguments} --cpu-minutes {budget[BUDGET]:g} --validations 4{seed}"
    number = HeldOutNumber(
        kind=record["kind"], unit=UNITS[record["metric"]], bits=bits, error=error,
        sequences=int(record["sequences"]), draws=int(record.get("draws") or 0),
        data=f"{record['data']} {record['split']}", path=str(record.get("path") or ""),
        block=int(record.get("block") or options.get("block") or 0),
    )  # fmt: skip
    row = str(record["row"]).replace("`", "")
    return RowRecord(
        part=part, row=row, system=str(record["system"]), seed=record.get("seed"), budget=budget, test=number,
        steps=steps if isinstance(steps, int) else None, preset=str(record["preset"]), command=str(command),
        options=() if arguments else tuple(f"{name}={value}" for name, value in options.items()),
        arguments=tuple(shlex.split(arguments)), commit=str(record.get("commit") or ""),
        date=str(record.get("date") or ""), note=str(record.get("note") or ""),
    )  # fmt: skip


def read_rows(place: Path) -> tuple[list[RowRecord], list[str]]:
    """The rows of a file or of all files of a folder, and a sentence about each one that is damaged."""
    rows: list[RowRecord] = []
    problems: list[str] = []
    for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
        try:
            if _has_experiments(path):
                found, wrong = read_experiments(path)
                rows, problems = rows + found, problems + wrong
            else:
                rows.append(read_record(path))
        except UserError as problem:
            problems.append(str(problem))
    return rows, problems


def _has_experiments(path: Path) -> bool:
    try:
        return bool(read_object(path).keys() & {"experiments", "tables"})
    except (OSError, ValueError):
        return False  # reading it as a record says what is wrong
