"""Results quoted from papers, each with its kind, protocol and source."""

import json
from dataclasses import dataclass
from importlib.resources import files

from logosphere.types import Kind


@dataclass(frozen=True)
class PublishedResult:
    """One result quoted from a paper."""

    system: str
    dataset: str
    value: float
    kind: Kind
    unit: str
    protocol: str
    source: str


def load_published_results(dataset: str, unit: str) -> list[PublishedResult]:
    """Load what papers report on a dataset in a unit."""
    rows = json.loads(files("logosphere.report").joinpath("published_results.json").read_text(encoding="utf-8"))
    results = [PublishedResult(**row) for row in rows]
    return [result for result in results if result.dataset == dataset and result.unit == unit]
