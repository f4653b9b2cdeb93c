"""The manual says what the code does: every example is a chain that is accepted, every line shown is printed."""

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
CHAINS = (DOCS / "chains.md").read_text(encoding="utf-8")


def examples() -> list[str]:
    """The YAML blocks of docs/chains.md that are whole chains, templates or jobs."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", CHAINS, re.MULTILINE | re.DOTALL)
    return [text for text in blocks if re.search(r"^(nodes|template|dataset):", text, re.MULTILINE)]


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
    shown = re.findall(r"^([ER]-[A-Z0-9-]+ .*)$", CHAINS, re.MULTILINE)
    assert len(shown) >= 2
    assert set(shown) <= printed
