"""Figures of the studio and the command line: python benchmarks/studio.py [RUN or pretrained:NAME]

1. `logosphere --help`, from the shell's word to the end (limit 0.5 s).
2. Weight of the page: everything the browser loads before a text is written (limit 300 kB).
3. From the click on Write to the first token that changes on the screen (limit 1.5 s): in chromium where selenium,
   chromium and chromedriver are there, else from the request to the first moment in the stream.
4. 50 viewers of one stream over loopback: frames that each of them got, and how far the last is behind the first.
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
from logosphere.studio.models import list_models

VIEWERS, STEPS, TOKEN = 50, 128, "benchmark"
CLICK = """
const done = arguments[arguments.length - 1], clicked = performance.now();
new MutationObserver((changes, me) => { me.disconnect(); done(performance.now() - clicked); })
  .observe(document.querySelector(".texts"), { subtree: true, childList: true, characterData: true });
document.getElementById("write").click();
"""


def help_seconds(repeats: int = 7) -> tuple[float, float]:
    """Wall-clock and processor seconds, medians."""
    wall, processor = [], []
    for _ in range(repeats):
        started, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, "-m", "logosphere", "--help"], check=True, capture_output=True)
        wall.append(time.perf_counter() - started)
        after = os.times()
        processor.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(wall), statistics.median(processor)


def first_change(address: str, repeats: int = 5) -> tuple[list[float], str]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if find_spec("selenium") is None or chromium is None or driver is None:
        return [_first_moment(address) for _ in range(repeats)], "first moment in the stream (no browser here)"
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


def _first_moment(address: str) -> float:
    started = time.perf_counter()
    with httpx.Client(trust_env=False, timeout=60) as client:
        with client.stream("POST", f"{address}generate", json={"system": 0}) as answer:
            next(line for line in answer.iter_lines() if line == "event: moment")
            return time.perf_counter() - started


async def crowd(address: str) -> tuple[int, list[int], float]:
    """Moments written, those that each viewer got, and the seconds between the first and the last viewer's end."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=600, limits=limits) as client:
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def viewer(first: bool) -> tuple[int, float]:
            request = ("POST", f"{address}generate") if first else ("GET", f"{address}watch/{await begun}")
            content = {"system": 0, "steps": STEPS} if first else None
            moments = 0
            async with client.stream(*request, json=content) as answer:
                async for line in answer.aiter_lines():
                    if first and not begun.done() and line.startswith("data: "):
                        begun.set_result(json.loads(line.removeprefix("data: "))["job"])
                    moments += line == "event: moment"
            return moments, time.perf_counter()

        ends = await asyncio.gather(*(viewer(number == 0) for number in range(VIEWERS)))
    times = [end for _, end in ends]
    return ends[0][0], [moments for moments, _ in ends], max(times) - min(times)


def main() -> None:
    print(f"load                   {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    wall, processor = help_seconds()
    print(f"logosphere --help      {wall:.2f} s, {processor:.2f} s of a processor (limit 0.5)")
    weight = sum(len(content) for content, _ in load_static_files().values())
    print(f"page weight            {weight / 1000:.1f} kB, uncompressed (limit 300)")
    models = list_models(sys.argv[1:])[:1]
    models[0].load()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create_app(models, TOKEN, port), log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{port}/{TOKEN}/"
        seconds, where = first_change(address)
        print(
            f"click to first change  {statistics.median(seconds):.2f} s, worst {max(seconds):.2f}, {where} (limit 1.5)"
        )
        written, got, behind = asyncio.run(crowd(address))
        lost = sum(written - one for one in got)
        print(f"{VIEWERS} viewers             {written} frames each, {lost} lost (limit 0), ends {behind:.2f} s apart")
        print(f"model                  {models[0].describe()['system']}, {models[0].model.length} tokens")
        server.should_exit = True
        thread.join(20)


if __name__ == "__main__":
    main()
