"""The pages of docs/reference can be built, every code is on one of them, and what agents read is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.architecture.test_budgets import sources
from tools.docs.agents import AGENTS, LLMS, SKILL, files
from tools.docs.meanings import read_meanings
from tools.docs.pages import PAGES, pages
from trainyard.spec.compat.table import ROWS

WHOLE_CODE = re.compile(r"\b([RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*)(?![-…\w])")
"""A code, and not the begin of several such as `E-SPEC-…`."""
FIELD = re.compile(r"(<|&lt;)[\w. ]+>")
WORD = re.compile(r"[A-Za-z]{2,}")
MOST_CODES = 175


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_built(name: str) -> None:
    text = pages()[name]
    assert text.startswith("# ")
    assert "\n| " in text


def test_the_page_of_imports_is_short() -> None:
    """The report of the command has every key; a page of all of them is read by nobody."""
    tables = pages()["imports.md"].split("\n## ")[1:]
    assert all(5 < table.count("\n| `") <= 26 for table in tables)


def test_every_error_has_one_line() -> None:
    lines = re.findall(r"^\| `(E-[A-Z-]+)` ", pages()["errors.md"], re.MULTILINE)
    assert lines == sorted(read_meanings())


@pytest.mark.parametrize("path", [AGENTS, SKILL, LLMS], ids=lambda path: path.name)
def test_what_agents_read_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files(pages())[path], "run `make reference`"


def test_the_skill_has_a_name_and_a_description() -> None:
    """As the format of skills wants them: the name of the folder, and at most 1,024 characters."""
    _, matter, _ = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    facts = yaml.safe_load(matter)
    assert facts["name"] == SKILL.parent.name
    assert 0 < len(facts["description"]) <= 1024


def test_every_code_is_on_a_generated_page() -> None:
    lines = [line for name in ("refusals.md", "errors.md") for line in pages()[name].splitlines()]
    documented_codes = {line.removeprefix("## ") for line in lines} | {line[3:].partition("`")[0] for line in lines}
    written = {code for path in sources() for code in WHOLE_CODE.findall(path.read_text(encoding="utf-8"))}
    codes = written | {row.code for row in ROWS}
    assert sorted(codes - documented_codes) == []
    assert len(codes) <= MOST_CODES


def test_every_refusal_is_shown_under_its_code_in_words() -> None:
    parts = pages()["refusals.md"].split("\n## ")
    documented = {
        part.partition("\n")[0]: re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", part, re.MULTILINE) for part in parts
    }
    for row in ROWS:
        texts = dict(documented[row.code])[row.name].split(" | ")[-2:]
        assert not [text for text in texts if "…" in text or len(WORD.findall(FIELD.sub("", text))) < 2], row.name
