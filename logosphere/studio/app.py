"""The web application: a page, the list of models, their curves, reports, and jobs as streams of events."""

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
from logosphere.report.page import CONTENT_SECURITY_POLICY, read_asset
from logosphere.sampling.catalogue import LISTINGS
from logosphere.studio.guard import Guard
from logosphere.studio.jobs import Busy, Desk, Event, Job, Work
from logosphere.studio.shelf import Book, Leaflet
from logosphere.studio.wishes import MOST_STEPS, MOST_TEXTS, Wish
from logosphere.studio.work import spending, writing

MOST_BYTES = 1 << 20
"""A request may not be longer."""

FRAMED = {"content-security-policy": f"{CONTENT_SECURITY_POLICY}; sandbox allow-scripts; frame-ancestors 'self'"}
"""A report is shown in a frame of the page. It may run its player and has no origin: nothing here listens to it."""

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def static_files() -> dict[str, tuple[bytes, str]]:
    """Everything the page is made of, by name: nothing else can be asked for."""
    here = files("logosphere.studio").joinpath("static")
    found = {item.name: item.read_bytes() for item in here.iterdir() if item.name.split(".")[-1] in KINDS}
    found |= {name: read_asset(name).encode() for name in ("style.css", "theme.js")}
    return {name: (content, KINDS[name.split(".")[-1]]) for name, content in found.items()}


def studio(
    books: Sequence[Book], token: str, port: int, desk: Desk | None = None, reports: Sequence[Leaflet] = ()
) -> Starlette:
    """The application, for models on a shelf and reports beside them, behind its guard."""
    parts, desk = static_files(), desk or Desk()

    async def piece(request: Request) -> Response:
        found = parts.get(request.path_params.get("name", "index.html"))
        if found is None:
            return _sorry("There is no such page.", 404)
        return Response(found[0], media_type=found[1])

    async def systems(request: Request) -> Response:
        return JSONResponse(
            {
                "systems": [book.described() for book in books],
                "samplers": [asdict(listing) for listing in LISTINGS],
                "reports": [report.name for report in reports],
                "limits": {"steps": MOST_STEPS, "n": MOST_TEXTS},
            }
        )

    async def curves(request: Request) -> Response:
        number = request.path_params["number"]
        return JSONResponse(books[number].curves()) if number < len(books) else _sorry("There is no such model.", 404)

    async def ways(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(books):
            return _sorry("There is no such model.", 404)
        return JSONResponse(await run_in_threadpool(books[number].ways))

    async def report(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(reports):
            return _sorry("There is no such report.", 404)
        return Response(reports[number].read(), media_type="text/html", headers=FRAMED)

    def begun(take: Callable[[], Job]) -> Response:
        try:
            return Written(desk, take())
        except UserError as problem:
            return _sorry(str(problem), 400)
        except Busy as problem:
            return _sorry(str(problem), 429)

    def taken(work: Work) -> Response:
        return begun(lambda: desk.take(work))

    async def write(request: Request) -> Response:
        try:
            wish = Wish.read(await _content(request), len(books))
        except UserError as problem:
            return _sorry(str(problem), 400)
        return taken(writing(books[wish.system], wish))

    async def spend(request: Request) -> Response:
        number = request.path_params["number"]
        return taken(spending(books[number])) if number < len(books) else _sorry("There is no such model.", 404)

    async def watch(request: Request) -> Response:
        return begun(lambda: desk.join(request.path_params["number"]))

    routes = [
        Route(f"/{token}/", piece),
        Route(f"/{token}/static/{{name}}", piece),
        Route(f"/{token}/systems", systems),
        Route(f"/{token}/curves/{{number:int}}", curves),
        Route(f"/{token}/ways/{{number:int}}", ways),
        Route(f"/{token}/reports/{{number:int}}", report),
        Route(f"/{token}/time/{{number:int}}", spend, methods=["POST"]),
        Route(f"/{token}/generate", write, methods=["POST"]),
        Route(f"/{token}/watch/{{number:int}}", watch),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, port=port)])


class Written(StreamingResponse):
    """A job as server-sent events; when the listener goes, the job is left."""

    def __init__(self, desk: Desk, job: Job):
        super().__init__(_stream(job.listen()), media_type="text/event-stream")
        self.desk, self.job = desk, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.desk.leave(self.job)


async def _content(request: Request) -> Any:
    """The JSON of a request, if it is short enough and says that it is JSON."""
    if request.headers.get("content-type", "").split(";")[0] != "application/json":
        raise UserError("A wish is sent as application/json.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise UserError(f"A wish has at most {MOST_BYTES} bytes.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("This wish is no JSON.") from None


async def _stream(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    async for event in events:
        yield event.line


def _sorry(sentence: str, status: int) -> Response:
    return JSONResponse({"sentence": sentence}, status)
