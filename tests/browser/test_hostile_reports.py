"""Reports of someone else in a real browser: their scripts do not run, and an address they give away opens nothing."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from comparison_fixtures import entry, make_report

from logosphere.report.write import render_html

pytest.importorskip("starlette")
webdriver = pytest.importorskip("selenium.webdriver")
from browser_helpers import CHROMIUM, DRIVER, opened, serve, until  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]
SCRIPT = """
document.documentElement.dataset.ran = "yes";
new RTCPeerConnection({ iceServers: [{ urls: "stun:127.0.0.1:9" }] }).createDataChannel("x");
fetch("http://127.0.0.1:9/"); location = "http://127.0.0.1:9/?" + location.href;
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator["webdriver.Chrome"]:
    """A studio with a report into which a script and an event handler were put."""
    page = render_html(make_report(entry("a", "bound", 1.5), entry("b", "surrogate", 1.4)))
    attack = f'<script>{SCRIPT}</script><img src="x" onerror="document.documentElement.dataset.ran = 1">'
    (tmp_path / "out.html").write_text(page.replace("</main>", f"{attack}</main>"))
    for end in ("md", "json"):
        (tmp_path / f"out.{end}").write_text(json.dumps({}))
    with serve(tmp_path, "pretrained:ar", "--report", "out.html") as address:
        generator = opened(address, tmp_path)
        chrome = generator.__enter__()
        try:
            yield chrome
        finally:
            chrome.get_log("browser")  # the refusals of the policy, which are wanted here
            generator.__exit__(None, None, None)


def test_a_foreign_script_in_a_report_does_not_run(browser: "webdriver.Chrome") -> None:
    browser.find_element(By.CSS_SELECTOR, "#reports summary").click()
    until(lambda: browser.find_element(By.ID, "sheet").is_displayed())
    path = browser.find_element(By.ID, "sheet").get_attribute("src")
    studio = browser.current_url
    for place in ("frame", "tab"):
        browser.switch_to.frame("sheet") if place == "frame" else browser.get(path)
        until(lambda: bool(browser.find_elements(By.CSS_SELECTOR, "h2")))
        time.sleep(0.5)
        root = browser.find_element(By.CSS_SELECTOR, "html")
        assert root.get_attribute("data-ran") is None
        theme = root.get_attribute("data-theme")
        browser.find_element(By.ID, "theme").click()  # a script of the package runs
        assert root.get_attribute("data-theme") not in (None, theme)
        if place == "frame":
            browser.switch_to.default_content()
    assert browser.current_url == path  # it did not navigate
    token = re.findall(r"http://[^/]+/([^/]+)/", path or "")[0]
    assert token not in studio
    for rest in ("", "systems", "reports/1"):
        browser.get(path.replace("reports/0", rest))
        assert "lacks the token" in browser.find_element(By.TAG_NAME, "body").text
