"""The documentation site: it builds without warnings, every link resolves, and nothing external is fetched."""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("zensical", "mkdocstrings", "latex2mathml")),
        reason="needs `make docs`",
    ),
]


class Page(HTMLParser):
    """Anchors, links and formulas of a page."""

    def __init__(self, content: str):
        super().__init__()
        self.anchors, self.links, self.formulas = set[str](), list[tuple[str, str]](), 0
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.formulas += tag == "math"
        self.links += [(tag, link) for name in ("href", "src") if (link := given.get(name))]


def test_the_site_builds_and_its_links_resolve(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("paths: [.]", f"paths: [{ROOT}]")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    paths = os.pathsep.join(["docs", str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--config-file", "mkdocs.yml"]
    built = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=500
    )
    assert built.returncode == 0 and "No issues found" in built.stdout + built.stderr, built.stdout + built.stderr
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 30 and sum(page.formulas for page in pages.values()) > 15
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # shown at any address, so its links are absolute paths
        for tag, link in page.links:
            if link.startswith(("http:", "https:")):
                assert tag == "a" or "canonical" in link, f"{path.name} fetches {link}"
                continue
            if link.startswith(("data:", "javascript:", "mailto:")):
                continue
            target, _, anchor = link.partition("#")
            found = path if target == "" else (path.parent / target).resolve()
            found = found / "index.html" if found.is_dir() else found
            assert found.exists(), f"{path.name} leads to {link}"
            if found in pages and anchor and not anchor.startswith("__"):
                assert anchor in pages[found].anchors, f"{path.name} leads to {link}"
