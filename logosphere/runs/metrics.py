"""The log of a training, metrics.jsonl: one object a line, of which the values that can be used are read."""

import json
import math
from pathlib import Path
from typing import Any, get_args

from logosphere.errors import UserError
from logosphere.types import Kind
from logosphere.untrusted import MAX_LOG, read_regular

WORDS = ("val/kind",)
"""Metrics that are words; all others are numbers, or true."""


MAX_STEP = 1 << 53
"""Steps are below this, which floating-point numbers can count."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a log, each without values that are no finite numbers or known words.

    A run that was killed while writing may leave half a line at the end, and one that diverged has logged NaN.
    """
    try:
        lines = read_regular(path, MAX_LOG, inside=path.parent).splitlines()
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror}); restore it from a copy.") from None
    return [line for line in map(_read_line, lines) if line is not None]


def _read_line(line: bytes) -> dict[str, Any] | None:
    """The values of a line of metrics that can be used; None for a line without a valid step."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    step = content.get("step", 0)
    if type(step) is not int or not 0 <= step < MAX_STEP:
        return None
    return {name: value for name, value in content.items() if _is_metric(name, value)}


def _is_metric(name: str, value: object) -> bool:
    if name in WORDS:
        return isinstance(value, str) and value in get_args(Kind)
    return isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < math.inf)
