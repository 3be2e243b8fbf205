"""Running the server: its socket, the signals that stop it, and a server in a thread for programs and notebooks."""

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn

from logosphere.errors import UserError
from logosphere.parallel.lifetime import stop_signals
from logosphere.serving.app import create_app
from logosphere.serving.limits import ServeLimits
from logosphere.serving.models import Catalogue
from logosphere.serving.security import is_loopback
from logosphere.studio.connections import Limits, make_server

KEY_VARIABLE = "LOGOSPHERE_API_KEY"
ANSWER_SECONDS = 5.0
"""For sending the errors of requests that were cancelled because the server stops."""
MIN_KEY = 16
"""Characters of a key where other machines can try keys."""


def check_key(host: str, key: str) -> None:
    """Raise UserError where other machines reach the server and the key is missing or easily guessed."""
    if is_loopback(host) or len(key) >= MIN_KEY:
        return
    wanted = f"an API key of at least {MIN_KEY} characters, in {KEY_VARIABLE} or --api-key"
    seen = "none is given" if not key else f"the one given has {len(key)}"
    raise UserError(
        f"Other machines can reach {host}, which needs {wanted}; {seen}. One is: {secrets.token_urlsafe(24)}"
    )


@contextmanager
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket of this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except socket.gaierror:
        raise UserError(f"There is no address {host}; --host 127.0.0.1 is this machine alone.") from None
    except OSError as problem:
        raise UserError(
            f"The port {port} of {host} cannot be used ({problem.strerror}); choose another --port."
        ) from None
    with listener:
        yield listener


def build_server(
    catalogue: Catalogue,
    listener: socket.socket,
    *,
    host: str = "127.0.0.1",
    key: str = "",
    allowed: Sequence[str] = (),
    limits: ServeLimits | None = None,
    connections: Limits | None = None,
) -> uvicorn.Server:
    """The server of models at a socket, with the limits of connections that the studio has too."""
    check_key(host, key)
    limits, connections = limits or ServeLimits(), connections or Limits()
    connections = replace(connections, shutdown_seconds=limits.shutdown_seconds + ANSWER_SECONDS)
    port = listener.getsockname()[1]
    app = create_app(
        catalogue, limits, host=host, port=port, key=key, allowed=allowed, refusal_delay=connections.refusal_seconds
    )
    server = make_server(app, connections)
    stop = server.handle_exit

    def stop_and_close(number: int, frame: FrameType | None) -> None:
        app.state.engine.is_closing = True  # requests that wait are answered, so that they need not be waited for
        stop(number, frame)

    server.handle_exit = stop_and_close  # type: ignore[method-assign, assignment]
    return server


def run_until_stopped(server: uvicorn.Server, listener: socket.socket) -> None:
    """Run until SIGINT, SIGTERM or SIGHUP; requests in work are finished, or cancelled after a time."""
    with _signals_to(server.handle_exit):
        server.run([listener])


@contextmanager
def _signals_to(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let signals that stop a program stop the server instead.

    uvicorn handles two of them while it runs, and raises them again afterwards, when the handlers here take no notice:
    the server has stopped as it was asked to.
    """
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def serve(
    models: Sequence[str | Path] = (),
    *,
    port: int = 0,
    key: str = "",
    limits: ServeLimits | None = None,
    connections: Limits | None = None,
) -> Iterator[str]:
    """Serve models on this machine from a thread; yield the address for clients, such as http://127.0.0.1:8000/v1."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with open_listener("127.0.0.1", port) as listener:
        server = build_server(Catalogue.load(models), listener, key=key, limits=limits, connections=connections)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True, name="serve")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.handle_exit(signal.SIGTERM, None)
            thread.join()
