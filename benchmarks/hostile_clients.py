"""Hostile clients of a server: python benchmarks/hostile_clients.py [--target serve] [--seconds 600] [--json FILE]

The studio, or `logosphere serve`, runs as a process of its own. Hostile clients in another process open connections
that send nothing or a part of a request, drip bytes, guess tokens, send what is no HTTP, ask for WebSockets and send
bodies that are too large; all begin again as soon as they are refused or closed. An honest client asks for the list of
models, and for a text. Reported are its latencies without and with the hostile clients, and memory, threads and files
of the server. The figure is a ratio of medians, measured in alternating parts, since machines are shared.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

PARTS = 4
"""Times that the hostile clients come and go, so that a drift of the machine falls on both."""
QUIET = 0.25
"""Share of the time without hostile clients."""


# ---- the hostile clients ---------------------------------------------------------------------------------------------

HALF = b"GET /guess/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX: "
KINDS: list[tuple[bytes, float]] = [
    (b"", 0),
    (HALF, 0),
    (HALF, 0.05),
    (b"GET /guess/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", 0),
    (b"GET /guess/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 0),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 0),
    (b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 0),
    (b"POST /guess/generate HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 999999999\r\n\r\n" + b"a" * 65536, 0),
]
"""What is sent on a connection, and the seconds between the bytes that follow; 0 sends nothing more."""


async def attack_forever(port: int, kind: int) -> None:
    """Open connections one after another, each until the server closes it."""
    content, pause = KINDS[kind % len(KINDS)]
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        try:
            writer.write(content % port if b"%d" in content else content)
            while pause:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(pause)
            while await reader.read(65536):
                pass
        except OSError:
            pass
        finally:
            writer.transport.abort()


async def run_clients(port: int, clients: int) -> None:
    await asyncio.gather(*(attack_forever(port, kind) for kind in range(clients)))


# ---- the server and the honest client --------------------------------------------------------------------------------


KEY = "the-key-of-honest-clients"


@contextmanager
def run_target(target: str, model: str) -> Iterator[tuple[str, int]]:
    """Run a server; yield its address and the number of its process."""
    command = [sys.executable, "-m", "logosphere", target, model]
    command += ["--port", "0", "--api-key", KEY] if target == "serve" else []
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
            server.send_signal(signal.SIGINT)
            server.wait(30)


@contextmanager
def run_hostile(port: int, clients: int) -> Iterator[None]:
    command = [sys.executable, __file__, "--attack", str(port), "--clients", str(clients)]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(2)  # until all are connected
            yield
        finally:
            process.kill()
            process.wait(30)


def measure_process(number: int) -> dict[str, int]:
    """Return resident kilobytes, threads, open files and children of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines() if ":" in line)
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    files = len(os.listdir(f"/proc/{number}/fd"))
    kilobytes, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
    return {"kilobytes": kilobytes, "threads": threads, "files": files, "children": len(children)}


def ask(client: httpx.Client, target: str, model: str, steps: int) -> dict[str, float]:
    """Return the seconds of a request for the list of models and of one for a text."""
    started = time.perf_counter()
    client.get("systems" if target == "studio" else "models").raise_for_status()
    listed = time.perf_counter()
    if target == "studio":
        response = client.post("generate", json={"system": 0, "steps": steps, "n": 1})
        is_done = "event: done" in response.text
    else:
        name = model.removeprefix("pretrained:").rsplit("/", 1)[-1]
        response = client.post("completions", json={"model": name, "steps": steps})
        is_done = "finish_reason" in response.text
    assert response.status_code == 200 and is_done, response.text[:200]
    return {"list": listed - started, "text": time.perf_counter() - listed}


def ask_for(client: httpx.Client, seconds: float, target: str, model: str, steps: int) -> list[dict[str, float]]:
    found, end = list[dict[str, float]](), time.monotonic() + seconds
    while time.monotonic() < end or len(found) < 3:
        found.append(ask(client, target, model, steps))
        time.sleep(0.05)
    return found


def measure(seconds: float, clients: int, target: str, model: str, steps: int) -> dict[str, object]:
    """Return the latencies of the honest client without and with hostile ones, and the state of the server."""
    quiet, hostile, states = list[dict[str, float]](), list[dict[str, float]](), list[dict[str, int]]()
    with run_target(target, model) as (address, number):
        port = int(re.findall(r":(\d+)/", address)[0])
        headers = {"Authorization": f"Bearer {KEY}"} if target == "serve" else {}
        # No kept connections: with each request the honest client has to get a place again.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=120, limits=limits) as client:
            ask_for(client, 0, target, model, steps)
            before = measure_process(number)
            for _ in range(PARTS):
                quiet += ask_for(client, QUIET * seconds / PARTS, target, model, steps)
                with run_hostile(port, clients):
                    hostile += ask_for(client, (1 - QUIET) * seconds / PARTS, target, model, steps)
                    states.append(measure_process(number))
            time.sleep(12)  # until the limits of connections that nobody closed have passed
            after = measure_process(number)
    medians = {
        kind: {name: round(1000 * statistics.median(one[kind] for one in rows), 1) for name, rows in parts.items()}
        for parts in ({"quiet": quiet, "hostile": hostile},)
        for kind in ("list", "text")
    }
    slowest = {kind: round(1000 * max(one[kind] for one in hostile), 1) for kind in ("list", "text")}
    return {
        "target": target,
        "seconds": seconds,
        "clients": clients,
        "requests": {"quiet": len(quiet), "hostile": len(hostile)},
        "median_milliseconds": medians,
        "ratio": {kind: round(one["hostile"] / one["quiet"], 2) for kind, one in medians.items()},
        "slowest_milliseconds": slowest,
        "before": before,
        "during": states,
        "after": after,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["studio", "serve"], default="studio")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--model", default="pretrained:mdlm")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--attack", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        asyncio.run(run_clients(args.attack, args.clients))
        return 0
    result = json.dumps(measure(args.seconds, args.clients, args.target, args.model, args.steps))
    print(result)
    if args.json is not None:
        args.json.write_text(result + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
