"""The schema at /openapi.json: what answers look like, and what the framework cannot know itself."""

from __future__ import annotations

import copy
import importlib.metadata
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from jaxspec.core.runtime.distribution import OURS
from jaxspec.serve.http.completions.parameters import MOST_SAMPLES
from jaxspec.serve.http.settings import HttpSettings


class Error(BaseModel):
    """What went wrong.

    Attributes:
      message: one line that says what to do.
      type, code: for programs.
      param: the parameter to change.
    """

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every error has this body."""

    error: Error


class Usage(BaseModel):
    """Tokens of the prompts, and of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Answer(BaseModel):
    """What answers have in common.

    Attributes:
      created: seconds since 1970.
      metrics: figures of speculation.
    """

    id: str
    object: str
    created: int
    model: str
    usage: Usage
    metrics: dict[str, Any]


class _Choice(BaseModel):
    """What choices have in common.

    Attributes:
      finish_reason: `stop` or `length`.
    """

    index: int
    finish_reason: str
    logprobs: dict[str, Any] | None


class Message(BaseModel):
    """A message of the model."""

    role: str
    content: str


class ChatChoice(_Choice):
    """An answer to messages."""

    message: Message


class ChatAnswer(_Answer):
    """Answer of /v1/chat/completions."""

    choices: list[ChatChoice]


class TextChoice(_Choice):
    """A continuation of a prompt."""

    text: str


class TextAnswer(_Answer):
    """Answer of /v1/completions."""

    choices: list[TextChoice]


class Model(BaseModel):
    """A model.

    Attributes:
      max_model_len: most tokens of a prompt together with its answer.
      chat: whether it has a chat template.
    """

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int
    chat: bool


class Models(BaseModel):
    """The models of the server."""

    object: str
    data: list[Model]


class Status(BaseModel):
    """Whether the server can do its work."""

    status: str


def list_errors(**errors: str) -> dict[int | str, dict[str, Any]]:
    """Describe errors: `_404="No such model"`."""
    return {
        int(status[1:]): {"model": ErrorBody, "description": text}
        for status, text in errors.items()
    }


# Errors of all routes, and of those that run the model.
FORBIDDEN = list_errors(_400="The server has another name.", _401="The key is missing or wrong.")
REFUSALS = FORBIDDEN | list_errors(
    _400="A parameter is wrong or not supported.",
    _404="There is no such model.",
    _413="The body is too large.",
    _429="The queue is full: see Retry-After.",
)
FAILURES = REFUSALS | list_errors(
    _500="The engine gave the request up.",
    _503="The server warms up, shuts down or is dead.",
    _504="The request took too long.",
)
# Bodies with numbers that the server limits.
BODIES = ("ChatParameters", "TextParameters", "DetokenizeParameters")
_EVENTS = {"text/event-stream": {"schema": {"description": "Server-sent events."}}}


def describe_answer(model: type[_Answer]) -> dict[int | str, dict[str, Any]]:
    """Describe the answers of a route that runs the model, whole or as a stream."""
    return FAILURES | {200: {"model": model, "content": _EVENTS}}


def add_schema(app: FastAPI, settings: HttpSettings, tokens: int | None) -> None:
    """Serve the schema.

    Args:
      tokens: of the tokenizer; None without one.
    """

    def make() -> dict[str, Any]:
        if app.openapi_schema is None:
            version = importlib.metadata.version(OURS)
            schema = get_openapi(title="jaxspec", version=version, routes=app.routes)
            app.openapi_schema = _correct(schema, settings, tokens)
        return app.openapi_schema

    app.openapi = make


def _correct(schema: dict[str, Any], settings: HttpSettings, tokens: int | None) -> dict[str, Any]:
    """Say what depends on the server, and leave out the framework's own errors, which are none
    here.
    """
    parts = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        parts["schemas"].pop(name, None)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if settings.key is not None and needs_key(path):
                operation["security"] = [{"key": []}]
    if settings.key is not None:
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    limits = dict.fromkeys(("max_tokens", "max_completion_tokens"), settings.room - 1)
    limits["n"] = min(MOST_SAMPLES, settings.most_choices)
    if tokens is not None:
        limits |= dict.fromkeys(("prompt", "tokens", "stop_token_ids"), tokens - 1)
    for body in BODIES:
        properties = parts["schemas"][body]["properties"]
        for name in limits.keys() & properties:
            _limit(properties, name, limits[name])
    return schema


def _limit(place: dict[str, Any], name: str, most: int) -> None:
    """Give all integers in a part of a schema a maximum. Parts are shared, so it is copied."""
    part = place[name] = copy.deepcopy(place[name])

    def visit(part: dict[str, Any]) -> None:
        if part.get("type") == "integer":
            part["maximum"] = most
        for inner in (part.get("items"), *part.get("anyOf", ())):
            if inner is not None:
                visit(inner)

    visit(part)


def needs_key(path: str) -> bool:
    """Whether a path asks for the model or its tokenizer, and not for a page or a figure."""
    return path.startswith(("/v1", "/tokenize", "/detokenize"))
