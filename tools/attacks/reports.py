"""Attacks through reports: HTML and Markdown in names and texts, scripts, and tokens that leak by navigating."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from attacks import attack
from attacks.terminal import CONTROLS, check_harmless
from logosphere import build
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.evaluation.likelihood import TimeBin
from logosphere.report.comparison import (
    ComparisonReport,
    Costs,
    CurvePoint,
    Entry,
    MetricInfo,
    SamplingResult,
    SeedResult,
    Value,
)  # fmt: skip
from logosphere.report.markdown import code_block, code_span, escape_text
from logosphere.report.page import SCRIPTS, Animation, Player, read_asset, render_player_page
from logosphere.report.write import render_html, render_markdown
from logosphere.studio.app import create_app
from logosphere.studio.library import Library
from logosphere.studio.requests import GenerateRequest, to_command

TOKEN, PORT = "the-token", 8000
INJECTIONS = (
    "<script>fetch('http://evil.example')</script>", "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "' onmouseover='alert(1)", "<!--",
    "</title><script>alert(1)</script>", "</pre><b>bold</b>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>", "</style><script>alert(1)</script>", "]]><x>",
    "<base href=http://evil.example>", "&lt;script&gt;", "<iframe src=http://evil.example>",
    "</details></main><form action=/>",
)  # fmt: skip
LINKS = (
    "[a](javascript:alert(1))", "![a](http://evil.example/pixel.png)", "a\n\n# heading\n\n<b>", "`code`", "``a`",
    "| cell | cell |", "a\n| --- |\n", "**bold**", "<http://evil.example>", "[a]: http://evil.example", "\\`<b>\\`",
)  # fmt: skip
FIELDS = (
    "title", "data", "budget", "created", "note", "name", "text", "command", "tokenizer", "metric", "symbol", "fact",
)  # fmt: skip


def make_report(**changed: str) -> ComparisonReport:
    """Return a report with every part, some of them foreign."""

    def field(name: str) -> str:
        return changed.get(name, "plain")

    entry = Entry(
        name=field("name"), system="mdlm", title="mdlm", kind="bound", options=[], bits=1.5, error=0.01, spread=None,
        above=0.0, above_error=0.005, recon=0.0, diffusion=1.5, prior=0.0,
        seeds=[SeedResult(0, f"runs/{field('name')}", 1.5, 0.01, "ab" * 32, 20)],
        curve=[CurvePoint(10, 640, 1.0, 2.5), CurvePoint(20, 1280, 2.0, 1.5)],
        time_bins=[TimeBin(0.0, 0.5, 1.0, 0.1), TimeBin(0.5, 1.0, 2.0, 0.1)],
        samplings=[SamplingResult(4, 1.0, 8, 4.0, 1.0, 0.8, {"entropy": Value(4.0, 0.1)})],
        texts=[field("text"), field("text")], animation=Animation(3, ["a", field("symbol")], [[[0, 0, 2, 1], [1, 1]]]),
        costs=Costs(1000, 1e9, 20, 1280, 2.0, 1.9, None, 3.0),
    )  # fmt: skip
    return ComparisonReport(
        title=field("title"), created=field("created"), command=["logosphere", field("command")], data=field("data"),
        length=3, data_sha256="00", corpus_sha256="11", tokenizer=field("tokenizer"), unit="character", sequences=8,
        draws=2, budget=field("budget"), entries=[entry, replace(entry, name="other", kind="surrogate")],
        metrics=[MetricInfo("entropy", field("metric"), "bits", "higher", field("metric"))],
        real={"entropy": Value(4.1, 0.1)}, real_texts=[field("text")], published=[], notes=[field("note")],
        environment={"python": field("fact")},
    )  # fmt: skip


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes, and its scripts."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.scripts: list[str] = []
        self._runs = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self._runs = tag == "script" and ("type", "application/json") not in attrs

    def handle_endtag(self, tag: str) -> None:
        self._runs = False

    def handle_data(self, data: str) -> None:
        if self._runs:
            self.scripts.append(data)


def check_page(page: str, plain: str) -> None:
    """Raise if a page has other elements, attributes or scripts than the same page with plain text."""
    found, expected = Structure(page), Structure(plain)
    assert found.elements == expected.elements, "elements were injected"
    known = {sha256(read_asset(name).encode()).digest() for name in SCRIPTS}
    assert {sha256(script.encode()).digest() for script in found.scripts} <= known, "a script was injected"


def check_markdown(markdown: str) -> None:
    """Raise if Markdown holds HTML, links or images outside of code."""
    check_harmless(markdown)
    lines = [line for line in markdown.split("\n") if not line.startswith("    ")]
    plain = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(lines))
    assert "<" not in plain, f"raw HTML in {plain!r}"
    assert not re.search(r"(?<!\\)\[", plain), f"a link or an image in {plain!r}"
    assert not re.search(r"^# (?!plain)", "\n".join(lines[1:]), re.MULTILINE), "a heading was injected"


@attack(*[(field, text) for field in FIELDS for text in INJECTIONS])
def inject_html(variant: tuple[str, str], world: Any) -> None:
    """A foreign text in a field of a comparison becomes an element, an attribute or a script of the page."""
    field, text = variant
    check_page(render_html(make_report(**{field: text})), render_html(make_report()))


@attack(*[(field, text) for field in FIELDS for text in (*INJECTIONS[:4], *LINKS)])
def inject_markdown(variant: tuple[str, str], world: Any) -> None:
    """A foreign text in a field of a comparison becomes HTML, a link, an image or a heading in Markdown."""
    field, text = variant
    markdown = render_markdown(make_report(**{field: text}))
    check_markdown(markdown)
    tables = [line.count("|") - line.count("\\|") for line in markdown.split("\n") if line.startswith("| ")]
    expected = [line.count("|") for line in render_markdown(make_report()).split("\n") if line.startswith("| ")]
    assert tables == expected, "a cell was injected"


@attack(*CONTROLS)
def control_terminal(text: str, world: Any) -> None:
    """A foreign text with control characters is read in a terminal from the Markdown of a report."""
    changed = dict.fromkeys(FIELDS, f"a{text}b")
    changed["symbol"] = "a"
    check_harmless(render_markdown(make_report(**changed)))
    check_harmless(escape_text(text) + code_span(text) + code_block(text))


@attack(*INJECTIONS)
def inject_player(text: str, world: Any) -> None:
    """A generated text becomes an element or a script of a saved trajectory."""

    def page(content: str) -> str:
        animation = Animation(2, [content, "b"], [[[0, 0, 1, 1]]])
        return render_player_page("Text denoised step by step", content, [Player(content, animation, [content])])

    check_page(page(text), page("plain"))


@attack("comparison", "player")
def run_foreign_script(kind: str, world: Any) -> None:
    """A script that was injected in spite of everything runs: the policy of the page names scripts by digest."""
    animation = Animation(1, ["a"], [[[0, 0]]])
    player = render_player_page("title", "about", [Player("a", animation, ["a"])])
    page = render_html(make_report()) if kind == "comparison" else player
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and "script-src 'sha256-" in policy[1] and policy[1].startswith("default-src 'none'")
    assert "script-src 'unsafe-inline'" not in policy[1] and "unsafe-eval" not in policy[1] and "*" not in policy[1]
    assert '<meta name="referrer" content="no-referrer">' in page


@attack(*CONTROLS)
def copy_command(text: str, world: Any) -> None:
    """Copy as command puts control characters of a prompt or of a folder on the clipboard."""
    request = GenerateRequest(system=0)
    check_harmless(to_command(request, f"runs/{text}", None, text8_tokenizer()))


# ---- reports in the studio ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportWorld:
    """A studio with two reports of someone else, and the path of the first."""

    client: TestClient
    path: str

    @property
    def token(self) -> str:
        return self.path.split("/")[1]


@contextmanager
def open_world(folder: Path) -> Iterator[ReportWorld]:
    model = build("mdlm", vocab_size=27, length=8, width=8, depth=1, heads=1)
    model.tokenizer = text8_tokenizer()
    model.save(folder / "model")
    for name in ("first", "second"):
        for end in ("html", "md", "json"):
            (folder / f"{name}.{end}").write_text("<script>new RTCPeerConnection()</script>")
    library = Library([str(folder / "model")], [str(folder / "first.html"), str(folder / "second.html")])
    app = create_app(library, TOKEN, PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False) as client:
        yield ReportWorld(client, client.get(f"/{TOKEN}/systems").json()["reports"][0]["path"].removeprefix(".."))


@attack(
    "", "/", "/systems", "/static/studio.js", "/curves/0", "/ways/0", "/watch/1", "/reports/1", "/reports/00",
    "/reports", "/reports/0/", "/reports/0/../../systems", "/reports/0%2f..%2f1", "/reports/٠", "/generate",
)  # fmt: skip
def use_report_token(path: str, world: ReportWorld) -> None:
    """The token that a report leaks by navigating opens something else."""
    response = world.client.get(f"/{world.token}{path}")
    assert response.status_code in (403, 404), response.status_code


@attack("/generate", "/time/0", "/edit/0", "/reports/0")
def post_with_report_token(path: str, world: ReportWorld) -> None:
    """The token of a report starts a job."""
    assert world.client.post(f"/{world.token}{path}", json={"system": 0}).status_code in (403, 405)


@attack("0", "1")
def open_report_with_studio_token(number: str, world: ReportWorld) -> None:
    """A report is opened at an address with the token of the studio, which it could then leak."""
    assert world.client.get(f"/{TOKEN}/reports/{number}").status_code == 404


@attack(
    "allow-same-origin", "allow-top-navigation", "allow-popups", "allow-forms", "allow-modals", "'unsafe-eval'",
    "script-src 'unsafe-inline'", "script-src 'self'", "connect-src", "frame-src", "http:", "https:", "*",
)  # fmt: skip
def relax_policy(directive: str, world: ReportWorld) -> None:
    """The policy of a report allows more than the scripts of this package and downloads."""
    response = world.client.get(world.path)
    assert response.status_code == 200 and directive not in response.headers["content-security-policy"]
    assert "sandbox allow-scripts allow-downloads" in response.headers["content-security-policy"]
    assert response.headers["referrer-policy"] == "no-referrer"


@attack("page", "frame")
def leak_referrer(place: str, world: ReportWorld) -> None:
    """A link of a report sends the address with the token to its target."""
    page = world.client.get(f"/{TOKEN}/")
    assert page.headers["referrer-policy"] == "no-referrer"
    assert TOKEN not in world.path and 'referrerpolicy="no-referrer"' in page.text
    assert 'sandbox="allow-scripts allow-downloads"' in page.text
