"""Load on the server: python benchmarks/serve_load.py [--seconds 120] [--clients 32] [--model pretrained:stories]

A server runs as a process of its own. Alternately one client and several ask for one text after another: the
figure is the ratio of texts per second, and of processor seconds of the server for each text, which other programs of
the machine disturb less. Then many clients ask for texts of random length, every second one as a stream. Reported are
errors, texts, latencies, and the memory, threads and files of the server over time.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PARTS = 3
"""Times that one client and several alternate, so that a drift of the machine falls on both."""
PAIRED = 8
"""Clients that are compared with one."""


@contextmanager
def run_server(model: str, *options: str) -> Iterator[tuple[str, int]]:
    """Run a server; yield its address and the number of its process."""
    command = [sys.executable, "-m", "logosphere", "serve", model, "--port", "0", *options]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        assert server.stdout is not None
        try:
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server did not start"
            yield address[0], server.pid
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0, "the server did not stop as it should"


def measure_process(number: int) -> dict[str, float]:
    """Return kilobytes, threads, open files, and processor seconds of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines() if ":" in line)
    times = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    seconds = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    files = len(os.listdir(f"/proc/{number}/fd"))
    kilobytes, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
    return {"kilobytes": kilobytes, "threads": threads, "files": files, "cpu_seconds": round(seconds, 2)}


@dataclass
class Tally:
    """What clients have got."""

    seconds: list[float] = field(default_factory=list)
    """Latency of each text."""
    tokens: int = 0
    errors: list[str] = field(default_factory=list)


async def ask(client: httpx.AsyncClient, content: dict[str, object], tally: Tally) -> None:
    """Ask for a text, and check that it is complete."""
    started = time.perf_counter()
    try:
        response = await client.post("completions", json=content)
        response.raise_for_status()
        if content.get("stream"):
            lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
            assert lines[-1] == "[DONE]", response.text[-200:]
            last = json.loads(lines[-2])
            assert last["choices"][0]["finish_reason"] in ("stop", "length"), last
        else:
            tally.tokens += response.json()["usage"]["completion_tokens"]
        tally.seconds.append(time.perf_counter() - started)
    except (httpx.HTTPError, AssertionError, KeyError, ValueError) as problem:
        tally.errors.append(f"{type(problem).__name__}: {problem}"[:200])


async def ask_for(address: str, model: str, clients: int, seconds: float, steps: int, *, varied: bool = False) -> Tally:
    """Let clients ask for one text after another."""
    tally, end, rng = Tally(), time.monotonic() + seconds, random.Random(clients)
    name = model.removeprefix("pretrained:").rsplit("/", 1)[-1]
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, timeout=300, trust_env=False, limits=limits) as client:

        async def run(number: int) -> None:
            count = 0
            while time.monotonic() < end:
                content: dict[str, object] = {
                    "model": name,
                    "prompt": "once",
                    "steps": steps,
                    "seed": 1000 * number + count,
                }
                if varied:
                    content |= {"max_tokens": rng.randint(4, 40), "stream": bool(number % 2)}
                await ask(client, content, tally)
                count += 1

        await asyncio.gather(*(run(number) for number in range(clients)))
    return tally


def compare(address: str, number: int, model: str, seconds: float, steps: int) -> dict[str, object]:
    """Texts per second, and processor seconds of the server for a text, with one client and with several."""
    rates: dict[int, list[float]] = {1: [], PAIRED: []}
    costs: dict[int, list[float]] = {1: [], PAIRED: []}
    for _ in range(PARTS):
        for clients in (1, PAIRED):
            before, started = measure_process(number)["cpu_seconds"], time.perf_counter()
            tally = asyncio.run(ask_for(address, model, clients, seconds, steps))
            assert not tally.errors, tally.errors[0]
            rates[clients].append(len(tally.seconds) / (time.perf_counter() - started))
            costs[clients].append((measure_process(number)["cpu_seconds"] - before) / len(tally.seconds))
    rate = {clients: round(statistics.median(values), 3) for clients, values in rates.items()}
    cost = {clients: round(statistics.median(values), 4) for clients, values in costs.items()}
    return {
        "texts_per_second": rate,
        "throughput_ratio": round(rate[PAIRED] / rate[1], 2),
        "cpu_seconds_per_text": cost,
        "cpu_ratio": round(cost[1] / cost[PAIRED], 2),
    }


async def hold_load(
    address: str, number: int, model: str, clients: int, seconds: float, steps: int
) -> dict[str, object]:
    """Many clients at once; the state of the server every tenth of the time."""
    states = list[dict[str, float]]()

    async def watch() -> None:
        while True:
            await asyncio.sleep(seconds / 10)
            states.append(measure_process(number))

    await ask_for(address, model, clients, 0.1 * seconds, steps, varied=True)  # caches and pools are filled
    before, task = measure_process(number), asyncio.create_task(watch())
    tally = await ask_for(address, model, clients, seconds, steps, varied=True)
    task.cancel()
    await asyncio.sleep(2)  # until connections are closed whose clients have gone
    after = measure_process(number)
    ordered = sorted(tally.seconds)
    sizes = [state["kilobytes"] for state in states]
    middle = len(sizes) // 2
    return {
        "seconds": seconds,
        "clients": clients,
        "texts": len(tally.seconds),
        "errors": tally.errors,
        "latency_seconds": {
            "median": round(statistics.median(ordered), 3),
            "95%": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
            "largest": round(ordered[-1], 3),
        },
        "before": before,
        "during": states,
        "after": after,
        "memory_growth": round(max(sizes[middle:]) / max(sizes[:middle]) - 1, 4),  # of the peak between both halves
    }


def measure(seconds: float, clients: int, model: str, steps: int, paired_seconds: float) -> dict[str, object]:
    """Both measurements, with a server each."""
    with run_server(model) as (address, number):
        asyncio.run(ask_for(address, model, 1, 0.5, steps))
        compared = compare(address, number, model, paired_seconds, steps)
    with run_server(model) as (address, number):
        held = asyncio.run(hold_load(address, number, model, clients, seconds, steps))
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return {"model": model, "steps": steps, "omp_num_threads": threads, "paired": compared, "load": held}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the load by many clients")
    parser.add_argument("--paired-seconds", type=float, default=15.0, help="of each part of the comparison")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--model", default="pretrained:stories")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--json", type=Path, help="file for the result")
    args = parser.parse_args()
    measured = measure(args.seconds, args.clients, args.model, args.steps, args.paired_seconds)
    result = json.dumps(measured)
    print(result)
    if args.json is not None:
        args.json.write_text(result + "\n")
    return 1 if measured["load"]["errors"] else 0  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
