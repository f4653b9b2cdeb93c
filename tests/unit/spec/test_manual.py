"""The manual says what the code does: every refusal has its line, and every example is a chain that is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.spec.chains import RESOURCES
from trainyard.spec.compat.table import ROWS
from trainyard.spec.graph import check
from trainyard.spec.load.files import load_value
from trainyard.spec.templates import TEMPLATES

DOCS = Path(__file__).parents[3] / "docs"
SPEC = Path(__file__).parents[3] / "trainyard" / "spec"
REFUSALS = (DOCS / "refusals.md").read_text(encoding="utf-8")
CHAINS = (DOCS / "chains.md").read_text(encoding="utf-8")


def table(text: str) -> list[str]:
    """The codes in the first column of the tables."""
    return re.findall(r"^\| `([ER]-[A-Z0-9-]+)` \|", text, re.MULTILINE)


def examples() -> list[str]:
    """The indented blocks of docs/chains.md that are whole chains, templates or jobs."""
    blocks = re.findall(r"(?:^    .*\n)+", CHAINS, re.MULTILINE)
    texts = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]
    return [text for text in texts if re.search(r"^(nodes|template|dataset):", text, re.MULTILINE)]


def test_every_row_is_in_the_manual_once() -> None:
    listed = table(REFUSALS)
    assert sorted(listed) == sorted(set(listed))
    assert {code for code in listed if code.startswith("R-")} == {row.code for row in ROWS}


def test_every_error_code_of_the_spec_is_in_the_manual() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in SPEC.rglob("*.py"))
    assert {code for code in table(REFUSALS) if code.startswith("E-")} == set(re.findall(r'"(E-SPEC-[A-Z]+)"', source))


def test_every_section_begins_with_an_answer() -> None:
    for text in (CHAINS, REFUSALS):
        for section in text.split("\n## ")[1:]:
            heading, _, rest = section.partition("\n")
            first = rest.strip().split("\n\n")[0]
            assert len(heading) <= 60
            assert not first.startswith(("|", "    ", "-")), heading
            assert 1 <= len(re.findall(r"[.!?](?:\s|$)", first)) <= 2, heading


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_every_example_is_accepted(text: str) -> None:
    assert check(load_value(text)) == []


def test_the_manual_has_examples() -> None:
    assert len(examples()) >= 5


def test_the_manual_names_every_template_with_its_core() -> None:
    for name, template in TEMPLATES.items():
        (line,) = re.findall(rf"^\| `{name}` \| ([^|]+)\|", CHAINS, re.MULTILINE)
        assert re.sub(r" \(\w+\)", "", line).strip().split(", ") == list(template.core)


def test_the_lines_in_the_manual_are_those_that_are_printed() -> None:
    told = (RESOURCES.parent / "golden" / "refusals.txt").read_text(encoding="utf-8")
    printed = {line.partition(": ")[2] for line in told.splitlines()}
    shown = re.findall(r"^    ([ER]-[A-Z0-9-]+ .*)$", CHAINS + REFUSALS, re.MULTILINE)
    assert len(shown) >= 3
    assert set(shown) <= printed
