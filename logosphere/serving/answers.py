"""Answers in the shape of OpenAI's API: whole ones, and streams of server-sent events."""

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from logosphere.serving.engine import Ticket
from logosphere.serving.errors import APIError
from logosphere.serving.protocol import CompletionRequest
from logosphere.serving.rows import Row


class Answer:
    """The answer to a request, as far as it has come."""

    def __init__(self, request: CompletionRequest, ticket: Ticket, model: str):
        self.request, self.ticket, self.model = request, ticket, model
        self.is_chat = request.kind == "chat"
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.texts = ["" for _ in ticket.rows]
        self.reasons: list[str | None] = [None for _ in ticket.rows]
        self.tokens = self.evaluations = 0

    async def follow(self) -> AsyncIterator[tuple[Row, str, dict[str, Any]]]:
        """Yield the events of the texts, and add them up."""
        for row in self.ticket.rows:
            if row.prompt:
                self.texts[row.index] += row.prompt
                yield row, "span", {"text": row.prompt}
        async for row, name, content in self.ticket.stream():
            if name != "draft":
                self.texts[row.index] += content["text"]
            if name == "done":
                self.reasons[row.index] = content["finish_reason"]
                self.tokens += content["tokens"]
                self.evaluations += content["nfe"]
            yield row, name, content

    def usage(self) -> dict[str, int]:
        """Tokens, and network evaluations over all texts (nfe)."""
        prompts = sum(row.prompt_tokens for row in self.ticket.rows if row.index % self.request.n == 0)
        total = prompts + self.tokens
        return {
            "prompt_tokens": prompts,
            "completion_tokens": self.tokens,
            "total_tokens": total,
            "nfe": self.evaluations,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        seed = self.ticket.rows[0].seed
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "seed": seed}

    def whole(self) -> dict[str, Any]:
        """The answer when all texts are done."""
        choices: list[dict[str, Any]] = []
        for index, (text, reason) in enumerate(zip(self.texts, self.reasons, strict=True)):
            choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason}
            if self.is_chat:
                choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                choice["text"] = text
            choices.append(choice)
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._head(kind) | {"choices": choices, "usage": self.usage()}

    def chunk(self, row: Row, text: str, reason: str | None = None, *, begins: bool = False) -> dict[str, Any]:
        """A part of one text."""
        choice: dict[str, Any] = {"index": row.index, "logprobs": None, "finish_reason": reason}
        if self.is_chat:
            choice["delta"] = ({"role": "assistant"} if begins else {}) | ({"content": text} if text or begins else {})
        else:
            choice["text"] = text
        return self._chunk_head() | {"choices": [choice]}

    def _chunk_head(self) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.is_chat else "text_completion")
        return head | ({"usage": None} if self.request.include_usage else {})

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events; errors are events as well."""
        try:
            if self.is_chat:
                for row in self.ticket.rows:
                    yield encode(self.chunk(row, "", begins=True))
            async for row, name, content in self.follow():
                if name == "draft":
                    draft = {"index": row.index} | {field: content[field] for field in ("text", "step", "steps")}
                    yield b"event: draft\n" + encode(self._chunk_head() | {"choices": [], "draft": draft})
                elif name == "span" or (content["text"] and self.is_chat):
                    yield encode(self.chunk(row, content["text"]))
                if name == "done":
                    last = "" if self.is_chat else content["text"]
                    yield encode(self.chunk(row, last, content["finish_reason"]))
            if self.request.include_usage:
                yield encode(self._chunk_head() | {"choices": [], "usage": self.usage()})
        except APIError as problem:
            yield encode(problem.content())
        yield b"data: [DONE]\n\n"


def encode(content: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n".encode()


class AnswerStream(StreamingResponse):
    """The events of an answer; when the connection ends, its texts are no longer sampled."""

    def __init__(self, answer: Answer, events: AsyncIterator[bytes]):
        super().__init__(events, media_type="text/event-stream")
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.answer.ticket.cancel()
