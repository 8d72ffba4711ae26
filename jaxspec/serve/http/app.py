"""The routes of the endpoint."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from jaxspec.core.runtime.distribution import OURS
from jaxspec.serve.http.completions.complete import check_model, complete
from jaxspec.serve.http.completions.parameters import ChatParameters, TextParameters
from jaxspec.serve.http.errors import ApiError, install_handlers
from jaxspec.serve.http.guard import Guard
from jaxspec.serve.http.openapi import (
    FORBIDDEN,
    ChatAnswer,
    Model,
    Models,
    Status,
    TextAnswer,
    add_schema,
    describe_answer,
    list_errors,
)
from jaxspec.serve.http.service import Service
from jaxspec.serve.http.tokenization import add_tokenization
from jaxspec.serve.page import add_page

# Paths of OpenAI's that are not served, with what to use.
REFUSED = {
    "/v1/responses": "There are no stateful responses here: use /v1/chat/completions.",
    "/v1/embeddings": "This model gives no embeddings.",
    "/v1/moderations": "This model judges no texts.",
}


def make_app(service: Service) -> ASGIApp:
    """Make the ASGI application; its lifespan starts and ends the engine's thread."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.driver.start()
        yield
        await service.driver.stop()

    # Without the framework's pages of the schema, which would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)
    install_handlers(app)
    _add_completions(app, service)
    _add_models(app, service)
    add_tokenization(app, service)
    _add_state(app, service)
    tokenizer = service.tokenizer
    add_schema(app, service.settings, None if tokenizer is None else len(tokenizer))
    if service.settings.page:
        add_page(app)
    return Guard(app, service.metrics, service.settings)


def _add_completions(app: FastAPI, service: Service) -> None:
    def answer(model: type[ChatAnswer | TextAnswer], summary: str) -> dict[str, Any]:
        responses = describe_answer(model)
        return {"response_model": None, "responses": responses, "summary": summary}

    @app.post("/v1/chat/completions", **answer(ChatAnswer, "Answer messages"))
    async def chat(given: ChatParameters, request: Request) -> Response:
        return await complete(service, request, given)

    @app.post("/v1/completions", **answer(TextAnswer, "Continue texts"))
    async def text(given: TextParameters, request: Request) -> Response:
        return await complete(service, request, given)

    for path, message in REFUSED.items():
        error = ApiError(400, message, "unsupported_endpoint")
        app.post(path, include_in_schema=False)(functools.partial(_refuse, error))


def _add_models(app: FastAPI, service: Service) -> None:
    settings, tokenizer = service.settings, service.tokenizer
    model = {
        "id": settings.model,
        "object": "model",
        "created": 0,
        "owned_by": "jaxspec",
        "max_model_len": settings.room,
        "chat": tokenizer is not None and tokenizer.has_chat_template,
    }

    @app.get("/v1/models", responses=FORBIDDEN | {200: {"model": Models}}, summary="The model")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    missing = list_errors(_404="There is no such model.")
    responses = FORBIDDEN | missing | {200: {"model": Model}}

    @app.get("/v1/models/{name:path}", responses=responses, summary="The model of a name")
    async def one(name: str) -> dict[str, Any]:
        check_model(service, name)
        return model


def _add_state(app: FastAPI, service: Service) -> None:
    asked = {"responses": {status: {"model": Status} for status in (200, 503)}}

    @app.get("/health", **asked)
    async def health() -> Response:
        """Whether the process can do its work at all: a supervisor restarts it if not."""
        failure = service.driver.failure
        body = {"status": "ok" if failure is None else "dead"}
        return JSONResponse(body, 200 if failure is None else 503)

    @app.get("/ready", **asked)
    async def ready() -> Response:
        """Whether it takes requests now, what it still compiles, and what a drafter has learned."""
        refusal = service.refusal
        body = {"status": "ready" if refusal is None else refusal.code}
        body |= {"compiling": service.driver.missing}
        if (learning := service.driver.adaptation) is not None:
            body |= {"adaptation": learning}
        return JSONResponse(body, 200 if refusal is None else 503)

    text = {"text/plain": {"schema": {"type": "string"}}}

    @app.get("/metrics", response_class=Response, responses={200: {"content": text}})
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": importlib.metadata.version(OURS)}


async def _refuse(error: ApiError) -> Response:
    raise error
