"""The likelihood of a model as the studio shows it: with its error and kind, on the split of published results."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from logosphere.errors import UserError, plural
from logosphere.evaluation.report import Report, describe_kind
from logosphere.io import WEIGHTS
from logosphere.pretrained import CARD, RECORD
from logosphere.runs.evaluate import report_path
from logosphere.runs.run import SHORT, Run
from logosphere.untrusted import read_regular

MAX_CARD = 1 << 20
"""Bytes of a model card, at most."""
SPLIT = "test"
"""The split of the figures in README and docs/results; tuning uses the validation split."""


@dataclass(frozen=True)
class Figure:
    """Bits per unit of text ± one standard error, their kind, and what they were measured on."""

    bits: float
    error: float | None
    """None in logs of versions that did not record it."""
    kind: str
    kind_and_path: str
    unit: str
    data: str


def find_figure(run: Run) -> Figure | None:
    """Return the likelihood on the test split: of the model card, or else of the last evaluation of these weights.

    A run that has not been evaluated since it was trained has only validations, and says so. A model that was saved
    without a training run has no figure.
    """
    if (run.path / RECORD).exists():
        return read_card(run.path)
    if "corpus" not in run.content:  # saved or imported without a training, on no text of its own
        return None
    evaluated = report_path(run, f"{run.content['corpus']['name']} {SPLIT}")
    weights = run.path / WEIGHTS
    if evaluated.exists() and weights.exists() and evaluated.stat().st_mtime >= weights.stat().st_mtime:
        report = Report.load(evaluated)
        data = f"{report.data}, {plural(report.sequences, 'sequence')}"
        return Figure(report.bits, report.error, report.kind, report.kind_and_path, report.unit, data)
    return _last_validation(run)


_LIKELIHOOD = re.compile(r"^\| likelihood \| \S (\S+) ± (\S+) bits per (\w+) \((.*?)\) on (.*) \|$", re.MULTILINE)


def read_card(folder: Path) -> Figure:
    """Return the likelihood in the card of an exported model."""
    try:
        found = _LIKELIHOOD.search(read_regular(folder / CARD, MAX_CARD, inside=folder).decode())
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        raise UserError(f"{folder / CARD} is missing or states no likelihood; install or export the model anew.")
    bits, error, unit, kind_and_path, data = found.groups()
    return Figure(float(bits), float(error), kind_and_path.split(",")[0], kind_and_path, unit, data)


def _last_validation(run: Run) -> Figure | None:
    unit = run.tokenizer.unit
    name = f"val/{SHORT[unit]}"
    lines = [line for line in run.metrics() if name in line and "val/kind" in line]
    if not lines or not math.isfinite(lines[-1][name]):
        return None
    last = lines[-1]
    kind = describe_kind(last["val/kind"], "", 0)
    data = f"the validation split at step {last['step']:,}"
    return Figure(last[name], last.get("val/error"), last["val/kind"], kind, unit, data)
