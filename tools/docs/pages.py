"""Every generated page, by its file name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tools.docs.agents import files
from tools.docs.axes import axes_page
from tools.docs.codes import errors_page
from tools.docs.commands import cli_page
from tools.docs.imports import imports_page
from tools.docs.reasons import reasons_page
from tools.docs.refusals import refusals_page
from tools.docs.routes import routes_page
from tools.docs.sdk import write_types
from tools.docs.settings import night_page, nodes_page, settings_page, templates_page
from tools.docs.single_tables import benchmarks_page, choices_page, openai_page
from trainyard.operations.table import MODULES, NAMES_FILE, list_rows, read_summaries

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
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
    "reasons.md": reasons_page,
    "choices.md": choices_page,
    "benchmarks.md": benchmarks_page,
    "openai.md": openai_page,
}


@cache
def pages() -> dict[str, str]:
    """Return file name -> text of every page of docs/reference."""
    return {name: make() for name, make in PAGES.items()}


def write() -> list[Path]:
    """Write names, pages, the parts of what agents read, and the types of the SDK; return the files."""
    FOLDER.mkdir(exist_ok=True)
    NAMES_FILE.write_text(names_text(), encoding="utf-8")
    read_summaries.cache_clear()
    reference = pages()
    texts = {**{FOLDER / name: text for name, text in reference.items()}, **files(reference)}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path in {*FOLDER.iterdir()} - {*texts}:  # of an earlier version
        path.unlink()
    return [NAMES_FILE, *texts, *write_types()]


def names_text() -> str:
    """Return the summaries of all operations in the order of the manual, for help that imports none of them."""
    summaries = {name: row.summary for word in MODULES for name, row in list_rows(word).items()}
    return json.dumps(summaries, indent=1, ensure_ascii=False) + "\n"
