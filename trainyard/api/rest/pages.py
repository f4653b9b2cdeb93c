"""The pages of the dashboard: files of `api/web`, which ask the REST API with the cookie of a login."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parents[1] / "web"
PATHS = ("/dashboard", "/dashboard/jobs", "/dashboard/chains", "/dashboard/backends")


def add_pages(app: FastAPI) -> None:
    """Add the pages and their files. They contain nothing of this home, so that the login page needs no token."""

    async def page(_: Request) -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html")

    for path in PATHS:
        app.add_route(path, page, methods=["GET"])
    app.mount("/dashboard/assets", StaticFiles(directory=FOLDER), name="assets")
