"""Where the wire is below the address of the service."""

from __future__ import annotations

PREFIX = "/openai/v1"
FORM_TYPE = "multipart/form-data"
"""Files come in forms. A page cannot send one here: it needs a header `Authorization`, which no form has."""
REQUEST_ID = "x-request-id"


def is_wire(path: str) -> bool:
    """Return whether a path is of the wire."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def takes_files(path: str) -> bool:
    """Return whether a path takes files, in forms."""
    return path == f"{PREFIX}/files" or (path.startswith(f"{PREFIX}/uploads/") and path.endswith("/parts"))
