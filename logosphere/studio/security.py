"""Access control: requests are accepted only from the studio's own page, on this machine and with its token.

Another page in the same browser can send requests to 127.0.0.1. It does not know the token, its Origin differs, and
after DNS rebinding its Host differs.
"""

import secrets

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response: the page may load from the studio only and may not be framed."""


class SecurityMiddleware:
    """Refuses requests that do not come from the studio's own page."""

    def __init__(self, app: ASGIApp, token: str, port: int):
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                return  # the studio has no websockets
            await self.app(scope, receive, send)
            return
        refusal = self.find_refusal(scope)
        if refusal is not None:
            await PlainTextResponse(refusal, 403, headers=HEADERS)(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.decode() for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name not in own]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self.app(scope, receive, with_headers)

    def find_refusal(self, scope: Scope) -> str | None:
        """Return the reason to refuse a request, or None."""
        headers = Headers(scope=scope)
        if headers.get("host", "") not in self.hosts:
            return "The studio accepts requests from this machine only."
        if headers.get("origin") not in {None, *self.origins}:
            return "The studio accepts requests from its own page only."
        if scope["method"] == "POST" and headers.get("origin") is None and "sec-fetch-site" in headers:
            return "The studio accepts requests from its own page only."
        token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "The address lacks the token of this studio; open the address that it has printed."
        return None
