"""Whether a network uses its condition: its value with wrong conditions against that with right ones."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from torch import Tensor

from logosphere.evaluation.report import Report
from logosphere.types import Batch, Condition


def give_wrong_conditions(batches: Iterable[Batch], labels: int) -> Iterator[Batch]:
    """Give every sequence the next label of `labels` and the signal of the next sequence of its batch."""

    def shift(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows.roll(1, 0)

    for batch in batches:
        right = batch.condition
        assert right is not None
        other = None if right.labels is None else (right.labels + 1) % labels
        yield replace(batch, condition=Condition(right.given, other, shift(right.source), shift(right.signal)))


def compare_conditions(right: Report, wrong: Report) -> dict[str, Any]:
    """Return bits a token with wrong minus right conditions; the same times and noise are drawn for both."""
    pairs = zip(right.nats, wrong.nats, right.counts, strict=True)
    differences = [(w - r) / (count * math.log(2)) for r, w, count in pairs]
    return {"bits": mean(differences), "error": stdev(differences) / len(differences) ** 0.5, "of": right.kind}
