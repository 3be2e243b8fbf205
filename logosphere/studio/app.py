"""The web application of the studio: the page, models, training curves, reports, and jobs as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from logosphere.errors import UserError
from logosphere.io import json_safe
from logosphere.report.page import CONTENT_SECURITY_POLICY, read_asset
from logosphere.sampling.registry import SAMPLERS
from logosphere.studio.edits import EditRequest, edit_text
from logosphere.studio.jobs import Event, Job, JobFunction, JobPool, LimitReached, make_elbo_job, make_generate_job
from logosphere.studio.library import Library
from logosphere.studio.requests import MAX_STEPS, MAX_TEXTS, GenerateRequest
from logosphere.studio.security import ReportTokens, SecurityMiddleware
from logosphere.terminal import neutralise

MAX_BYTES = 1 << 20
"""The largest size of a request."""

SANDBOX = "sandbox allow-scripts allow-downloads"
REPORT_HEADERS = {"content-security-policy": f"{CONTENT_SECURITY_POLICY}; {SANDBOX}; frame-ancestors 'self'"}
"""A report is shown in a frame of the page. Of its scripts only those of this package run, which its player and its
plots need; they send nothing. It has no origin."""
MAX_EDITS = 4
"""Edits that are computed at once."""
MAX_DIGITS = 9
"""Digits of a number in an address; Python refuses to read more than 4,300."""

MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def load_static_files() -> dict[str, tuple[bytes, str]]:
    """Return content and media type of every file of the page by name; no other file is served."""
    folder = files("logosphere.studio").joinpath("static")
    found = {item.name: item.read_bytes() for item in folder.iterdir() if item.name.split(".")[-1] in MEDIA_TYPES}
    found |= {name: read_asset(name).encode() for name in ("style.css", "theme.js")}
    return {name: (content, MEDIA_TYPES[name.split(".")[-1]]) for name, content in found.items()}


def create_app(
    library: Library,
    token: str,
    port: int,
    pool: JobPool | None = None,
    allowed: Sequence[str] = (),
    refusal_delay: float = 0.0,
) -> Starlette:
    """Create the application for a library; only requests with the token and an allowed host are accepted."""
    static, pool, models, reports = load_static_files(), pool or JobPool(), library.models, library.reports
    report_tokens, edits = ReportTokens(), asyncio.Semaphore(MAX_EDITS)

    async def get_file(request: Request) -> Response:
        found = static.get(request.path_params.get("name", "index.html"))
        if found is None:
            return _respond_error("There is no such page.", 404)
        return Response(found[0], media_type=found[1])

    async def get_models(request: Request) -> Response:
        systems = await run_in_threadpool(library.describe)
        return SafeJSONResponse(
            {
                "systems": systems,
                "unreadable": list(library.unreadable.values()),
                "samplers": [info.as_dict() for info in SAMPLERS.values()],
                "reports": [
                    {"name": report.name, "path": f"..{report_tokens.find_path(number)}"}
                    for number, report in enumerate(reports)
                ],
                "limits": {"steps": MAX_STEPS, "n": MAX_TEXTS},
            }
        )

    async def get_curves(request: Request) -> Response:
        number = _read_number(request)
        if number >= len(models):
            return _respond_no_model()
        return SafeJSONResponse(await run_in_threadpool(models[number].training_curves))

    async def get_samplers(request: Request) -> Response:
        number = _read_number(request)
        if number >= len(models):
            return _respond_no_model()
        return SafeJSONResponse(await run_in_threadpool(models[number].list_samplers))

    async def edit(request: Request) -> Response:
        number = _read_number(request)
        if number >= len(models):
            return _respond_no_model()
        tokenizer = models[number].tokenizer
        parsed = EditRequest.parse(await _read_json(request), tokenizer.size)
        if edits.locked():
            return _respond_error(f"{MAX_EDITS} edits are being computed already; wait for one of them.", 429)
        async with edits:
            return SafeJSONResponse(asdict(await run_in_threadpool(edit_text, parsed, tokenizer)))

    async def get_report(request: Request) -> Response:
        number = _read_number(request)
        if number >= len(reports) or not report_tokens.opens(request.url.path):  # the studio's token is no token of it
            return _respond_error("There is no such report.", 404)
        try:
            content = await run_in_threadpool(reports[number].read)
        except OSError as problem:
            return _respond_error(f"The report cannot be read ({problem.strerror}).", 404)
        return Response(content, media_type="text/html", headers=REPORT_HEADERS)

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
        parsed = GenerateRequest.parse(await _read_json(request), len(models))
        return submit(make_generate_job(models[parsed.system], parsed))

    async def measure_elbo(request: Request) -> Response:
        number = _read_number(request)
        return submit(make_elbo_job(models[number])) if number < len(models) else _respond_no_model()

    async def watch(request: Request) -> Response:
        return respond(lambda: pool.add_viewer(_read_number(request)))

    routes = [
        Route(f"/{token}/", get_file),
        Route(f"/{token}/static/{{name}}", get_file),
        Route(f"/{token}/systems", get_models),
        Route(f"/{token}/curves/{{number}}", get_curves),
        Route(f"/{token}/ways/{{number}}", get_samplers),
        Route("/{report_token}/reports/{number}", get_report),
        Route(f"/{token}/time/{{number}}", measure_elbo, methods=["POST"]),
        Route(f"/{token}/edit/{{number}}", edit, methods=["POST"]),
        Route(f"/{token}/generate", generate, methods=["POST"]),
        Route(f"/{token}/watch/{{number}}", watch),
    ]
    security = Middleware(
        SecurityMiddleware, token=token, port=port, allowed=allowed, reports=report_tokens, delay=refusal_delay
    )
    return Starlette(routes=routes, middleware=[security], exception_handlers={UserError: _respond_user_error})


class SafeJSONResponse(JSONResponse):
    """JSON of any content: numbers that are not finite become null, and halves of surrogate pairs are escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(json_safe(content), separators=(",", ":")).encode()


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
    return SafeJSONResponse({"sentence": neutralise(sentence)}, status)


def _respond_user_error(request: Request, problem: Exception) -> Response:
    return _respond_error(str(problem), 400)


def _read_number(request: Request) -> int:
    """Return the number of an address; one that is too long stands for nothing, and is larger than all others."""
    text = request.path_params["number"]
    if not (text.isascii() and text.isdecimal()):
        raise UserError("The address must end in a whole number.")
    return int(text) if len(text) <= MAX_DIGITS else 10**MAX_DIGITS


def _respond_no_model() -> Response:
    return _respond_error("There is no such model.", 404)
