"""Attacks on the server of the studio: half-open and hostile connections, forged and malformed requests."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from attacks import attack
from logosphere import build
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.studio.app import create_app
from logosphere.studio.connections import Limits, RateLimit, make_server
from logosphere.studio.library import Library

TOKEN = "the-token"
LIMITS = Limits(
    connections=24, header_seconds=0.4, body_seconds=0.4, stall_seconds=0.4, refusal_seconds=0.01, records=10
)
PATIENCE = 10.0
"""Seconds after which a server that does not answer counts as stopped; generous, because the machine may be busy."""


class Records(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@dataclass(frozen=True)
class ServerWorld:
    """A running studio with short limits."""

    port: int
    records: Records

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def ask(self, content: bytes, patience: float = PATIENCE) -> bytes:
        """Send bytes on a new connection; return what comes back until it is closed."""
        with self.connect() as client:
            client.settimeout(patience)
            try:
                client.sendall(content)
                return read_all(client)
            except (ConnectionError, BrokenPipeError):
                return b""

    def request(self, path: str, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Send a request of the page with other headers; return the status, 0 where the connection was closed."""
        default = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if body or method == "POST":
            default |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        named = default | (headers or {})
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
        return read_status(self.ask("\r\n".join(lines).encode("utf-8", "surrogateescape") + body))

    def check_alive(self) -> None:
        """Raise unless the page is served."""
        status = self.request(f"/{TOKEN}/")
        assert status == 200, f"the page answers {status}"


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1]) if response.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def open_world(folder: Path) -> Iterator[ServerWorld]:
    model = build("mdlm", vocab_size=27, length=16, width=8, depth=1, heads=1)
    model.tokenizer = text8_tokenizer()
    model.save(folder / "model")
    library, records = Library([str(folder / "model")]), Records()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = make_server(create_app(library, TOKEN, port, refusal_delay=LIMITS.refusal_seconds), LIMITS)
        logging.getLogger("uvicorn").handlers = []
        logging.getLogger("uvicorn.error").addHandler(records)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield ServerWorld(port, records)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            logging.getLogger("uvicorn.error").removeHandler(records)
    assert not thread.is_alive(), "the server does not stop"


# ---- requests -------------------------------------------------------------------------------------------------------

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "YQ==",
}


@attack(
    f"/{TOKEN}/", f"/{TOKEN}/generate", f"/{TOKEN}/watch/1", f"/{TOKEN}/systems", "/", "/x/", "/ws",
    f"/{TOKEN}/static/x",
)  # fmt: skip
def open_websocket(path: str, world: ServerWorld) -> None:
    """A WebSocket handshake is answered by nothing or by 101."""
    assert 400 <= world.request(path, headers=HANDSHAKE) < 500
    assert (
        400
        <= world.request(path, headers=HANDSHAKE | {"Upgrade": "WebSocket", "Connection": "keep-alive, Upgrade"})
        < 500
    )


ROUTES = ("curves", "ways", "time", "edit", "watch", "reports")


@attack(*[(route, digits) for route in ROUTES for digits in (9, 10, 30, 4300, 4301, 9000, 15000)])
def send_long_number(variant: tuple[str, int], world: ServerWorld) -> None:
    """A number of thousands of digits, which Python refuses to read, is in the address."""
    route, digits = variant
    method = "POST" if route in ("time", "edit") else "GET"
    assert 400 <= world.request(f"/{TOKEN}/{route}/{'9' * digits}", method, b"{}") < 500


@attack(
    *[
        (route, number)
        for route in ROUTES
        for number in (
            "-1",
            "1e3",
            "%D9%A3",
            "0x1",
            "1.0",
            "%00",
            "1/2",
            "..",
            "%2e%2e",
            "nan",
            "_",
            "1_0",
            "+1",
            "%31%0a",
        )  # fmt: skip
    ]
)
def send_wrong_number(variant: tuple[str, str], world: ServerWorld) -> None:
    """Something that is no number is in the address."""
    route, number = variant
    method = "POST" if route in ("time", "edit") else "GET"
    assert 400 <= world.request(f"/{TOKEN}/{route}/{number}", method, b"{}") < 500


