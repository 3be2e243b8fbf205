"""Which requests the server accepts: by its address, by the page they come from, and by the key.

Another page in a browser of this machine can send requests to 127.0.0.1. Its Origin differs from the server's address,
and after DNS rebinding its Host differs. There is no CORS: no page of another origin gets an answer. Where other
machines can reach the server, every request but /health needs the key.
"""

import asyncio
import hmac
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logosphere.serving.errors import APIError
from logosphere.serving.metrics import Metrics
from logosphere.studio.security import LOOPBACK_NAMES, parse_allowed_host

HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response."""
OPEN = ("/health",)
"""Paths that need no key: probes of a load balancer have none."""
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics", "/openapi.json")


def is_loopback(host: str) -> bool:
    """Whether an address is that of this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


class ServeSecurity:
    """Refuses requests without the key, to another address or from another page; counts all answers."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, key: str, allowed: Sequence[str], delay: float, metrics: Metrics
    ):
        """`delay` is the number of seconds before a refusal, which bounds how fast a key can be guessed."""
        self.app, self.key, self.delay, self.metrics = app, key, delay, metrics
        own = {f"{name}:{port}" for name in (*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host)}
        self.hosts = own | {one for text in allowed for one in parse_allowed_host(text, port)}
        self.any_host = not is_loopback(host) and not allowed
        """The names of an address that other machines reach are not known, and each request has the key."""
        self.origins = {f"{scheme}://{name}" for scheme in ("http", "https") for name in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, path = time.perf_counter(), scope["path"]
        route = next((one for one in ROUTES if path == one or path.startswith(f"{one}/")), "other")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.observe_request(route, message["status"])
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self.find_refusal(scope)
        if refusal is not None:
            await asyncio.sleep(self.delay)
            headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
            await refusal.respond(headers)(scope, receive, with_headers)
            return
        if (connection := scope.get("state", {}).get("connection")) is not None:
            connection.trust()
        await self.app(scope, receive, with_headers)
        if route in ROUTES[:2]:
            self.metrics.observe_duration(time.perf_counter() - started)

    def find_refusal(self, scope: Scope) -> APIError | None:
        """The reason to refuse a request, or None."""
        headers = Headers(scope=scope)
        if not self.any_host and headers.get("host", "").lower() not in self.hosts:
            return APIError(
                "This server answers under its own address only; start it with --allow-host HOST:PORT for another one.",
                403,
            )
        if headers.get("origin") not in {None, *self.origins}:
            return APIError("Pages of other origins are not answered.", 403)
        if self.key and scope["path"] not in OPEN and not self._has_key(headers):
            return APIError(
                "The API key is missing or wrong; send it as Authorization: Bearer KEY.", 401, code="invalid_api_key"
            )
        if "upgrade" in headers:
            return APIError("This server has HTTP only, and no WebSockets.", 400)
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.key.encode("utf-8", "replace"))
        return same and scheme.lower() == "bearer"
