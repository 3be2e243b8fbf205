"""Figures from the literature, each with its kind, its protocol and where it stands."""

import json
from importlib.resources import files

from logosphere.reports.board import Published


def published(dataset: str, unit: str) -> list[Published]:
    """What papers report on a dataset, in this unit."""
    rows = json.loads(files("logosphere.reports").joinpath("literature.json").read_text(encoding="utf-8"))
    every = [Published(**row) for row in rows]
    return [row for row in every if row.dataset == dataset and row.unit == unit]
