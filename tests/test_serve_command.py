"""`logosphere serve` as a process: its address, its signals, its errors, the page of its interface, and load."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")
import httpx  # noqa: E402
import serve_load  # noqa: E402
from cli_helpers import error_line  # noqa: E402
from serving_helpers import serve_models, write_model  # noqa: E402

from logosphere.serving.models import default_places  # noqa: E402
from logosphere.serving.server import KEY_VARIABLE, check_key  # noqa: E402


@contextmanager
def run_serve(*words: str, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    command = [sys.executable, "-m", "logosphere", "serve", *words, "--port", "0"]
    environment = os.environ | variables
    hear = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL) if hasattr(signal, "SIGHUP") else None
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=hear,  # nohup may have started the tests
    ) as server:
        assert server.stdout is not None
        try:
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, server.stderr.read() if server.stderr is not None else ""
            yield server, address[0]
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_stop_the_server_in_order(tmp_path: Path, name: str) -> None:
    """A request in work ends or is cancelled, one that waits is answered, and the exit code is 0."""
    place = write_model(tmp_path / "m", "mdlm", length=512)
    with run_serve(str(place), "--batch", "1") as (server, address):
        assert httpx.post(
            f"{address}/completions", json={"model": "m", "steps": 2}, timeout=60, trust_env=False
        ).is_success
        url = httpx.URL(address)
        body = json.dumps({"model": "m", "steps": 1024}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
        clients = [socket.create_connection((url.host, url.port or 0), 60) for _ in range(3)]
        for client in clients:
            client.settimeout(60)
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.3)
        server.send_signal(getattr(signal, name))
        answers = [client.recv(65536) for client in clients]
        for client in clients:
            client.close()
        assert server.wait(60) == 0
        assert any(b" 503 " in answer and b"stopping" in answer for answer in answers), answers
        assert server.stderr is not None and "Traceback" not in server.stderr.read()


@pytest.mark.slow
def test_the_default_models_answer_with_a_key(tmp_path: Path) -> None:
    with run_serve("--host", "0.0.0.0", LOGOSPHERE_API_KEY="k" * 20) as (_, address):
        local = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{local}/models", timeout=60, trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {'k' * 20}"}
        listed = httpx.get(f"{local}/models", headers=headers, timeout=60, trust_env=False).json()
        assert [f"pretrained:{model['id']}" for model in listed["data"]] == default_places()
        content = {"model": "stories", "prompt": "The dog", "suffix": " the park.", "steps": 4, "max_tokens": 4}
        answer = httpx.post(f"{local}/completions", json=content, headers=headers, timeout=120, trust_env=False)
        assert answer.json()["choices"][0]["text"]


def test_wrong_command_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert "needs an API key of at least 16" in error_line(capsys, ["serve", "--host", "0.0.0.0"])
    assert "the one given has 5" in error_line(capsys, ["serve", "--host", "::", "--api-key", "short"])
    assert "--port must be" in error_line(capsys, ["serve", "--port", "70000"])
    assert "--queue and --batch" in error_line(capsys, ["serve", "--batch", "0"])
    assert "no run in nowhere" in error_line(capsys, ["serve", "nowhere", "--port", "0"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "choose another --port" in error_line(capsys, ["serve", "--port", port])
    for host in ("127.0.0.1", "localhost", "::1"):
        check_key(host, "")


def test_two_models_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("a", "b"):
        write_model(tmp_path / part / "m", "mdlm")
    words = ["serve", str(tmp_path / "a" / "m"), str(tmp_path / "b" / "m"), "--port", "0"]
    assert "Two models are called m" in error_line(capsys, words)


@pytest.mark.slow
def test_the_page_describes_the_interface(tmp_path: Path) -> None:
    """Requests made from the page are answered as it says.

    Whether a model takes a request that the page allows depends on its alphabet and length, so that check is left out.
    """
    pytest.importorskip("schemathesis", reason="it is installed with: pip install schemathesis")
    with serve_models(tmp_path) as address:
        page = f"{address.removesuffix('/v1')}/openapi.json"
        command = [sys.executable, "-m", "schemathesis.cli", "run", page, "--max-examples", "15", "--seed", "1"]
        command += ["--exclude-checks", "positive_data_acceptance", "--request-timeout", "60", "--no-color"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-6000:]
        assert re.search(r"Tested: [67]\n", done.stdout), done.stdout[-2000:]


@pytest.mark.slow
def test_many_clients_get_texts_and_memory_stays(tmp_path: Path) -> None:
    """The short form of benchmarks/serve_load.py."""
    place = write_model(tmp_path / "m", "mdlm", length=64)
    measured = serve_load.measure(20.0, 16, str(place), 8, 2.0)
    load, paired = measured["load"], measured["paired"]
    assert load["errors"] == [] and load["texts"] > 50
    assert load["memory_growth"] < 0.1 and load["after"]["files"] <= load["before"]["files"] + 4
    assert paired["cpu_ratio"] > 1.5, "small networks gain from batches, also in processor seconds"