@attack(
    "evil.example", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example", "localhost.evil.example", "",
    "127.0.0.1:{}.evil", "[::1", "0.0.0.0:{}", "127.1:{}", "2130706433:{}", "127.0.0.1:{}@evil.example", "*",
    "127.0.0.1:{} evil", "\xff",
)  # fmt: skip
def forge_host(host: str, world: ServerWorld) -> None:
    """A page of another host reaches the studio, as after DNS rebinding."""
    assert world.request(f"/{TOKEN}/systems", headers={"Host": host.format(world.port)}) in (400, 403)


@attack(
    "http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "https://127.0.0.1:{}", "file://", "",
    "http://127.0.0.1:{}.evil.example", "http://127.0.0.1:{}/", "HTTP://127.0.0.1:{}", "http://localhost:1", "data:",
)  # fmt: skip
def forge_origin(origin: str, world: ServerWorld) -> None:
    """A page of another origin sends a request with the right token."""
    assert world.request(f"/{TOKEN}/systems", headers={"Origin": origin.format(world.port)}) in (400, 403)


@attack(
    "/", "//", "/x/", f"/{TOKEN.upper()}/", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", f"/%00{TOKEN}/", f"//{TOKEN}/",
    f"/x/../{TOKEN}", "/%F0%9F%98%80/", "/%ff/", "*", f"/?{TOKEN}", f"/#{TOKEN}/", f"/;{TOKEN}/", "/" + "a" * 12000,
)  # fmt: skip
def guess_token(path: str, world: ServerWorld) -> None:
    """A request without the token is answered."""
    assert 400 <= world.request(path) < 500


BODIES = (
    b"", b"{", b"null", b"[]", b"1", b'"text"', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b'{"system": NaN}',
    b'{"system": 1e999}', b'{"system": ' + b"9" * 5000 + b"}", b'{"system": -0}' * 2, b'{"system": true}',
    b'{"system": 0, "steps": 1e3}', b'{"system": 0, "temperature": NaN}', b'{"system": 0, "temperature": Infinity}',
    b'{"system": 0, "sampler": "\\ud800"}', b'{"system": 0, "sampler": "\\u001b]52;c;YQ==\\u0007"}',
    b'{"system": 0, "x": 1}', b'{"system": 0, "holds": [[]]}', b'{"system": 0, "holds": [{"at": 1e9, "token": 0}]}',
    b'{"system": 0, "holds": {}}', b'{"system": 0, "seed": 99999999999999999999}', b'{"system": 0, "n": 0}',
    b'{"system": 0, "prompt": {}}', b'{"tokens": [], "at": 0}', b'{"tokens": [99], "at": 0}',
    b'{"tokens": [1], "at": 9}', b'{"tokens": [1], "at": -1}', b'{"tokens": [1], "at": 0, "text": 5}',
    b'{"tokens": [true], "at": 0}', b'{"tokens": "a", "at": 0}', b" " * (2 << 20),
)  # fmt: skip


@attack(*[(route, body) for route in ("generate", "edit/0") for body in BODIES])
def send_wrong_body(variant: tuple[str, bytes], world: ServerWorld) -> None:
    """A body that is no request ends in an error of the server."""
    route, body = variant
    status = world.request(f"/{TOKEN}/{route}", "POST", body)
    assert 400 <= status < 500 or (status == 0 and len(body) > 1 << 20), status


