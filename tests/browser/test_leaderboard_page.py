"""The leaderboard in a real browser, from the disk and without a network: sorting, filters, origins, widths, themes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from leaderboard_fixtures import make_records

from logosphere.report.comparison import load_all_published_results
from logosphere.report.leaderboard import make_boards
from logosphere.report.leaderboard_page import render_leaderboard

webdriver = pytest.importorskip("selenium.webdriver")
from browser_helpers import CHROMIUM, DRIVER, FLAGS, until  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]
ROOT = Path(__file__).parents[2]
SIZES = {"wide": (1240, 1000, False), "phone": (390, 800, True)}
PROCESSOR_SECONDS = 1.0


@pytest.fixture(scope="module")
def chrome() -> Iterator["webdriver.Chrome"]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in FLAGS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(DRIVER)) as chrome:
        chrome.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        chrome.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield chrome


@pytest.fixture
def page(chrome: "webdriver.Chrome", tmp_path: Path) -> Iterator["webdriver.Chrome"]:
    path = tmp_path / "leaderboard.html"
    path.write_text(render_leaderboard(make_boards(make_records()), load_all_published_results(), ["one is damaged"]))
    resize(chrome, "wide")
    chrome.get(path.as_uri())
    yield chrome
    assert chrome.get_log("browser") == []  # no error, and nothing that the policy refused


def resize(chrome: "webdriver.Chrome", size: str) -> None:
    width, height, mobile = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def names(chrome: "webdriver.Chrome") -> list[str]:
    rows = "document.querySelectorAll('section.board:not([hidden]) > .wide:first-of-type tbody tr:not([hidden])')"
    name = "row => row.cells[0].querySelector('button').textContent"
    found: list[str] = chrome.execute_script(f"return [...{rows}].map({name})")
    return found


def test_columns_sort_both_ways_and_empty_cells_stay_last(page: "webdriver.Chrome") -> None:
    assert names(page) == ["ar", "mdlm", "md4", "udlm", "bfn <b>", "fisher-flow"]
    head = next(head for head in page.find_elements(By.CSS_SELECTOR, "th button") if head.text == "bound")
    head.click()
    assert names(page)[:4] == ["mdlm", "md4", "udlm", "bfn <b>"] and set(names(page)[4:]) == {"ar", "fisher-flow"}
    head.click()
    assert names(page)[:4] == ["bfn <b>", "udlm", "md4", "mdlm"] and set(names(page)[4:]) == {"ar", "fisher-flow"}
    assert head.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    system = next(head for head in page.find_elements(By.CSS_SELECTOR, "th button") if head.text == "system")
    system.send_keys(Keys.ENTER)  # by keyboard
    assert names(page) == ["ar", "bfn <b>", "fisher-flow", "md4", "mdlm", "udlm"]


def test_filters_leave_families_kinds_and_boards(page: "webdriver.Chrome") -> None:
    Select(page.find_element(By.ID, "family")).select_by_value("continuous")
    assert names(page) == ["bfn <b>", "fisher-flow"] and page.find_element(By.ID, "shown").text == "2 of 6 rows"
    Select(page.find_element(By.ID, "kind")).select_by_value("surrogate")
    assert names(page) == ["fisher-flow"]
    Select(page.find_element(By.ID, "family")).select_by_value("")
    Select(page.find_element(By.ID, "kind")).select_by_value("")
    Select(page.find_element(By.ID, "board")).select_by_index(1)
    title = page.find_element(By.CSS_SELECTOR, "section:not([hidden]) h2").text
    assert names(page) == ["mdlm"] and "20 CPU minutes" in title


@pytest.mark.parametrize("how", ["hover", "focus", "tap"])
def test_a_row_shows_its_command_commit_and_seeds(page: "webdriver.Chrome", how: str) -> None:
    resize(page, "phone" if how == "tap" else "wide")
    origin = page.find_element(By.ID, "origin")
    assert not origin.is_displayed()
    button = page.find_elements(By.CSS_SELECTOR, "section.board:not([hidden]) td button")[1]
    page.execute_async_script(  # with its event, which hides the origin
        "arguments[0].scrollIntoView({block: 'center'}); setTimeout(arguments[1], 200)", button
    )
    if how == "hover":
        ActionChains(page).move_to_element(button).perform()
    elif how == "tap":
        button.click()
    else:
        page.execute_script("arguments[0].focus()", button)
    until(origin.is_displayed)
    for text in ("mdlm", "logosphere compare", "abcdef123456", "0, 1", "3 CPU minutes"):
        assert text in origin.text
    box, width, height = origin.rect, *page.execute_script("return [innerWidth, innerHeight]")
    assert box["x"] >= 0 and box["x"] + box["width"] <= width + 1
    top = page.execute_script("return arguments[0].getBoundingClientRect().top", origin)
    assert top >= 0 and top + box["height"] <= height + 1
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    until(lambda: not origin.is_displayed())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_fits_its_window_and_is_legible(page: "webdriver.Chrome", size: str, theme: str) -> None:
    resize(page, size)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    page.execute_script("scrollTo(0, 0)")
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    colours = "const s = getComputedStyle(document.querySelector(arguments[0])); return [s.color, s.backgroundColor]"
    (ink, _), (_, paper) = (page.execute_script(colours, one) for one in ("td", "body"))
    assert contrast(ink, paper) > 7
    assert contrast(page.execute_script(colours, "td small")[0], paper) > 4.5
    assert (luminance(paper) < 0.1) == (theme == "dark")
    page.find_element(By.ID, "theme").click()
    assert (luminance(page.execute_script(colours, "body")[1]) < 0.1) == (theme == "light")


def luminance(colour: str) -> float:
    """The relative luminance of rgb(…) by WCAG 2."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_committed_page_opens_quickly_and_requests_nothing(chrome: "webdriver.Chrome") -> None:
    """Measured as processor time of the page, which the load of the machine does not change."""
    path = ROOT / "docs" / "results" / "leaderboard.html"
    assert path.stat().st_size < 1e6
    resize(chrome, "wide")
    chrome.get("about:blank")
    chrome.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    chrome.get(path.as_uri())
    found = {one["name"]: one["value"] for one in chrome.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    assert found["TaskDuration"] < PROCESSOR_SECONDS
    assert chrome.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert len(names(chrome)) > 1 and chrome.get_log("browser") == []
