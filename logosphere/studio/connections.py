"""Limits of the connections of a server: how many, how long each may wait, and how much is logged.

A client without the token can still open connections. Where all places are taken, the connection that has waited
longest without an accepted request gives way to the new one, so that clients that send nothing cannot keep others out.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import proxy

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from logosphere.terminal import neutralise


@dataclass(frozen=True)
class Limits:
    """Limits of a server; times are in seconds."""

    connections: int = 64
    header_seconds: float = 10.0
    """For the line and the headers of a request."""
    body_seconds: float = 30.0
    """For the body of a request."""
    stall_seconds: float = 60.0
    """For a reader that takes nothing of its response."""
    refusal_seconds: float = 0.25
    """Before a request is refused, which bounds the rate of a client without the token."""
    backlog: int = 16
    """Connections that the kernel holds until they are accepted, and that are accepted at once."""
    records: int = 10
    """Records of each logger in a minute."""
    shutdown_seconds: float = 1.0
    """For requests that are being answered when the server stops; then they are cancelled."""


RESERVE = 16
"""File descriptors kept for models, reports and texts."""


def count_places(limit: int, backlog: int) -> int:
    """Return how many connections fit into the file descriptors of this process, at most `limit`."""
    try:
        import resource
    except ImportError:  # not POSIX
        return limit
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return limit
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 32
    return max(4, min(limit, most - used - backlog - RESERVE))


class Places:
    """The open connections of a server, those that came first at the front."""

    def __init__(self, most: int):
        self.most = most
        self.open = dict[LimitedConnection, None]()

    def admit(self, connection: "LimitedConnection") -> None:
        """Add a connection; if all places are taken, close one that has no accepted request, or else this one."""
        self.open[connection] = None
        if len(self.open) > self.most:
            without_token = (one for one in self.open if not one.is_trusted and one is not connection)
            idle = (one for one in self.open if not one.is_answering and one is not connection)
            self.close(next(without_token, None) or next(idle, None) or connection)

    def close(self, connection: "LimitedConnection") -> None:
        """Close a connection at once; what is buffered is dropped."""
        self.open.pop(connection, None)
        connection.transport.abort()


class LimitedConnection(H11Protocol):
    """A connection with time limits."""

    def __init__(
        self,
        places: Places,
        limits: Limits,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, {**app_state, "connection": proxy(self)}, _loop)
        self.places, self.limits = places, limits
        self.is_trusted = False
        """Whether its last request was accepted."""
        self._phase: tuple[str, object] = ("", None)
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0

    def trust(self) -> None:
        """Keep the place of this connection while its request is answered."""
        self.is_trusted = True

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.places.admit(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.open.pop(self, None)
        self._set_timer(None)
        self._unset_keepalive_if_required()  # which the parent leaves to run where the connection was reset
        super().connection_lost(exc)
        # A cycle of references lives until the whole heap is searched, which is rare beside a large model.
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self.is_trusted = False
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request as late as other refusals."""
        self.flow.pause_reading()
        self.loop.call_later(self.limits.refusal_seconds, self._send_400, msg)

    def _send_400(self, message: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(message)

    def _should_upgrade(self) -> bool:
        return False  # refused by the application; the parent would log two lines for each

    def _watch(self) -> None:
        """Begin the time limit of what the connection waits for, unless it has begun."""
        if self.transport.is_closing():
            return self._set_timer(None)
        if self.flow.write_paused:
            phase, seconds = "stalled", self.limits.stall_seconds
        elif not self.is_answering:
            phase, seconds = "headers", self.limits.header_seconds
        elif self.cycle.more_body:
            phase, seconds = "body", self.limits.body_seconds
        else:
            phase, seconds = "answering", None
        if (phase, self.cycle) != self._phase:
            self._phase = (phase, self.cycle)
            self._unread = self.transport.get_write_buffer_size()
            self._set_timer(seconds)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < self._unread:  # a slow reader, but it reads
            self._unread = unread
            self._set_timer(seconds)
        else:
            self.places.close(self)


class RateLimit(logging.Filter):
    """Passes a number of records in a minute, without control characters; the next one says how many were left out."""

    def __init__(self, records: int, seconds: float = 60.0, now: Callable[[], float] = time.monotonic):
        super().__init__()
        self.records, self.seconds, self.now = records, seconds, now
        self.started, self.count = now(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self.now() - self.started >= self.seconds:
            dropped = max(0, self.count - self.records)
            self.started, self.count = self.now(), 0
            if dropped:
                record.msg, record.args = f"{record.getMessage()} ({dropped} more records were left out)", ()
        self.count += 1
        record.msg, record.args = neutralise(record.getMessage()), ()
        return self.count <= self.records


def make_server(app: Any, limits: Limits | None = None) -> uvicorn.Server:
    """Return a server of an application with limits."""
    limits = limits or Limits()
    places = Places(count_places(limits.connections, limits.backlog))
    config = uvicorn.Config(
        app,
        http=partial(LimitedConnection, places, limits),  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        backlog=limits.backlog,
        timeout_graceful_shutdown=limits.shutdown_seconds,  # type: ignore[arg-type]
    )
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        for old in [one for one in logger.filters if isinstance(one, RateLimit)]:
            logger.removeFilter(old)
        logger.addFilter(RateLimit(limits.records))
    return uvicorn.Server(config)
