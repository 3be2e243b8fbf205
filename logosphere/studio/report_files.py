"""Comparison reports on disk that the studio shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from logosphere.errors import UserError


@dataclass(frozen=True)
class ReportFile:
    """The HTML page of a comparison report."""

    name: str
    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()


def find_reports(names: Sequence[str]) -> list[ReportFile]:
    """Return the reports with these paths; without paths, those in this folder and in runs/, the newest first."""
    for name in names:
        if not _is_report(Path(name)):
            raise UserError(f"{name} is no report; make one with: logosphere compare --report out.html")
    found = [Path(name) for name in names]
    if not names:
        found = [path for folder in (".", "runs") for path in Path(folder).glob("*.html") if _is_report(path)]
        found.sort(key=lambda path: -path.stat().st_mtime)
    return [ReportFile(str(path), path) for path in found]


def _is_report(page: Path) -> bool:
    """Return whether a page has Markdown and JSON files beside it, as report/write.py writes them."""
    return page.suffix == ".html" and all(page.with_suffix(end).is_file() for end in (".html", ".md", ".json"))
