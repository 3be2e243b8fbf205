"""The models and reports on offer: those named at the start, or all of a folder, also those begun later."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logosphere.errors import UserError, shorten
from logosphere.io import RECIPE
from logosphere.pretrained import PREFIX, list_pretrained
from logosphere.runs.run import Run
from logosphere.studio.models import StudioModel
from logosphere.untrusted import read_regular

RUNS = Path("runs")
MAX_PAGE = 1 << 28
"""Bytes of the page of a report, at most."""


@dataclass(frozen=True)
class ReportFile:
    """The HTML page of a comparison report."""

    name: str
    path: Path

    def read(self) -> bytes:
        return read_regular(self.path, MAX_PAGE)


class Library:
    """Models and reports by number. A number stays valid: what is found later gets the next one.

    Requests name models and reports by number, never by path.
    """

    def __init__(self, runs: Sequence[str] = (), reports: Sequence[str] = ()):
        """Offer the named runs and reports; where none is named, those of runs/ and this folder, the newest first."""
        self.models: list[StudioModel] = []
        self.reports: list[ReportFile] = []
        self.unreadable = dict[str, str]()
        """Runs and reports that cannot be opened, with the reason."""
        for name in runs:
            self._add_run(name)
        for name in reports:
            try:
                self.reports.append(_open_report(name))
            except UserError as problem:
                self.unreadable[name] = str(problem)
        self.named = dict(self.unreadable)
        self.finds_runs, self.finds_reports = not runs, not reports
        self._lock = threading.Lock()
        self.refresh()
        if not self.models:
            reason = next(iter(self.unreadable.values()), "There is nothing to open yet.")
            if runs:
                raise UserError(reason)
            raise UserError(f"{reason} Train a model with: logosphere train")

    def refresh(self) -> None:
        """Add the runs and reports that have appeared."""
        with self._lock:
            if self.finds_runs:
                self._add_runs()
            if self.finds_reports:
                known = {report.path for report in self.reports}
                self.reports += [report for report in _find_reports() if report.path not in known]

    def _add_runs(self) -> None:
        self.unreadable = dict(self.named)
        for name in _find_runs():
            self._add_run(name)

    def _add_run(self, name: str) -> None:
        """Add a run that is new, or was trained anew in the same folder; one that cannot be opened is noted."""
        known = {model.name: model.folder.content for model in self.models}
        try:
            run = Run(name, trained=False)
            if known.get(name) == run.content:
                return
            model = StudioModel(name, run)
            model.describe()  # also reads its tokenizer: a model without one has no texts to show
        except Exception as problem:  # one folder, whatever is in it, must not close the others
            self.unreadable[name] = explain(name, problem)
            return
        self.models.append(model)

    def describe(self) -> list[dict[str, Any]]:
        """Describe the models for the page in the order in which it lists them, each with its number."""
        self.refresh()
        order = {name: place for place, name in enumerate(_find_runs())} if self.finds_runs else {}
        last = {model.name: number for number, model in enumerate(self.models) if model.folder.path.is_dir()}
        described = []
        for name, number in sorted(last.items(), key=lambda one: order.get(one[0], one[1])):
            model = self.models[number]
            try:
                described.append({"number": number} | model.describe())
            except Exception as problem:
                self.unreadable[name] = explain(name, problem)
        return described


def explain(name: str, problem: Exception) -> str:
    """Why a folder is left out."""
    return str(problem) if isinstance(problem, UserError) else f"{name} is damaged ({shorten(problem)})."


def _find_runs() -> list[str]:
    """The names of all runs, those begun last first, and of the bundled checkpoints.

    A run is offered from its beginning, so that its curves can be watched before anything has been saved.
    """
    begun = sorted(RUNS.glob(f"*/{RECIPE}"), key=lambda path: -path.stat().st_mtime)
    return [str(path.parent) for path in begun] + [f"{PREFIX}{name}" for name in list_pretrained()]


def _open_report(name: str) -> ReportFile:
    if not _is_report(Path(name)):
        raise UserError(f"{name} is no report; make one with: logosphere compare --report out.html")
    return ReportFile(name, Path(name))


def _find_reports() -> list[ReportFile]:
    """The reports in this folder and in runs/, the newest first."""
    found = [path for folder in (Path(), RUNS) for path in folder.glob("*.html") if _is_report(path)]
    found.sort(key=lambda path: -path.stat().st_mtime)
    return [ReportFile(str(path), path) for path in found]


def _is_report(page: Path) -> bool:
    """Return whether a page has Markdown and JSON files in the same folder, as report/write.py writes them."""
    return page.suffix == ".html" and all(page.with_suffix(end).is_file() for end in (".html", ".md", ".json"))
