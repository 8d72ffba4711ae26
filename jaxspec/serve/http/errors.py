"""Errors in the shape that OpenAI's clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A request that ends with an error.

    Attributes:
      status: of HTTP. In a stream that has begun, the error is an event instead.
      code: for programs, such as `context_length_exceeded`.
      param: the parameter to change.
      retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        default = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def install_handlers(app: FastAPI) -> None:
    """Answer every error of `app` with the error object."""
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http_error)
    # The error goes on to `jaxspec.serve.http.guard`, which logs it.
    app.add_exception_handler(Exception, _answer_failure)


async def _answer_api_error(request: Request, error: Any) -> JSONResponse:
    return error.response()


async def _answer_failure(request: Request, error: Any) -> JSONResponse:
    return ApiError(500, "The server failed on this request.", "internal_error").response()


async def _answer_http_error(request: Request, error: Any) -> JSONResponse:
    """Answer what the framework refuses: unknown paths, other methods, unreadable bodies."""
    code = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}.get(
        error.status_code, "invalid_request"
    )
    response = ApiError(error.status_code, str(error.detail), code).response()
    response.headers.update(error.headers or {})
    return response


async def _answer_invalid(request: Request, error: Any) -> JSONResponse:
    """Answer parameters that do not validate: status 400, where the framework would say 422."""
    first = error.errors()[0]
    kind, param, context = first["type"], _name(first["loc"]), first.get("ctx", {})
    if kind == "json_invalid":
        return ApiError(400, "The body is not valid JSON.", "invalid_json").response()
    if (
        "param" in context
    ):  # an error of `jaxspec.serve.http.completions.parameters` about an object's key
        inner = f"{param}.{context['param']}".removeprefix(".")
        return ApiError(400, first["msg"], kind, inner).response()
    if not param:
        message = "The body must be a JSON object, sent as Content-Type: application/json."
        return ApiError(400, message, "invalid_json").response()
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
        return ApiError(400, message, "missing_required_parameter", param).response()
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"Invalid '{param}': {reason}.", "invalid_value", param).response()


def _name(location: tuple[str | int, ...]) -> str:
    """Write a place in the body as OpenAI does: messages[0].content."""
    name = ""
    for part in location[1:]:
        name += f"[{part}]" if isinstance(part, int) else f".{part}"
    return name.removeprefix(".")