@attack(b"\xed\xa0\x80", b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\\u001b[2J"')
def hold_half_character(text: bytes, world: ServerWorld) -> None:
    """A prompt is half of a surrogate pair: the answer cannot be encoded."""
    prompt = text if text.startswith(b'"') else b'"' + text + b'"'
    status = world.request(f"/{TOKEN}/generate", "POST", b'{"system": 0, "steps": 1, "prompt": ' + prompt + b"}")
    assert status in (200, 400), status


MALFORMED = (
    b"\x00" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n" * 100, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nA" + b"a" * 300_000,
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 4301 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"F" * 5000 + b"\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", b"GET /\x1b]52;c;YQ==\x07 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nA: \x00\r\n\r\n", b"CONNECT evil.example:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    b"GET / HTTP/1.1\nHost: a\n\n", b"A" * 100_000, b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 200,
)  # fmt: skip


@attack(*MALFORMED)
def send_malformed(content: bytes, world: ServerWorld) -> None:
    """Bytes that are no request keep the connection, or end in an error of the server."""
    response = world.ask(content)
    assert 400 <= read_status(response) < 500 or response == b"", response[:100]


# ---- connections ----------------------------------------------------------------------------------------------------

PARTS = {
    "nothing": b"",
    "half a line": b"GET /the-to",
    "half of the headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half a body": b"POST /the-token/generate HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /the-token/generate HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n64\r\n{",
    "a refused body": b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100000\r\n\r\n{",
    "a second half request": b"GET /the-token/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nGET /the",
    "keep-alive": b"GET /the-token/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n",
}


def _fill(part: str, port: int) -> bytes:
    return PARTS[part] % port if b"%d" in PARTS[part] else PARTS[part]


@attack(*PARTS)
def stay_silent(part: str, world: ServerWorld) -> None:
    """A connection sends a part of a request and nothing more; it must be closed."""
    with world.connect() as client:
        client.sendall(_fill(part, world.port))
        client.settimeout(PATIENCE)
        try:
            read_all(client)
        except ConnectionResetError:
            pass


@attack(*[(part, count) for part in PARTS for count in (30, 120)])
def keep_many_open(variant: tuple[str, int], world: ServerWorld) -> None:
    """More half-open connections than there are places keep the page from others."""
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
def drip(part: str, world: ServerWorld) -> None:
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


@attack(1, 40)
def read_nothing(count: int, world: ServerWorld) -> None:
    """Large answers are requested on one connection and never read."""
    request = f"GET /{TOKEN}/static/studio.js HTTP/1.1\r\nHost: 127.0.0.1:{world.port}\r\n\r\n".encode()
    clients = [world.connect() for _ in range(count)]
    try:
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            try:
                client.sendall(request * 200)
            except ConnectionError:
                pass
        world.check_alive()
    finally:
        for client in clients:
            client.close()


@attack(
    b"\x00\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /%1b%5d52 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade, close\r\n\r\n",
)
def flood_log(content: bytes, world: ServerWorld) -> None:
    """Each wrong request is logged, so that the log fills the disk."""
    before = world.records.count
    for _ in range(60):
        world.ask(content)
    assert world.records.count - before <= LIMITS.records + 1


@attack("\x1b]52;c;YQ==\x07", "\x9b2J", "line\r\x1b[2K")
def control_log(text: str, world: ServerWorld) -> None:
    """A logged address controls the terminal that shows the log."""
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "path %s", (text,), None)
    assert RateLimit(1).filter(record) and "\x1b" not in record.getMessage() and "\x9b" not in record.getMessage()


@attack("watch", "generate", "edit/0")
def use_after_attacks(route: str, world: ServerWorld) -> None:
    """After all other attacks the studio no longer serves an honest page."""
    world.check_alive()
    if route == "generate":
        assert world.request(f"/{TOKEN}/generate", "POST", b'{"system": 0, "steps": 2}') == 200
    if route == "edit/0":
        assert world.request(f"/{TOKEN}/edit/0", "POST", json.dumps({"tokens": [1, 2], "at": 0}).encode()) == 200
    with closing(world.connect()):
        pass
