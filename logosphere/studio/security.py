"""Which requests the studio accepts, and the headers of its responses.

Requests are accepted only from the studio's own page, on this machine and with its token. Another page in the same
browser can send requests to 127.0.0.1. It does not have the token, its Origin differs, and after DNS rebinding its Host
differs. A tunnel to this machine, whose Host differs as well, is allowed by its address.

A report may come from someone else. Each has a token of its own, which opens this report and nothing else, so that a
link in it, which can send the address to its target, gives nothing away.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logosphere.errors import UserError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_ALLOWED = re.compile(r"(?P<name>[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


def parse_allowed_host(text: str, port: int) -> list[str]:
    """The Host headers of HOST:PORT; of HOST alone those of the usual ports and of the studio's own."""
    found = _ALLOWED.fullmatch(text)
    if found is None or not 1 <= int(found["port"] or 1) < 1 << 16:
        raise UserError(f"--allow-host must be HOST or HOST:PORT such as localhost:9000, not '{text}'.")
    name = found["name"].lower()
    return [f"{name}:{int(found['port'])}"] if found["port"] else [name, f"{name}:{port}"]


HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-dns-prefetch-control": "off",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response: the page may load from the studio only and may not be framed."""


class ReportTokens:
    """Makes the token of each report, from a key that is not sent anywhere."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def find_path(self, number: int) -> str:
        """Return the path of a report."""
        return f"/{hmac.new(self._key, str(number).encode(), 'sha256').hexdigest()[:32]}/reports/{number}"

    def opens(self, path: str) -> bool:
        """Whether a path is that of a report, with its token."""
        number = path.rsplit("/", 1)[-1]
        if not re.fullmatch("[0-9]{1,9}", number, re.ASCII):
            return False
        return secrets.compare_digest(path.encode("utf-8", "replace"), self.find_path(int(number)).encode())


class Refusal(NamedTuple):
    """Why a request is refused, and its status."""

    reason: str
    status: int = 403


class SecurityMiddleware:
    """Refuses requests that do not come from the studio's own page."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        port: int,
        allowed: Sequence[str] = (),
        reports: ReportTokens | None = None,
        delay: float = 0.0,
    ):
        """`delay` is the number of seconds before a refusal, which bounds what a client without the token can ask."""
        self.app, self.token, self.delay, self.reports = app, token, delay, reports or ReportTokens()
        own = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        tunnels = {host for text in allowed for host in parse_allowed_host(text, port)}
        self.hosts = own | tunnels
        # The browser uses HTTPS to some tunnels.
        self.origins = {f"http://{host}" for host in self.hosts} | {f"https://{host}" for host in tunnels}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the studio has none; the server answers the handshake with 403
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.find_refusal(scope)
        if refusal is not None:
            await asyncio.sleep(self.delay)
            await PlainTextResponse(refusal.reason, refusal.status, headers=HEADERS)(scope, receive, send)
            return
        if (connection := scope.get("state", {}).get("connection")) is not None:
            connection.trust()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.decode() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name not in own]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def find_refusal(self, scope: Scope) -> Refusal | None:
        """Return the reason to refuse a request, or None."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self.hosts:
            return Refusal(
                "The studio accepts requests from this machine only. To open it through a tunnel, start it with "
                "--allow-host HOST:PORT, the address that the browser shows."
            )
        if headers.get("origin") not in {None, *self.origins}:
            return Refusal("The studio accepts requests from its own page only.")
        if scope["method"] == "POST" and headers.get("origin") is None and "sec-fetch-site" in headers:
            return Refusal("The studio accepts requests from its own page only.")
        if not self._has_token(scope):
            return Refusal("The address lacks the token of this studio; open the address that it has printed.")
        if "upgrade" in headers:
            return Refusal("The studio speaks HTTP only; it has no WebSockets.", 400)
        return None

    def _has_token(self, scope: Scope) -> bool:
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and self.reports.opens(path):
            return True
        token = path.split("/")[1] if path.startswith("/") else ""
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
