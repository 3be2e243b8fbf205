"""Attacks on `logosphere serve`: half-open and hostile connections, forged and malformed requests, abandoned work."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attacks import attack
from attacks.server import LIMITS, MALFORMED, PATIENCE, Records, read_all, read_status
from logosphere import build
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.serving.limits import ServeLimits
from logosphere.serving.models import Catalogue
from logosphere.serving.server import build_server, open_listener

KEY = "the-key-of-the-attacked-server"
QUEUE = 6
ROUTES = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class ServeWorld:
    """A running server with short limits and a key."""

    port: int
    records: Records

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def ask(self, content: bytes) -> bytes:
        """Send bytes on a new connection; return what comes back until it is closed."""
        with self.connect() as client:
            client.settimeout(PATIENCE)
            try:
                client.sendall(content)
                return read_all(client)
            except ConnectionError:
                return b""

    def make(self, path: str, method: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        named = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", "Authorization": f"Bearer {KEY}"}
        if method == "POST":
            named |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        named |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + body

    def request(self, path: str, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Send a request; return the status, 0 where the connection was closed. Errors must have OpenAI's shape."""
        response = self.ask(self.make(path, method, body, headers))
        status = read_status(response)
        if status >= 400 and b"application/json" in response:
            error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
            assert set(error) == {"message", "type", "param", "code"} and "\x1b" not in error["message"]
        return status

    def check_alive(self) -> None:
        """Raise unless a text is sampled."""
        body = json.dumps({"model": "model", "prompt": "the", "steps": 2}).encode()
        end, status = time.monotonic() + 3 * PATIENCE, 0
        while time.monotonic() < end and status != 200:  # earlier work may still fill the queue
            status = self.request(ROUTES[0], "POST", body)
        assert status == 200, f"a request for a text answers {status}"


@contextmanager
def open_world(folder: Path) -> Iterator[ServeWorld]:
    model = build("mdlm", vocab_size=27, length=256, width=8, depth=1, heads=1)
    model.tokenizer = text8_tokenizer()
    model.save(folder / "model")
    records, limits = Records(), ServeLimits(queue=QUEUE, batch=4, request_seconds=20.0, shutdown_seconds=0.5)
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = build_server(Catalogue.load([folder / "model"]), listener, key=KEY, limits=limits, connections=LIMITS)
        logging.getLogger("uvicorn").handlers = []
        logging.getLogger("uvicorn.error").addHandler(records)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield ServeWorld(port, records)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            logging.getLogger("uvicorn.error").removeHandler(records)
    assert not thread.is_alive(), "the server does not stop"


# ---- access ---------------------------------------------------------------------------------------------------------


@attack(
    "", "Bearer", "Bearer ", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Bearer {KEY.upper()}", f"Basic {KEY}", KEY,
    "Bearer \xff\xfe", f"Bearer x {KEY}", "Bearer " + "a" * 8000,
)  # fmt: skip
def guess_key(given: str, world: ServeWorld) -> None:
    """A request without the key is answered."""
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        assert world.request(path, headers={"Authorization": given}) in (400, 401)


