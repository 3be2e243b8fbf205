"""Limits of the connections of a server: half-open clients neither keep others out nor fill the log."""

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
resource = pytest.importorskip("resource")
import httpx  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.responses import PlainTextResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

from logosphere.studio.connections import Limits, RateLimit, count_places, make_server  # noqa: E402

SHORT = Limits(connections=8, header_seconds=0.3, body_seconds=0.3, stall_seconds=0.3, refusal_seconds=0.0)


@pytest.fixture
def port() -> Iterator[int]:
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(app, SHORT)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def open_half(port: int, content: bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX: ") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 20)
    client.sendall(content)
    return client


def test_half_open_connections_give_way_to_a_new_one(port: int) -> None:
    clients = [open_half(port) for _ in range(40)]
    try:
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=20).text == "here"
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GET /",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /",
    ],
)
def test_silent_connections_are_closed(port: int, content: bytes) -> None:
    with open_half(port, content) as client:
        while client.recv(65536):
            pass


def test_the_log_is_limited_and_holds_no_control_characters() -> None:
    now = [0.0]
    limit = RateLimit(2, 60.0, lambda: now[0])

    def log() -> tuple[bool, str]:
        record = logging.LogRecord("a", logging.WARNING, "", 0, "path %s", ("\x1b[2J",), None)
        return limit.filter(record), record.getMessage()

    assert [log()[0] for _ in range(5)] == [True, True, False, False, False]
    now[0] = 61.0
    assert log() == (True, "path \\x1b[2J (3 more records were left out)") and log() == (True, "path \\x1b[2J")


def test_places_fit_into_the_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    monkeypatch.setattr("os.listdir", lambda path: ["0"] * 12)
    assert count_places(64, 16) == 20
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1 << 20, 1 << 20))
    assert count_places(64, 16) == 64


STUDIO = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from logosphere.cli import main
sys.exit(main(["studio", "pretrained:ar"]))
"""


@pytest.mark.slow
def test_the_page_is_reachable_with_few_descriptors_and_the_log_stays_short(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([sys.executable, "-c", STUDIO], stdout=subprocess.PIPE, stderr=log, text=True) as studio,
    ):
        assert studio.stdout is not None
        address = studio.stdout.readline().split()[-1]
        port = int(address.split(":")[2].split("/")[0])
        clients = []
        try:
            for _ in range(400):
                clients.append(open_half(port))
            for _ in range(3):
                assert httpx.get(address, trust_env=False, timeout=60).status_code == 200
        finally:
            for client in clients:
                client.close()
            studio.terminate()
            studio.wait(60)
    assert (tmp_path / "log").stat().st_size < 20_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="process statistics need /proc")
@pytest.mark.parametrize("target", ["studio", "serve"])
def test_hostile_clients_neither_slow_down_nor_grow_a_server(target: str) -> None:
    from hostile_clients import measure

    found = measure(20.0, 32, target, "pretrained:ar", 4)
    before, after = found["before"], found["after"]
    assert isinstance(before, dict) and isinstance(after, dict)
    assert (
        after["children"] == 0 and after["threads"] <= before["threads"] + 2 and after["files"] <= before["files"] + 4
    )
    assert after["kilobytes"] - before["kilobytes"] < 32_000
    ratio = found["ratio"]
    assert isinstance(ratio, dict) and ratio["text"] < 4  # twice in a quiet minute; this machine may be busy
