"""The web application of the studio: the page, models, training curves, reports, and jobs as server-sent events.

Requests are accepted only from the studio's own page, on this machine and with its token. Another page in the same
browser can send requests to 127.0.0.1. It does not have the token, its Origin differs, and after DNS rebinding its Host
differs. A tunnel to this machine, whose Host differs as well, is allowed by its address.
"""

import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logosphere.errors import UserError
from logosphere.report.page import CONTENT_SECURITY_POLICY, read_asset
from logosphere.sampling.registry import SAMPLERS
from logosphere.studio.edits import EditRequest, edit_text
from logosphere.studio.jobs import Event, Job, JobFunction, JobPool, LimitReached, make_elbo_job, make_generate_job
from logosphere.studio.library import Library
from logosphere.studio.requests import MAX_STEPS, MAX_TEXTS, GenerateRequest

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
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response: the page may load from the studio only and may not be framed."""


class SecurityMiddleware:
    """Refuses requests that do not come from the studio's own page."""

    def __init__(self, app: ASGIApp, token: str, port: int, allowed: Sequence[str] = ()):
        self.app, self.token = app, token
        own = {f"{name}:{port}" for name in LOOPBACK_NAMES}
        tunnels = {host for text in allowed for host in parse_allowed_host(text, port)}
        self.hosts = own | tunnels
        # The browser uses HTTPS to some tunnels.
        self.origins = {f"http://{host}" for host in self.hosts} | {f"https://{host}" for host in tunnels}

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
        if headers.get("host", "").lower() not in self.hosts:
            return (
                "The studio accepts requests from this machine only. To open it through a tunnel, start it with "
                "--allow-host HOST:PORT, the address that the browser shows."
            )
        if headers.get("origin") not in {None, *self.origins}:
            return "The studio accepts requests from its own page only."
        if scope["method"] == "POST" and headers.get("origin") is None and "sec-fetch-site" in headers:
            return "The studio accepts requests from its own page only."
        token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "The address lacks the token of this studio; open the address that it has printed."
        return None


MAX_BYTES = 1 << 20
"""The largest size of a request."""

SANDBOX = "sandbox allow-scripts allow-downloads"
REPORT_HEADERS = {"content-security-policy": f"{CONTENT_SECURITY_POLICY}; {SANDBOX}; frame-ancestors 'self'"}
"""A report is shown in a frame of the page. It may run its player and save its plots; it has no origin to send from."""

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of every file of the page by name; no other file is served."""
    folder = files("logosphere.studio").joinpath("static")
    found = {item.name: item.read_bytes() for item in folder.iterdir() if item.name.split(".")[-1] in MEDIA_TYPES}
    found |= {name: read_asset(name).encode() for name in ("style.css", "theme.js")}
    return {name: (content, MEDIA_TYPES[name.split(".")[-1]]) for name, content in found.items()}


def create_app(
    library: Library, token: str, port: int, pool: JobPool | None = None, allowed: Sequence[str] = ()
) -> Starlette:
    """Create the application for a library; only requests with the token and an allowed host are accepted."""
    static, pool, models, reports = load_static_files(), pool or JobPool(), library.models, library.reports

    async def get_file(request: Request) -> Response:
        found = static.get(request.path_params.get("name", "index.html"))
        if found is None:
            return _respond_error("There is no such page.", 404)
        return Response(found[0], media_type=found[1])

    async def get_models(request: Request) -> Response:
        systems = await run_in_threadpool(library.describe)
        return JSONResponse(
            {
                "systems": systems,
                "unreadable": list(library.unreadable.values()),
                "samplers": [info.as_dict() for info in SAMPLERS.values()],
                "reports": [report.name for report in reports],
                "limits": {"steps": MAX_STEPS, "n": MAX_TEXTS},
            }
        )

    async def get_curves(request: Request) -> Response:
        number = request.path_params["number"]
        return JSONResponse(models[number].training_curves()) if number < len(models) else _respond_no_model()

    async def get_samplers(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(models):
            return _respond_no_model()
        return JSONResponse(await run_in_threadpool(models[number].list_samplers))

    async def edit(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(models):
            return _respond_no_model()
        tokenizer = models[number].tokenizer
        try:
            parsed = EditRequest.parse(await _read_json(request), tokenizer.size)
            return JSONResponse(asdict(await run_in_threadpool(edit_text, parsed, tokenizer)))
        except UserError as problem:
            return _respond_error(str(problem), 400)

    async def get_report(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(reports):
            return _respond_error("There is no such report.", 404)
        return Response(reports[number].read(), media_type="text/html", headers=REPORT_HEADERS)

    def respond(get_job: Callable[[], Job]) -> Response:
        try:
            return JobResponse(pool, get_job())
        except UserError as problem:
            return _respond_error(str(problem), 400)
        except LimitReached as problem:
            return _respond_error(str(problem), 429)

    def submit(function: JobFunction) -> Response:
        return respond(lambda: pool.submit(function))

    async def generate(request: Request) -> Response:
        try:
            parsed = GenerateRequest.parse(await _read_json(request), len(models))
        except UserError as problem:
            return _respond_error(str(problem), 400)
        return submit(make_generate_job(models[parsed.system], parsed))

    async def measure_elbo(request: Request) -> Response:
        number = request.path_params["number"]
        return submit(make_elbo_job(models[number])) if number < len(models) else _respond_no_model()

    async def watch(request: Request) -> Response:
        return respond(lambda: pool.add_viewer(request.path_params["number"]))

    routes = [
        Route(f"/{token}/", get_file),
        Route(f"/{token}/static/{{name}}", get_file),
        Route(f"/{token}/systems", get_models),
        Route(f"/{token}/curves/{{number:int}}", get_curves),
        Route(f"/{token}/ways/{{number:int}}", get_samplers),
        Route(f"/{token}/reports/{{number:int}}", get_report),
        Route(f"/{token}/time/{{number:int}}", measure_elbo, methods=["POST"]),
        Route(f"/{token}/edit/{{number:int}}", edit, methods=["POST"]),
        Route(f"/{token}/generate", generate, methods=["POST"]),
        Route(f"/{token}/watch/{{number:int}}", watch),
    ]
    security = Middleware(SecurityMiddleware, token=token, port=port, allowed=allowed)
    return Starlette(routes=routes, middleware=[security])


class JobResponse(StreamingResponse):
    """The events of a job; when the connection ends, the viewer is removed."""

    def __init__(self, pool: JobPool, job: Job):
        super().__init__(_encode(job.stream()), media_type="text/event-stream")
        self.pool, self.job = pool, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.pool.remove_viewer(self.job)


async def _read_json(request: Request) -> Any:
    """Return the JSON of a request; refuse other media types and more than MAX_BYTES."""
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise UserError("A request must be sent as application/json.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise UserError(f"A request has at most {MAX_BYTES} bytes.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("The request is not valid JSON.") from None


async def _encode(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event.line


def _respond_error(sentence: str, status: int) -> Response:
    return JSONResponse({"sentence": sentence}, status)


def _respond_no_model() -> Response:
    return _respond_error("There is no such model.", 404)
