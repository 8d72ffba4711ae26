"""The chat page: files without a build step, and nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# The page may talk to its own server alone, whatever a model writes into it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page: a file's name, and `/` for index.html."""
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix in _KINDS:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            _add_file(app, path, file.read_bytes(), _KINDS[file.suffix])


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path, include_in_schema=False)
    async def send() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)
