"""The manual is what the product does: links, commands and codes in it exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.test_budgets import REPOSITORY, sources
from trainyard.api.operations import OPERATIONS
from trainyard.spec.compat.table import ROWS

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))
READER_PAGES = [*PAGES, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
CODE = re.compile(r"\b([RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*)\b")
COMMAND = re.compile(r"(?:^ *|`)trainyard ([a-z][a-z-]*)(?: ([a-z]+))?", re.MULTILINE)

GROUPS = {name.split()[0] for name in OPERATIONS if " " in name}


def product_codes() -> set[str]:
    """Every code in the package's source and in its table of refusals, where some are put together."""
    written = {code for path in sources("trainyard", "nodes", "flows") for code in CODE.findall(path.read_text())}
    return written | {row.code for row in ROWS}


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\(([a-z-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == {page.name for page in PAGES} - {"index.md"}


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_codes_exist(page: Path) -> None:
    assert not sorted(set(CODE.findall(page.read_text())) - product_codes())


@pytest.mark.parametrize("page", READER_PAGES, ids=lambda page: page.stem)
def test_commands_exist(page: Path) -> None:
    known = GROUPS | set(OPERATIONS)
    unknown = [
        f"{first} {second}".strip()
        for first, second in COMMAND.findall(page.read_text())
        if first not in known or (first in GROUPS and second and f"{first} {second}" not in known)
    ]
    assert not unknown
