"""Every generated page, by its file name."""

from __future__ import annotations

import json
from pathlib import Path

from docs.generator.agents import files
from docs.generator.axes import axes_page
from docs.generator.codes import errors_page
from docs.generator.commands import cli_page
from docs.generator.imports import imports_page
from docs.generator.refusals import refusals_page
from docs.generator.routes import routes_page
from docs.generator.sdk import write_types
from docs.generator.settings import night_page, nodes_page, settings_page, templates_page
from trainyard.operations.table import MODULES, NAMES_FILE, rows_of

FOLDER = Path(__file__).parents[1] / "reference"
PAGES = {
    "nodes.md": nodes_page,
    "templates.md": templates_page,
    "night.md": night_page,
    "settings.md": settings_page,
    "commands.md": cli_page,
    "routes.md": routes_page,
    "refusals.md": refusals_page,
    "errors.md": errors_page,
    "axes.md": axes_page,
    "imports.md": imports_page,
}


def pages() -> dict[str, str]:
    return {name: make() for name, make in PAGES.items()}


def write() -> list[Path]:
    """Write names, pages, the parts of what agents read, and the types of the SDK; return the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    NAMES_FILE.write_text(names_text(), encoding="utf-8")
    return [NAMES_FILE, *(FOLDER / name for name in PAGES), *files(), *write_types()]


def names_text() -> str:
    """Return the summaries of all operations in the order of the manual, for help that imports none of them."""
    summaries = {name: row.summary for word in MODULES for name, row in rows_of(word).items()}
    return json.dumps(summaries, indent=1, ensure_ascii=False) + "\n"
