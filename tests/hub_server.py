"""A server on this machine that speaks the protocol of the model hub: repositories with files, downloads, uploads."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants


@dataclass
class Repository:
    """A repository with one commit on the branch main."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass
class Hub:
    """The content of the hub, and what was asked of it."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path, and the range of bytes."""
    broken_after: int | None = None
    """Bytes after which the next download of weights breaks off."""
    broken_file: str = ""
    """A file that cannot be downloaded."""
    failing: bool = False
    forbids_writing: bool = False

    def add(self, name: str, folder: Path, **settings: bool) -> Repository:
        """A repository with the files of a folder."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.repositories[name] = Repository(files, **settings)
        return self.repositories[name]

    def downloads(self) -> list[str]:
        """The files whose content was requested."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]


def make_handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, content: object = None, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.requests.append((self.command, path, self.headers.get("Range") or ""))
            if hub.failing:
                return self.answer(501, {"error": "broken"})  # 500 would be asked again for half a minute
            parts = path.strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            name = "/".join(parts[2:4] if api else parts[:2])
            rest = parts[4:] if api else parts[2:]
            if name not in hub.repositories:
                return self.answer(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            repository = hub.repositories[name]
            revision = rest[1] if len(rest) > 1 else "main"
            if revision not in ("main", "v1", repository.commit):
                return self.answer(404, {"error": "no such revision"}, X_Error_Code="RevisionNotFound")
            if api and rest[:1] == ["tree"]:
                return self.answer(200, [self.entry(path, data) for path, data in repository.files.items()])
            if api:
                siblings = [{"rfilename": path} for path in repository.files]
                gated = "auto" if repository.gated else False
                about: dict[str, Any] = {"id": name, "sha": repository.commit, "siblings": siblings, "gated": gated}
                return self.answer(200, about)
            if repository.gated:
                return self.answer(403, {"error": "gated"}, X_Error_Code="GatedRepo")
            return self.send_file(repository, "/".join(rest[2:]))

        def entry(self, path: str, data: bytes) -> dict[str, Any]:
            return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

        def send_file(self, repository: Repository, path: str) -> None:
            if path == hub.broken_file:
                return self.answer(501, {"error": "broken"})  # 500 would be asked again for half a minute
            if path not in repository.files:
                return self.answer(404, {"error": "no such file"}, X_Error_Code="EntryNotFound")
            data = repository.files[path]
            about = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": repository.commit}
            asked = self.headers.get("Range")
            first, _, last = asked.removeprefix("bytes=").partition("-") if asked else ("0", "", "")
            start, stop = int(first), min(len(data), int(last) + 1) if last else len(data)
            if asked:
                about["Content_Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            if self.command == "GET" and hub.broken_after is not None and path.endswith(".safetensors"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: hub.broken_after])
                self.wfile.flush()
                hub.broken_after, self.close_connection = None, True
                return None
            return self.answer(206 if asked else 200, data[start:stop], **about)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(("POST", self.path, ""))
            parts = self.path.partition("?")[0].strip("/").split("/")
            if hub.forbids_writing:
                return self.answer(403, {"error": "You have no rights here"})
            if parts == ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
                hub.repositories.setdefault(
                    name, Repository(private=bool(asked.get("private")) or asked.get("visibility") == "private")
                )
                return self.answer(200, {"url": f"{hub.address}/{name}", "name": name})
            if parts == ["api", "validate-yaml"]:  # the metadata of a card
                return self.answer(200, {"message": "", "errors": [], "warnings": []})
            name = "/".join(parts[2:4])
            if parts[4] == "preupload":
                files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                         for file in json.loads(body)["files"]]  # fmt: skip
                return self.answer(200, {"files": files})
            assert parts[4] == "commit", self.path
            repository = hub.repositories[name]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    repository.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{hub.address}/{name}/commit/{repository.commit}"
            return self.answer(200, {"commitUrl": address, "commitOid": repository.commit, "success": True})

    return Handler


@contextmanager
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub talks to, with an empty cache and without a token."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(hub))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
