"""The chat page: three files without a build step, and nothing from other hosts."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/tree.js": ("tree.js", "text/javascript"),
}
# The page may talk to its own server alone, whatever a model writes into it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page."""
    for path, (name, kind) in _FILES.items():
        _add_file(app, path, Path(__file__).with_name(name).read_bytes(), kind)


def _add_file(app: FastAPI, path: str, content: bytes, kind: str) -> None:
    @app.get(path)
    async def send() -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)
