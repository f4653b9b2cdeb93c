"""The pages of the dashboard: the build of `web/`, which asks the REST API with the cookie of a login.

The application reads the page from the path, so that every path below /dashboard answers the same document.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parents[1] / "web"
ICON = "icon.svg"


def add_pages(app: FastAPI) -> None:
    """Add the pages and their files. They contain nothing of this home, so that the login page needs no token."""

    async def page(_: Request) -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html")

    async def icon(_: Request) -> Response:
        return FileResponse(FOLDER / ICON, media_type="image/svg+xml")

    app.mount("/dashboard/assets", StaticFiles(directory=FOLDER / "assets"), name="assets")
    app.add_route(f"/dashboard/{ICON}", icon, methods=["GET"])
    app.add_route("/dashboard", page, methods=["GET"])
    app.add_route("/dashboard/{path:path}", page, methods=["GET"])
