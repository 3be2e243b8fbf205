"""Latencies of the studio and the command line: python benchmarks/studio.py [RUN or pretrained:NAME]

1. `logosphere --help`: time of the process (limit 0.5 s).
2. Size of the page: everything that the browser loads before text is generated (limit 300 kB).
3. Time from a click on Generate to the first changed token on the screen (limit 1.5 s): in chromium if selenium,
   chromium and chromedriver are installed, else from the request to the first `moment` event of the stream.
4. 50 viewers of one stream over loopback: frames received by each, and time between the first and last to finish.
"""

import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from importlib.util import find_spec

import httpx
import uvicorn

from logosphere.studio.app import create_app, load_static_files
from logosphere.studio.library import Library

VIEWERS, STEPS, TOKEN = 50, 128, "benchmark"
CLICK = """
const done = arguments[arguments.length - 1], clicked = performance.now();
new MutationObserver((changes, me) => { me.disconnect(); done(performance.now() - clicked); })
  .observe(document.querySelector(".texts"), { subtree: true, childList: true, characterData: true });
document.getElementById("write").click();
"""


def measure_help(repeats: int = 7) -> tuple[float, float]:
    """Return the medians of wall-clock and CPU seconds."""
    wall, processor = [], []
    for _ in range(repeats):
        started, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-m", "logosphere", "--help"], check=True, capture_output=True)
        wall.append(time.perf_counter() - started)
        after = os.times()
        processor.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(wall), statistics.median(processor)


def measure_first_change(address: str, repeats: int = 5) -> tuple[list[float], str]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if find_spec("selenium") is None or chromium is None or driver is None:
        return [
            _measure_first_moment(address) for _ in range(repeats)
        ], "first moment event of the stream (no browser installed)"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=Service(driver)) as browser:
        found = []
        for _ in range(repeats):
            browser.get(address)
            while not browser.execute_script("return document.querySelector('.pane') !== null"):
                time.sleep(0.05)
            found.append(browser.execute_async_script(CLICK) / 1000)
            time.sleep(1)
    return found, "in chromium"


def _measure_first_moment(address: str) -> float:
    started = time.perf_counter()
    with httpx.Client(trust_env=False, timeout=60) as client:
        with client.stream("POST", f"{address}generate", json={"system": 0}) as response:
            next(line for line in response.iter_lines() if line == "event: moment")
            return time.perf_counter() - started


async def watch_with_viewers(address: str) -> tuple[int, list[int], float]:
    """Return the frames sent, those received by each viewer, and the seconds between the first and last to finish."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=600, limits=limits) as client:
        started_job: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def viewer(first: bool) -> tuple[int, float]:
            request = ("POST", f"{address}generate") if first else ("GET", f"{address}watch/{await started_job}")
            content = {"system": 0, "steps": STEPS} if first else None
            moments = 0
            async with client.stream(*request, json=content) as response:
                async for line in response.aiter_lines():
                    if first and not started_job.done() and line.startswith("data: "):
                        started_job.set_result(json.loads(line.removeprefix("data: "))["job"])
                    moments += line == "event: moment"
            return moments, time.perf_counter()

        ends = await asyncio.gather(*(viewer(number == 0) for number in range(VIEWERS)))
    times = [end for _, end in ends]
    return ends[0][0], [moments for moments, _ in ends], max(times) - min(times)


def main() -> None:
    print(f"load                   {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    wall, processor = measure_help()
    print(f"logosphere --help      {wall:.2f} s, {processor:.2f} CPU s (limit 0.5)")
    size = sum(len(content) for content, _ in load_static_files().values())
    print(f"page size              {size / 1000:.1f} kB, uncompressed (limit 300)")
    library = Library(sys.argv[1:])
    models = library.models
    models[0].load()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(library, TOKEN, port), log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{port}/{TOKEN}/"
        seconds, where = measure_first_change(address)
        print(
            f"click to first change  {statistics.median(seconds):.2f} s, worst {max(seconds):.2f}, {where} (limit 1.5)"
        )
        sent, received, lag = asyncio.run(watch_with_viewers(address))
        lost = sum(sent - count for count in received)
        print(f"{VIEWERS} viewers             {sent} frames each, {lost} lost (limit 0), finished within {lag:.2f} s")
        print(f"model                  {models[0].describe()['system']}, {models[0].model.length} tokens")
        server.should_exit = True
        thread.join(20)


if __name__ == "__main__":
    main()
