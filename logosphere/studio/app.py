"""The web application: a page, the list of models, their curves, and texts as a stream of events."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from logosphere.errors import UserError
from logosphere.reports.page import part
from logosphere.sampling.catalogue import LISTINGS
from logosphere.studio.guard import Guard
from logosphere.studio.jobs import Busy, Desk, Event, Job
from logosphere.studio.shelf import Book
from logosphere.studio.wishes import MOST_STEPS, MOST_TEXTS, Wish

MOST_BYTES = 1 << 20
"""A request may not be longer."""

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def static_files() -> dict[str, tuple[bytes, str]]:
    """Everything the page is made of, by name: nothing else can be asked for."""
    here = files("logosphere.studio").joinpath("static")
    found = {item.name: item.read_bytes() for item in here.iterdir() if item.name.split(".")[-1] in KINDS}
    found |= {name: part(name).encode() for name in ("style.css", "theme.js")}
    return {name: (content, KINDS[name.split(".")[-1]]) for name, content in found.items()}


def studio(books: Sequence[Book], token: str, port: int, desk: Desk | None = None) -> Starlette:
    """The application, for models on a shelf, behind its guard."""
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
                "limits": {"steps": MOST_STEPS, "n": MOST_TEXTS},
            }
        )

    async def curves(request: Request) -> Response:
        number = request.path_params["number"]
        return JSONResponse(books[number].curves()) if number < len(books) else _sorry("There is no such model.", 404)

    async def write(request: Request) -> Response:
        try:
            wish = Wish.read(await _content(request), len(books))
            job = desk.take(books[wish.system], wish)
        except UserError as problem:
            return _sorry(str(problem), 400)
        except Busy as problem:
            return _sorry(str(problem), 429)
        return Written(desk, job)

    routes = [
        Route(f"/{token}/", piece),
        Route(f"/{token}/static/{{name}}", piece),
        Route(f"/{token}/systems", systems),
        Route(f"/{token}/curves/{{number:int}}", curves),
        Route(f"/{token}/generate", write, methods=["POST"]),
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
    async for name, content in events:
        yield f"event: {name}\ndata: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


def _sorry(sentence: str, status: int) -> Response:
    return JSONResponse({"sentence": sentence}, status)
