"""The web application of the studio.

Access control: only the studio's own page, on this machine and with the token in its address, is answered.

Another page in the same browser can send requests to 127.0.0.1. It does not know the token, its Origin differs, and
after DNS rebinding its Host differs.

The web application: the page, the list of models, training curves, reports, and jobs as server-sent events.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
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
from logosphere.studio.jobs import Event, Job, JobFunction, JobPool, LimitReached, make_elbo_job, make_generate_job
from logosphere.studio.models import ReportFile, StudioModel
from logosphere.studio.requests import MAX_STEPS, MAX_TEXTS, GenerateRequest

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
            return "This studio answers only on this machine."
        if headers.get("origin") not in {None, *self.origins}:
            return "This studio answers only its own page."
        if scope["method"] == "POST" and headers.get("origin") is None and "sec-fetch-site" in headers:
            return "This studio answers only its own page."
        token = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return "The address lacks the token of this studio; open the address that it has printed."
        return None


MAX_BYTES = 1 << 20
"""The largest size of a request."""

REPORT_HEADERS = {
    "content-security-policy": f"{CONTENT_SECURITY_POLICY}; sandbox allow-scripts; frame-ancestors 'self'"
}
"""A report is shown in a frame of the page. It may run its player, and has no origin to send requests from."""

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of every file of the page by name; no other file is served."""
    folder = files("logosphere.studio").joinpath("static")
    found = {item.name: item.read_bytes() for item in folder.iterdir() if item.name.split(".")[-1] in MEDIA_TYPES}
    found |= {name: read_asset(name).encode() for name in ("style.css", "theme.js")}
    return {name: (content, MEDIA_TYPES[name.split(".")[-1]]) for name, content in found.items()}


def create_app(
    models: Sequence[StudioModel],
    token: str,
    port: int,
    pool: JobPool | None = None,
    reports: Sequence[ReportFile] = (),
) -> Starlette:
    """Create the application for these models and reports; only requests with the token are answered."""
    static, pool = load_static_files(), pool or JobPool()

    async def get_file(request: Request) -> Response:
        found = static.get(request.path_params.get("name", "index.html"))
        if found is None:
            return _respond_error("There is no such page.", 404)
        return Response(found[0], media_type=found[1])

    async def get_models(request: Request) -> Response:
        return JSONResponse(
            {
                "systems": [model.describe() for model in models],
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
        Route(f"/{token}/generate", generate, methods=["POST"]),
        Route(f"/{token}/watch/{{number:int}}", watch),
    ]
    return Starlette(routes=routes, middleware=[Middleware(SecurityMiddleware, token=token, port=port)])


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
