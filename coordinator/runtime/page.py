"""The page at `/`: static files that read the API with the token that the user gives them.

The files hold nothing of the cluster, so they need no token. Everything from the cluster is put into the page as text,
never as markup, and the content policy allows no script but the page's own (RELIABILITY.md T17).
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/web/page.js": ("page.js", "text/javascript"),
    "/web/page.css": ("page.css", "text/css"),
    "/web/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application) -> None:
    """Serve the page's files."""
    folder = resources.files("coordinator.runtime") / "web"
    for path, (name, content_type) in _FILES.items():
        body = (folder / name).read_bytes()
        app.router.add_get(path, _server(body, content_type))


def _server(body: bytes, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return serve
