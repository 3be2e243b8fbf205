"""The application of the server: completions, chats, models, health, metrics and the description of its interface."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from logosphere import __version__
from logosphere.serving.answers import Answer, AnswerStream, encode
from logosphere.serving.engine import Engine
from logosphere.serving.errors import APIError
from logosphere.serving.fields import parse_object
from logosphere.serving.limits import MAX_BYTES, ServeLimits
from logosphere.serving.metrics import CONTENT_TYPE, Metrics
from logosphere.serving.models import Catalogue, ServedModel
from logosphere.serving.openapi import describe
from logosphere.serving.protocol import CompletionRequest, parse_chat, parse_completion
from logosphere.serving.rows import make_rows
from logosphere.serving.security import ServeSecurity


def create_app(
    catalogue: Catalogue,
    limits: ServeLimits,
    *,
    host: str = "127.0.0.1",
    port: int,
    key: str = "",
    allowed: Sequence[str] = (),
    refusal_delay: float = 0.0,
) -> Starlette:
    """Create the application for models; it samples while its lifespan lasts. `app.state.engine` is its queue."""
    metrics = Metrics()
    engine = Engine(catalogue, limits, metrics)
    page = describe(catalogue, bool(key), __version__)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task, closing = asyncio.create_task(engine.run()), asyncio.create_task(engine.close_when_asked())
        try:
            yield
        finally:
            closing.cancel()
            await engine.stop(task)

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [describe_model(one) for one in catalogue.models.values()]})

    async def get_model(request: Request) -> Response:
        return JSONResponse(describe_model(catalogue.find(request.path_params["model"])))

    async def complete(request: Request) -> Response:
        return await respond(request, parse_completion(parse_object(await read_body(request))))

    async def chat(request: Request) -> Response:
        return await respond(request, parse_chat(parse_object(await read_body(request))))

    async def respond(request: Request, asked: CompletionRequest) -> Response:
        served = catalogue.find(asked.model)
        rows = await run_in_threadpool(make_rows, asked, served)
        if len(rows) > limits.queue:
            raise APIError(f"The queue has {limits.queue} places, fewer than the {len(rows)} texts of this request.")
        answer = Answer(asked, engine.submit(rows), served.name)
        if asked.stream:
            return AnswerStream(answer, _limited(answer.stream(), answer, limits.request_seconds))
        return await _collect(request, answer)

    async def _collect(request: Request, answer: Answer) -> Response:
        """The whole answer; if the client leaves before, its texts are no longer sampled."""

        async def collect() -> None:
            async for _ in answer.follow():
                pass

        work, gone = asyncio.create_task(collect()), asyncio.create_task(_wait_for_end(request))
        try:
            await asyncio.wait((work, gone), timeout=limits.request_seconds, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
                return JSONResponse(answer.whole())
            if gone.done():
                metrics.cancelled += 1
                return Response(status_code=499)  # nobody reads it
            raise _make_timeout(limits.request_seconds)
        finally:
            answer.ticket.cancel()
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, APIError):
                    await task

    async def health(request: Request) -> Response:
        status = "stopping" if engine.is_closing else "ok"
        content = {"status": status, "waiting": len(engine.waiting), "running": len(engine.running)}
        return JSONResponse(content, 503 if engine.is_closing else 200)

    async def get_metrics(request: Request) -> Response:
        text = metrics.render(len(engine.waiting), len(engine.running))
        return PlainTextResponse(text, headers={"content-type": CONTENT_TYPE})

    async def get_openapi(request: Request) -> Response:
        return JSONResponse(page)

    routes = [
        Route("/v1/models", list_models),
        Route("/v1/models/{model:path}", get_model),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/health", health),
        Route("/metrics", get_metrics),
        Route("/openapi.json", get_openapi),
    ]
    security = Middleware(
        ServeSecurity, host=host, port=port, key=key, allowed=allowed, delay=refusal_delay, metrics=metrics
    )
    app = Starlette(
        routes=routes,
        middleware=[security],
        lifespan=lifespan,
        exception_handlers={APIError: _respond_error, HTTPException: _respond_http, Exception: _respond_defect},
    )
    app.state.engine = engine
    return app


def describe_model(model: ServedModel) -> dict[str, str | int]:
    """A model in the list of models."""
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "logosphere"}


async def read_body(request: Request) -> bytes:
    """The body of a request; refuse other media types than JSON, and more than MAX_BYTES."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise APIError("A request must be sent as application/json.", 415, code="unsupported_media_type")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise APIError(f"A request has at most {MAX_BYTES:,} bytes.", 413, code="request_too_large")
    return body


async def _wait_for_end(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _limited(events: AsyncIterator[bytes], answer: Answer, seconds: float) -> AsyncIterator[bytes]:
    """The events of a stream, which ends with an error after a time."""
    end = asyncio.get_running_loop().time() + seconds
    iterator = aiter(events)
    while True:
        try:
            async with asyncio.timeout_at(end):
                event = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            answer.ticket.cancel()
            yield encode(_make_timeout(seconds).content())
            return
        yield event


def _make_timeout(seconds: float) -> APIError:
    return APIError(f"The request took more than {seconds:g} seconds.", 504, code="timeout")


async def _respond_error(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, APIError)
    return problem.respond()


async def _respond_http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    messages = {
        404: "There is no such address here; /openapi.json lists those that exist.",
        405: f"{request.url.path[:80]} does not take {request.method[:20]} requests.",
    }
    message = messages.get(problem.status_code, str(problem.detail))
    headers = dict(problem.headers or {})
    return APIError(message, problem.status_code).respond(headers)


async def _respond_defect(request: Request, problem: Exception) -> Response:
    return APIError(f"This should not happen ({type(problem).__name__}).", 500).respond()
