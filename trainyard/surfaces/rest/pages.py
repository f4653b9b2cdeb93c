"""The pages of the dashboard: the build of `web/`, which asks the REST API with the cookie of a login.

The application reads the page from the path, so that every path below /dashboard answers the same document. The names
of the files stay while their content changes, so that each answer has the digest of its content as ETag: a browser that
has the file gets 304.
"""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parents[1] / "web"
ICON = "icon.svg"
MOST_FILES = 1000


class BuiltFiles(StaticFiles):
    """Files of a build with the digest of their content as ETag.

    Starlette's ETag is of time and size: two builds of equal length, installed from wheels with equal times, share it.
    """

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        etag = f'"{digest_file(str(full_path), stat_result.st_mtime_ns, stat_result.st_size)}"'
        response = FileResponse(full_path, status_code, headers={"etag": etag}, stat_result=stat_result)
        if Headers(scope=scope).get("if-none-match") and self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


@lru_cache(maxsize=MOST_FILES)
def digest_file(path: str, mtime_ns: int, size: int) -> str:
    """Return the SHA-256 of a file, which is read again when its time or its size has changed."""
    return sha256(Path(path).read_bytes()).hexdigest()


def add_pages(app: FastAPI) -> None:
    """Add the pages and their files. They contain nothing of this home, so that the login page needs no token."""

    files = BuiltFiles(directory=FOLDER)

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def icon(request: Request) -> Response:
        return await files.get_response(ICON, request.scope)

    app.mount("/dashboard/assets", BuiltFiles(directory=FOLDER / "assets"), name="assets")
    app.add_route(f"/dashboard/{ICON}", icon, methods=["GET"])
    app.add_route("/dashboard", page, methods=["GET"])
    app.add_route("/dashboard/{path:path}", page, methods=["GET"])
