"""Errors in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}} and a status."""

from typing import Any

from starlette.responses import JSONResponse

from logosphere.terminal import neutralise

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
}


class APIError(Exception):
    """A request that is refused or failed: a sentence, a status, and the parameter that it is about."""

    def __init__(
        self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None, retry: int = 0
    ):
        super().__init__(message)
        self.message, self.status, self.param, self.code, self.retry = message, status, param, code, retry

    def content(self) -> dict[str, Any]:
        """For JSON."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": neutralise(self.message), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def respond(self, headers: dict[str, str] | None = None) -> JSONResponse:
        """The response; it says when to try again where that helps."""
        more = {"retry-after": str(self.retry)} if self.retry else {}
        return JSONResponse(self.content(), self.status, headers=more | (headers or {}))
