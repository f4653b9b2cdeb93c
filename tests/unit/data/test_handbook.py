"""The demo's handbook: forty pages of which the rules make clear questions with short, unique answers."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.data.validating import count_words
from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.generation.generate import generate
from trainyard.data.rows import DocumentRow, write_rows
from trainyard.data.validation import validate
from trainyard.spec.axes.data import GenerationTemplate, Port
from trainyard.spec.nodes import AiGeneratorConfig, HoldoutRules, ValidatorConfig
from trainyard.stores.artifacts import Reference

REPOSITORY = Path(__file__).parents[3]
PAGES = sorted((REPOSITORY / "examples" / "handbook").glob("*.md"))


def document(page: Path) -> DocumentRow:
    return DocumentRow(page.stem, f"handbook/{page.name}", "markdown", page.stem, page.read_text(encoding="ascii"))


@pytest.fixture(scope="module")
def everything() -> dict[str, list[Pair]]:
    return {page.stem: pairs(document(page), GenerationTemplate.QA, wordings=8) for page in PAGES}


@pytest.fixture(scope="module")
def pairs_by_page(everything: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Return the pairs of headings, definitions and tables, which the demo trains on first."""
    kinds = ("question", "definition", "term", "section")
    return {name: [pair for pair in page_pairs if pair.rule in kinds] for name, page_pairs in everything.items()}


def test_forty_pages_are_linked_from_the_index() -> None:
    index = (REPOSITORY / "examples" / "handbook" / "index.md").read_text()
    linked = Counter(re.findall(r"\]\(([a-z-]+)\.md\)", index))
    assert len(PAGES) == 40
    assert linked == Counter(page.stem for page in PAGES if page.stem != "index")


def test_every_page_gives_facts_of_one_sentence(pairs_by_page: dict[str, list[Pair]]) -> None:
    assert {name: len(page_pairs) for name, page_pairs in pairs_by_page.items() if len(page_pairs) < 3} == {}
    answers = [pair.answer for page_pairs in pairs_by_page.values() for pair in page_pairs]
    assert [answer for answer in answers if not re.fullmatch(r"[A-Z](?:[^.!?:]|\.(?=\d))+\.", answer)] == []
    assert [answer for answer in answers if not 8 <= len(answer.split()) <= 22] == []


def test_no_question_and_no_answer_occurs_twice(pairs_by_page: dict[str, list[Pair]]) -> None:
    everything = [pair for page_pairs in pairs_by_page.values() for pair in page_pairs]
    assert len({pair.wordings[0] for pair in everything}) == len(everything) >= 120
    assert len({pair.answer for pair in everything}) == len(everything)


def test_an_answer_contains_the_name_that_its_question_asks_for(pairs_by_page: dict[str, list[Pair]]) -> None:
    """Without it a model could not learn which answer belongs to which question."""
    title = {page.stem: page.read_text().splitlines()[0][2:] for page in PAGES}
    lists = {"lamp-row": "Lamp K", "fault-table": "Fault F", "index": "Dewlark"}
    strange = [
        pair.answer
        for name, page_pairs in pairs_by_page.items()
        for pair in page_pairs
        if not any(part in pair.answer for part in (title[name], lists.get(name, title[name])))
    ]
    assert strange == []


def test_the_validator_keeps_every_row(tmp_path: Path) -> None:
    """Hardly any fact is so similar to another one that it passes for a copy: a passage may be asked by two topics."""
    write_rows(tmp_path / "documents" / "rows.arrow", Port.DOCUMENTS, [document(page) for page in PAGES])
    config = AiGeneratorConfig(count=167 * 2, holdout=HoldoutRules(documents=0))
    generated = generate(config, tmp_path / "documents", tmp_path, complete=None, report=lambda *_: None)
    assert generated.outputs[Port.SFT].rows >= 167 * 3
    source = Reference(uri=f"file://{tmp_path / 'sft'}", sha256="", kind=Port.SFT)
    validated = validate(ValidatorConfig(), source, tmp_path / "kept", tokens=count_words, report=lambda *_: None)
    report = json.loads((tmp_path / "kept" / "sft" / "report.json").read_text())
    assert {reason for reason, count in report["dropped"].items() if count} <= {"spare_wording", "near_duplicate"}
    assert report["dropped"].get("near_duplicate", 0) <= 1
    assert validated.outputs[Port.SFT].rows == report["kept"] >= 260
    assert report["heldout"]["unseen_wording"] >= 130