@attack("evil.example", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1:{}.evil", "0.0.0.0:{}", "2130706433:{}", "*")
def forge_host(host: str, world: ServeWorld) -> None:
    """A page of another host reaches the server, as after DNS rebinding."""
    assert world.request("/v1/models", headers={"Host": host.format(world.port)}) in (400, 403)


@attack("http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "file://", "http://localhost:1", "")
def forge_origin(origin: str, world: ServeWorld) -> None:
    """A page of another origin sends a request with the right key."""
    assert world.request("/v1/models", headers={"Origin": origin}) == 403
    assert world.request(ROUTES[0], "POST", b"{}", headers={"Origin": origin}) == 403


@attack("/v1/models", "/v1/completions", "/", "/ws")
def open_websocket(path: str, world: ServeWorld) -> None:
    """A WebSocket handshake is answered by nothing or by 101."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert 400 <= world.request(path, headers=upgrade | {"Sec-WebSocket-Key": "YQ=="}) < 500


@attack(
    "../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/etc/passwd", "model/../model", "model%00", "hf:a/b", "",
    "%ff", "a" * 9000, "pretrained:mdlm", "\x1b]52;c;YQ==\x07".replace("\x1b", "%1b").replace("\x07", "%07"),
)  # fmt: skip
def name_path(name: str, world: ServeWorld) -> None:
    """The name of a model is a path, or another model is loaded by a request."""
    assert world.request(f"/v1/models/{name}") in (400, 404)
    body = json.dumps({"model": name, "prompt": "a"}).encode()
    assert world.request(ROUTES[0], "POST", body) in (400, 404)


# ---- requests -------------------------------------------------------------------------------------------------------

BODIES = (
    b"", b"{", b"null", b"[]", b"1", b'"text"', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"model": NaN}',
    b'{"model": "model", "temperature": NaN}', b'{"model": "model", "temperature": -Infinity}',
    b'{"model": "model", "temperature": 1e999}', b'{"model": "model", "n": ' + b"9" * 5000 + b"}",
    b'{"model": "model", "seed": 1' + b"0" * 4000 + b"}", b'{"model": "model", "n": 1e9}',
    b'{"model": "model", "n": 17}',
    b'{"model": "model", "steps": 1000000000}', b'{"model": "model", "max_tokens": 99999999999999999999}',
    b'{"model": "model", "prompt": "\\ud800"}', b'{"model": "model", "prompt": "\\u001b]52;c;YQ==\\u0007"}',
    b'{"model": "model", "prompt": {"a": 1}}', b'{"model": "model", "prompt": [[]]}',
    b'{"model": "model", "prompt": [1e400]}', b'{"model": "model", "prompt": [99]}',
    b'{"model": "model", "prompt": [[1], 1]}',
    b'{"model": "model", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"model": "model", "stop": ["a", "b", "c", "d", "e"]}', b'{"model": "model", "stop": [[[[]]]]}',
    b'{"model": "model", "logit_bias": {"1": 1e308}}', b'{"model": "model", "logit_bias": {"-1": 1}}',
    b'{"model": "model", "logit_bias": {"' + b"9" * 5000 + b'": 1}}', b'{"model": "model", "logit_bias": []}',
    b'{"model": "model", "sampler": "\\u001b[2J"}', b'{"model": "model", "sampler": "__class__"}',
    b'{"model": "model", "block_length": 100000}', b'{"model": "model", "infill": "[999999]"}',
    b'{"model": "model", "infill": "[' + b"." * 9000 + b']"}', b'{"model": {"$ref": "x"}}', b'{"model": "\\u0000"}',
    b'{"model": "model", "__proto__": {}}', b'{"model": "model", "stream": "yes"}',
    b'{"model": "model", "messages": []}',
    b'{"model": "model", "messages": [{"role": "user", "content": {}}]}', b'{"model": "model", "tools": [{}]}',
    *[
        b'{"model": "model", "response_format": {"type": "regex", "regex": "' + regex + b'"}}'
        for regex in (
            b"((a{1000}){1000}){1000}", b"(a)\\\\1", b"(?=a)", b"(", b"(" * 5000, b"[a-z]{99999999999}", b"a" * 199_999,
            b"(a|b){0,500}c(a|b){400}" * 40,
        )
    ],
    *[
        b'{"model": "model", "response_format": {"type": "json_schema", "json_schema": {"schema": ' + schema + b"}}}"
        for schema in (
            b'{"$ref": "#"}', b'{"$ref": "file:///etc/passwd"}', b'{"$ref": "http://127.0.0.1/"}', b'{"type": "x"}',
            b'{"type": "array", "items": {"type": "string"}, "maxItems": 100000000}', b'{"enum": []}', b"[]", b"3",
        )
    ],
    b" " * (2 << 20),
    b'{"model": "model", "user": "' + b"a" * (1 << 20) + b'"}',
)  # fmt: skip


@attack(*[(route, body) for route in ROUTES for body in BODIES])
def send_wrong_body(variant: tuple[str, bytes], world: ServeWorld) -> None:
    """A body that is no request ends in an error of the server."""
    route, body = variant
    status = world.request(route, "POST", body)
    assert 400 <= status < 500 or (status == 0 and len(body) > 1 << 20), status


@attack("text/plain", "", "multipart/form-data; boundary=x", "application/json-patch+json", "\xff")
def send_wrong_type(kind: str, world: ServeWorld) -> None:
    """A form of another page is read as a request, which needs no permission of the browser."""
    assert world.request(ROUTES[0], "POST", b'{"model": "model"}', headers={"Content-Type": kind}) in (400, 415)


@attack(*MALFORMED)
def send_malformed(content: bytes, world: ServeWorld) -> None:
    """Bytes that are no request keep the connection, or end in an error of the server."""
    response = world.ask(content)
    assert 400 <= read_status(response) < 500 or response == b"", response[:100]


# ---- connections and work -------------------------------------------------------------------------------------------

PARTS = {
    "nothing": b"",
    "half a line": b"POST /v1/comp",
    "half of the headers": b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer " + KEY.encode()
    + b"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "a refused body": b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100000\r\n\r\n{",
    "keep-alive": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n",
}  # fmt: skip


def _fill(part: str, port: int) -> bytes:
    return PARTS[part] % port if b"%d" in PARTS[part] else PARTS[part]


@attack(*PARTS)
def stay_silent(part: str, world: ServeWorld) -> None:
    """A connection sends a part of a request and nothing more; it must be closed."""
    with world.connect() as client:
        client.sendall(_fill(part, world.port))
        client.settimeout(PATIENCE)
        try:
            read_all(client)
        except ConnectionResetError:
            pass


@attack(*[(part, count) for part in PARTS for count in (30, 120)])
def keep_many_open(variant: tuple[str, int], world: ServeWorld) -> None:
    """More half-open connections than there are places keep others out."""
    part, count = variant
    clients = []
    try:
        for _ in range(count):
            client = world.connect()
            clients.append(client)
            try:
                client.sendall(_fill(part, world.port))
            except ConnectionError:
                pass
        world.check_alive()
    finally:
        for client in clients:
            client.close()


@attack("headers", "body")
def drip(part: str, world: ServeWorld) -> None:
    """A byte is sent now and then, so that no single wait is long; the sum is limited."""
    head = _fill("half of the headers" if part == "headers" else "half a body", world.port)
    started = time.monotonic()
    with world.connect() as client:
        try:
            client.sendall(head)
            while time.monotonic() - started < PATIENCE:
                client.sendall(b" ")
                time.sleep(0.05)
        except ConnectionError:
            return
    raise AssertionError("the connection was kept")


@attack(*[(stream, draft, count) for stream, draft in ((0, 0), (1, 0), (1, 1)) for count in (1, 20)])
def abandon_work(variant: tuple[int, int, int], world: ServeWorld) -> None:
    """Long requests are sent and their connections closed; the work goes on and fills the queue."""
    stream, draft, count = variant
    content = {"model": "model", "steps": 1024, "n": 4, "stream": bool(stream)} | ({"draft": True} if draft else {})
    message = world.make(ROUTES[0], "POST", json.dumps(content).encode())
    for _ in range(count):
        with world.connect() as client:
            client.sendall(message)
            time.sleep(0.02)
    world.check_alive()


@attack(False, True)
def read_nothing(draft: bool, world: ServeWorld) -> None:
    """Streams are requested and never read."""
    content = {"model": "model", "steps": 1024, "n": 4, "stream": True} | ({"draft": True} if draft else {})
    message = world.make(ROUTES[0], "POST", json.dumps(content).encode())
    clients = [world.connect() for _ in range(4)]
    try:
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            try:
                client.sendall(message)
            except ConnectionError:
                pass
        time.sleep(0.5)
    finally:
        for client in clients:
            client.close()
    world.check_alive()


@attack(40)
def flood_queue(count: int, world: ServeWorld) -> None:
    """More requests than the queue has places are sent at once; each must be answered, by a text or by 429."""
    statuses = list[int]()
    body = json.dumps({"model": "model", "steps": 20, "n": 2}).encode()

    def ask() -> None:
        statuses.append(world.request(ROUTES[0], "POST", body))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
    assert len(statuses) == count and {*statuses} <= {0, 200, 429} and 200 in statuses, statuses


@attack(b"\x00\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n")
def flood_log(content: bytes, world: ServeWorld) -> None:
    """Each wrong request is logged, so that the log fills the disk."""
    before = world.records.count
    for _ in range(60):
        world.ask(content)
    assert world.records.count - before <= LIMITS.records + 1


@attack("text", "stream", "models")
def use_after_attacks(way: str, world: ServeWorld) -> None:
    """After all other attacks the server no longer answers an honest client."""
    world.check_alive()
    if way == "stream":
        body = json.dumps({"model": "model", "prompt": "the", "steps": 2, "stream": True}).encode()
        assert world.ask(world.make(ROUTES[0], "POST", body)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert world.request("/v1/models") == 200
