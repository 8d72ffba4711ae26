"""The routes of the endpoint."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from jaxspec.core.distribution import OURS
from jaxspec.serve.http.complete import check_model, complete
from jaxspec.serve.http.errors import install_handlers
from jaxspec.serve.http.guard import Guard
from jaxspec.serve.http.parameters import ChatParameters, TextParameters
from jaxspec.serve.http.service import Service
from jaxspec.serve.page import add_page


def make_app(service: Service) -> ASGIApp:
    """Make the ASGI application; its lifespan starts and ends the engine's thread."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.driver.start()
        yield
        await service.driver.stop()

    # Without a schema and the framework's pages of it, which would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    install_handlers(app)
    _add_completions(app, service)
    _add_models(app, service)
    _add_state(app, service)
    if service.settings.page:
        add_page(app)
    return Guard(app, service.metrics, service.settings)


def _add_completions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", response_model=None)
    async def chat(given: ChatParameters, request: Request) -> Response:
        return await complete(service, request, given)

    @app.post("/v1/completions", response_model=None)
    async def text(given: TextParameters, request: Request) -> Response:
        return await complete(service, request, given)


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

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> dict[str, Any]:
        check_model(service, name)
        return model


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process can do its work at all: a supervisor restarts it if not."""
        failure = service.driver.failure
        body = {"status": "ok" if failure is None else "dead"}
        return JSONResponse(body, 200 if failure is None else 503)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether it takes requests now, and which programs it is still compiling."""
        refusal = service.refusal
        body = {"status": "ready" if refusal is None else refusal.code}
        body |= {"compiling": service.driver.missing}
        return JSONResponse(body, 200 if refusal is None else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": importlib.metadata.version(OURS)}
