"""A studio in a process of its own, and a browser that opens it."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "logosphere", *argv]


@contextmanager
def serve(folder: Path, *argv: str) -> Iterator[str]:
    with subprocess.Popen(command("studio", *argv), cwd=folder, stdout=subprocess.PIPE, text=True) as studio:
        assert studio.stdout is not None
        found = re.search(r"http://\S+", studio.stdout.readline())
        try:
            assert found
            yield found[0]
        finally:
            studio.terminate()


FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1240,1100",
    "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


@contextmanager
def opened(address: str, folder: Path) -> Iterator["webdriver.Chrome"]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in FLAGS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=Service(DRIVER)) as chrome:
        for _ in range(100):  # the server listens before it can respond
            chrome.get(address)
            if "Logosphere studio" in chrome.title:
                break
            time.sleep(0.1)
        until(lambda: len(chrome.find_elements(By.CSS_SELECTOR, ".pane")) == 1)
        saving = {"behavior": "allow", "downloadPath": str(folder / "saved")}
        chrome.execute_cdp_cmd("Browser.setDownloadBehavior", saving)
        yield chrome
        refused = [line for line in chrome.get_log("browser") if "400 (Bad Request)" not in line["message"]]
        assert refused == []


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the page did not reach the expected state in time"
        time.sleep(0.05)
