"""Report pages: self-contained, one column per kind of number, and sample text is escaped."""

import json
import math
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from comparison_fixtures import HOSTILE, entry, make_report

from logosphere.report import figures, tables
from logosphere.report.comparison import (
    Value,
    load_published_results,
)
from logosphere.report.plots import Dot, Series, plot
from logosphere.report.svg import SHAPES, Axis, draw_marker, format_number, linear_ticks, log_ticks
from logosphere.report.write import render_html, render_markdown, write_comparison_report
from logosphere.systems import systems

REPORT = make_report(entry("ar", "exact", 1.5), entry("mdlm", "bound", 1.7, 0.2), entry("rdlm", "surrogate", 1.4))


class Reader(HTMLParser):
    """Checks that tags close in order and collects attributes that would fetch a resource."""

    VOID = {"meta", "input", "br", "line"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_fetches_nothing() -> None:
    page = render_html(REPORT)
    reader = Reader()
    reader.feed(page)
    assert reader.open == [] and reader.fetched == [] and reader.scripts == 5
    assert "http://" not in page and "https://" not in page and "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page and len(page) < 200_000


def test_sample_text_is_escaped() -> None:
    page = render_html(REPORT)
    assert "alert('x')" not in page.replace("alert(&#x27;x&#x27;)", "") and "\\u003c" in page
    animations = re.search(r'id="animations">(.*?)</script>', page, flags=re.DOTALL)
    assert animations and json.loads(animations[1])[0]["symbols"] == ["a", "<"]
    assert "\\| piped" in render_markdown(replace(REPORT, entries=[replace(REPORT.entries[0], name=HOSTILE)]))


def test_kinds_never_share_a_column() -> None:
    table = tables.tabulate_likelihood(REPORT)
    heads = [head for head, _ in table.heads]
    columns = {kind: heads.index(kind) for kind in ("exact", "bound", "surrogate")}
    for row, kind in zip(table.rows, columns, strict=True):
        assert [name for name, i in columns.items() if row.cells[i]] == [kind]
    assert [row.css_class for row in table.rows] == ["best", "", "best parting"]
    quoted = [heads[i] for i in sorted(table.quoted_columns)]
    assert quoted == ["paper, exact", "paper, bound", "paper, surrogate"]
    assert "rdlm" not in figures.plot_likelihood(REPORT) and "rdlm" in figures.plot_surrogates(REPORT)
    assert "rdlm" not in figures.plot_over_time(REPORT) and "mdlm" in figures.plot_over_time(REPORT).replace("rdlm", "")
    signs = [[cell for cell in row.cells if "±" in cell] for row in tables.tabulate_seeds(REPORT).rows]
    assert signs == [["= 1.5000 ± 0.0100"], ["≤ 1.7000 ± 0.0100"], ["~ 1.4000 ± 0.0100"]]


def test_paths_have_a_column_where_there_are_any() -> None:
    assert "path" not in [head for head, _ in tables.tabulate_likelihood(REPORT).heads]
    first, *others = REPORT.entries
    table = tables.tabulate_likelihood(replace(REPORT, entries=[replace(first, path="any-order"), *others]))
    assert table.heads[1][0] == "path" and [row.cells[1] for row in table.rows] == ["any-order", "", ""]


def test_every_published_result_has_a_protocol_and_source() -> None:
    for paper in load_published_results("text8", "character"):
        assert (
            paper.value > 1
            and paper.protocol
            and "20" in paper.source
            and paper.kind in ("exact", "bound", "surrogate")
        )
    assert load_published_results("text8", "byte") == [] and len(load_published_results("text8", "character")) >= 8


def test_plots_are_well_formed_and_hold_every_point() -> None:
    drawn = [
        figures.plot_likelihood(REPORT), figures.plot_training(REPORT, "tokens"), figures.plot_over_time(REPORT),
        figures.plot_metric_against_entropy(REPORT, REPORT.metrics[1]),
        figures.plot_metric_against_cost(REPORT, REPORT.metrics[1], lambda s: s.nfe, "NFE"),
    ]  # fmt: skip
    for svg in drawn:
        assert ElementTree.fromstring(svg).tag == "svg"
    points = ElementTree.fromstring(drawn[-1]).findall(".//polygon/title")
    assert len(points) == 6  # three entries at two numbers of steps; other temperatures are in another plot


def test_every_plot_has_a_legend_of_its_own() -> None:
    """A saved plot is read without its page: every series of a plot has a marker and a name below the axes."""
    drawn = figures.plot_training(REPORT, "tokens")
    svg = ElementTree.fromstring(drawn)
    names = [text for text in svg.iter("text") if text.attrib["class"] == "name"]
    assert [text.text for text in names] == ["ar", "mdlm"]
    axis = max(float(text.attrib["y"]) for text in svg.iter("text") if text.attrib["class"] == "label")
    height = float(svg.attrib["viewBox"].split()[3])
    assert all(axis < float(text.attrib["y"]) < height for text in names)
    both = figures.plot_likelihood(REPORT)  # filled and hollow markers are explained
    assert {"exact", "bound"} <= {text.text for text in ElementTree.fromstring(both).iter("text")}
    assert "exact" not in figures.plot_likelihood(make_report(entry("mdlm", "bound", 1.7))).split("</title>")[-1]


def test_long_legends_take_several_rows() -> None:
    series = [Series(n, f"system-{n}:schedule=cosine", [Dot(1.0, 2.0)]) for n in range(8)]
    svg = ElementTree.fromstring(plot(series, title="t", x="x", y="y"))
    names = [text for text in svg.iter("text") if text.attrib["class"] == "name"]
    width, height = (float(value) for value in svg.attrib["viewBox"].split()[2:])
    assert len(names) == 8 and len({text.attrib["y"] for text in names}) > 2
    assert all(float(text.attrib["x"]) + 6 * len(text.text or "") < width for text in names)
    assert all(float(text.attrib["y"]) < height for text in names)


def test_every_plot_can_be_saved_and_every_table_scrolls() -> None:
    page = render_html(REPORT)
    plots = page.count("<figure>")
    assert plots >= 6 and page.count('data-save="svg"') == page.count('data-save="png"') == plots
    style = re.search(r'id="figure-style">(.*?)</script>', page, flags=re.DOTALL)
    assert style and "--paper" in json.loads(style[1])  # saved plots have colours without the page
    assert page.count("<table>") == page.count('class="scroll" tabindex="0"') >= 4


def test_metrics_that_need_more_samples_are_explained() -> None:
    note = "n-gram MAUVE is not shown: it needs at least 250 samples"
    noted = replace(REPORT, notes=[note])
    assert note in render_html(noted) and note in render_markdown(noted) and note not in render_html(REPORT)


def test_points_have_the_right_coordinates() -> None:
    svg = ElementTree.fromstring(plot([Series(0, "a", [Dot(1.0, 2.0), Dot(3.0, 4.0)])], title="t", x="x", y="y"))
    line = svg.find(".//polyline")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x1 < x2 and y1 > y2
    assert plot([Series(0, "a", [Dot(math.nan, 1.0)])], title="t", x="x", y="y") == ""
    axis = Axis(1.0, 100.0, 0.0, 10.0, logarithmic=True)
    assert axis(10.0) == pytest.approx(5) and axis.ticks() == [1, 10, 100]


def test_an_outlier_does_not_compress_the_axis() -> None:
    far = make_report(
        entry("ar", "exact", 1.5), entry("mdlm", "bound", 1.7), entry("plaid", "bound", 1.8), entry("x", "bound", 700.0)
    )
    drawn = figures.plot_likelihood(far)
    assert "700 →" in drawn
    svg = ElementTree.fromstring(figures.plot_training(far, "tokens"))
    ticks = [
        float(text.text)
        for text in svg.iter("text")
        if text.attrib["class"] == "tick" and text.attrib["text-anchor"] == "end"
    ]
    assert max(ticks) < 10
    heights = [float(pair.split(",")[1]) for line in svg.iter("polyline") for pair in line.attrib["points"].split()]
    assert min(heights) >= 13.9  # no point lies outside the plot


@pytest.mark.parametrize("low, high", [(0.0, 1.0), (1.23, 1.29), (-5.0, 1000.0), (3.0, 3.0001)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert 2 <= len(ticks) <= 8 and all(low - 1e-6 <= tick <= high + 1e-6 for tick in ticks)
    assert len(log_ticks(3.0, 70.0)) >= 3 and format_number(2e6) == "2M" and format_number(0.0) == "0"


def test_sixteen_entries_have_different_markers() -> None:
    markers = {(n % 8, draw_marker(n, 0.0, 0.0)) for n in range(16)}
    assert len(markers) == 16 and len(SHAPES) == 4


def test_html_markdown_and_json_are_written(tmp_path: Path) -> None:
    broken = replace(REPORT, real={"entropy": Value(math.nan, math.inf)})
    written = write_comparison_report(broken, tmp_path / "out.html")
    assert [path.name for path in written] == ["out.html", "out.md", "out.json"]
    content = json.loads(written[2].read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["entries"][0]["bits"] == 1.5 and content["real"]["entropy"]["value"] is None
    assert content["entries"][1]["samplings"] == asdict(REPORT)["entries"][1]["samplings"]
    assert written[1].read_text().startswith("# two on") and "≤ 1.7000 ± 0.0100" in written[1].read_text()


def test_published_results_name_known_systems_and_their_kind() -> None:
    for data, unit in (("text8", "character"), ("cifar10", "dimension")):
        rows = load_published_results(data, unit)
        assert {row.system for row in rows} >= {"ar", "md4", "rdlm"} and all(row.source for row in rows)
        kinds = {row.system: row.kind for row in rows}
        assert (kinds["ar"], kinds["md4"], kinds["rdlm"]) == ("exact", "bound", "surrogate")
        assert {row.system for row in rows if row.system in systems()} >= {"md4", "rdlm", "d3pm-uniform"}
    assert load_published_results("cifar10", "character") == []
