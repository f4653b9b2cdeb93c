"""Resources: the pages of the documentation that are on this machine, and the schemas of what users write."""

from __future__ import annotations

import json
from pathlib import Path

from mcp import types

from trainyard.app.chains.describe import SCHEMAS
from trainyard.errors import NotFound
from trainyard.project import project_folder

DOCS, SCHEMA = "trainyard://docs/", "trainyard://schema/"
MARKDOWN, JSON = "text/markdown", "application/schema+json"


def pages() -> dict[str, Path]:
    """Address -> file of every page; a wheel contains none."""
    folder = project_folder() / "docs"
    paths = [*folder.glob("*.md"), *folder.glob("reference/*.md"), *folder.glob("guides/*.md")]
    return {DOCS + path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(paths)}


def list_resources() -> list[types.Resource]:
    schemas = [
        types.Resource(uri=SCHEMA + name, name=f"schema {name}", mime_type=JSON, description=f"JSON Schema of {name}.")
        for name in SCHEMAS
    ]
    written = [
        types.Resource(uri=uri, name=uri.removeprefix(DOCS), mime_type=MARKDOWN, description=read_title(path))
        for uri, path in pages().items()
    ]
    return [*schemas, *written]


def read_title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), path.stem)


def read_resource(uri: str) -> types.TextResourceContents:
    """Return the text of a page or a schema. Raises `NotFound` (`E-NOT-FOUND`)."""
    model, page = SCHEMAS.get(uri.removeprefix(SCHEMA)) if uri.startswith(SCHEMA) else None, pages().get(uri)
    if model is not None:
        return types.TextResourceContents(uri=uri, mime_type=JSON, text=json.dumps(model.model_json_schema()))
    if page is not None:
        return types.TextResourceContents(uri=uri, mime_type=MARKDOWN, text=page.read_text(encoding="utf-8"))
    raise NotFound(f"There is no resource {uri!r}.", do="List the resources.", code="E-NOT-FOUND")
