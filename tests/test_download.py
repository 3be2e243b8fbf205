"""Downloads: resumed, checked, never larger than expected, and with clear errors."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logosphere.data.catalogue import HUB, RemoteFile
from logosphere.data.download import fetch as fetch_file
from logosphere.errors import UserError
from logosphere.io import file_sha256

CONTENT = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)


class Server(ThreadingHTTPServer):
    """Serves CONTENT under names that select a failure, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, requested = self.path.strip("/"), self.headers.get("Range")
        self.server.requests.append((name, requested))
        if name == "missing":
            self.send_error(404)
            return
        content = {"other": b"?" * SIZE, "large": CONTENT * 2, "small": CONTENT[:1000]}.get(name, CONTENT)
        obeyed = requested if requested and name != "no-range" else "bytes=0-"
        start, end = obeyed.removeprefix("bytes=").split("-")
        content, whole = content[: int(end) + 1] if end else content, len(content)
        place = int(start)
        if place and place >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if place or end else 200)
        if place or end:
            self.send_header("Content-Range", f"bytes {place}-{len(content) - 1}/{whole}")
        self.send_header("Content-Length", str(len(content) - place))
        self.end_headers()
        breaks = (name == "breaks-once" and not requested) or name == "breaks-always"
        self.wfile.write(content[place : place + SIZE // 3] if breaks else content[place:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.bin"


def fetch(urls: list[str], path: Path, report: Callable[[int, int], None] | None = None, **changes: object) -> Path:
    file = RemoteFile(path.name, SIZE, tuple(urls), SHA256)
    return fetch_file(replace(file, **changes), path, report)  # type: ignore[arg-type]


def sibling_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_file_is_downloaded_with_progress(server: Server, path: Path) -> None:
    progress: list[tuple[int, int]] = []
    assert fetch([server.url("good")], path, lambda *step: progress.append(step)) == path
    assert path.read_bytes() == CONTENT and file_sha256(path) == SHA256
    assert progress[-1] == (SIZE, SIZE) and progress == sorted(progress)
    assert sibling_files(path) == ["file.bin"]


def test_existing_file_is_not_downloaded_again(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    fetch([server.url("good")], path)
    assert server.requests == []


def test_damaged_file_is_downloaded_again(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1] + b"?")
    fetch([server.url("good")], path)
    assert path.read_bytes() == CONTENT


def test_an_interrupted_download_resumes_where_it_broke(server: Server, path: Path) -> None:
    fetch([server.url("breaks-once")], path)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("breaks-once", None), ("breaks-once", f"bytes={SIZE // 3}-")]


def test_partial_download_is_kept_for_the_next_run(server: Server, path: Path) -> None:
    with pytest.raises(UserError, match="connection ended"):
        fetch([server.url("breaks-always")], path)
    assert sibling_files(path) == ["file.bin.part"]
    fetch([server.url("good")], path)
    assert server.requests[-1] == ("good", f"bytes={SIZE // 3 * 2}-")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT[:1000], b"?" * 1000, b"?" * SIZE, CONTENT, b"?" * (SIZE + 5)])
@pytest.mark.parametrize("name", ["good", "no-range"])
def test_any_partial_file_is_completed(server: Server, path: Path, part: bytes, name: str) -> None:
    path.parent.mkdir()
    path.with_name("file.bin.part").write_bytes(part)
    fetch([server.url(name)], path)
    assert path.read_bytes() == CONTENT
    assert sibling_files(path) == ["file.bin"]


def test_the_next_mirror_is_tried(server: Server, path: Path) -> None:
    urls = [server.url(name) for name in ("missing", "other", "large", "small", "good")]
    fetch(["http://127.0.0.1:9/refused", *urls], path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other", "another than expected"),
        ("large", "larger than"),
        ("small", "ended after"),
        ("missing", "404"),
    ],
)
def test_failed_download_leaves_no_file_and_explains(server: Server, path: Path, name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        fetch([server.url(name)], path)
    assert "LOGOSPHERE_DATA" in str(caught.value)
    assert sibling_files(path) == []


def test_download_never_exceeds_the_expected_size(server: Server, path: Path) -> None:
    sizes: list[int] = []
    part = path.with_name("file.bin.part")
    with pytest.raises(UserError):
        fetch([server.url("large")], path, lambda *_: sizes.append(part.stat().st_size))
    assert sizes and max(sizes) <= SIZE


def test_two_concurrent_downloads_succeed(server: Server, path: Path) -> None:
    results: list[Path] = []

    def run() -> None:
        results.append(fetch([server.url("good")], path))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [path] * 4
    assert path.read_bytes() == CONTENT


def test_the_beginning_of_a_larger_file(server: Server, path: Path) -> None:
    """Only what is asked for is requested; a server that sends all is not read further."""
    head, sha256 = CONTENT[:1000], hashlib.sha256(CONTENT[:1000]).hexdigest()
    for name in ("good", "no-range"):
        fetch([server.url(name)], path, size=1000, sha256=sha256, head=True)
        assert path.read_bytes() == head and sibling_files(path) == ["file.bin"]
        path.unlink()
    assert server.requests == [("good", "bytes=0-999"), ("no-range", "bytes=0-999")]
    path.with_name("file.bin.part").write_bytes(CONTENT[:300])
    fetch([server.url("good")], path, size=1000, sha256=sha256, head=True)
    assert path.read_bytes() == head and server.requests[-1] == ("good", "bytes=300-999")
    path.unlink()
    with pytest.raises(UserError, match="another than expected"):
        fetch([server.url("good")], path, size=1000, head=True)
    assert sibling_files(path) == []


def test_a_file_whose_size_is_an_estimate(server: Server, path: Path) -> None:
    progress: list[tuple[int, int]] = []
    about = {"size": SIZE - 7, "sha256": "", "exact": False}
    fetch([server.url("breaks-once")], path, lambda *step: progress.append(step), **about)
    assert path.read_bytes() == CONTENT and progress[-1] == (SIZE, SIZE)
    assert server.requests == [("breaks-once", None), ("breaks-once", f"bytes={SIZE // 3}-")]
    fetch([server.url("missing")], path, **about)  # what is there is taken, although nothing more is known of it
    with pytest.raises(UserError, match="larger than"):
        fetch([server.url("good")], path.with_name("other.bin"), size=1000, sha256="", exact=False)


def test_the_hub_may_have_a_mirror(server: Server, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url(""))
    fetch([f"{HUB}/good"], path)
    assert path.read_bytes() == CONTENT and server.requests == [("good", None)]
