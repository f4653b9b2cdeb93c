"""The generated pages of the manual are those that the code makes, and every code is on one of them."""

from __future__ import annotations

import re

import pytest

from docs.generator.pages import FOLDER, PAGES
from tests.architecture.test_budgets import sources
from trainyard.spec.compat.table import ROWS

WHOLE_CODE = re.compile(r"\b([RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*)(?![-…\w])")
"""A code, and not the begin of several such as `E-SPEC-…`."""


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run `python -m docs.generator`"


def test_no_other_page_lies_there() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_code_is_on_a_generated_page() -> None:
    text = "".join((FOLDER / name).read_text(encoding="utf-8") for name in ("refusals.md", "errors.md"))
    written = {code for path in sources() for code in WHOLE_CODE.findall(path.read_text(encoding="utf-8"))}
    assert sorted(code for code in written | {row.code for row in ROWS} if f"| `{code}` |" not in text) == []


def test_every_refusal_says_what_to_write_instead() -> None:
    text = (FOLDER / "refusals.md").read_text(encoding="utf-8")
    assert not [row.code for row in ROWS if f"| `{row.code}` | `" not in text]
