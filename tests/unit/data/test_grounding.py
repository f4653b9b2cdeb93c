from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from validating import make_labelled, qa, run

from trainyard.data.quality.filters import share_found
from trainyard.data.rows import ROWS_FILE, DocumentRow, SftRow, write_rows
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import Port


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    rows = [
        DocumentRow("d1", "a.md", "markdown", "A", "A chain is a list of nodes."),
        DocumentRow("d2", "b.md", "markdown", "B", "Adapters are small."),
        DocumentRow("d3", "c.md", "markdown", "C", ""),
    ]
    write_rows(tmp_path / "documents" / ROWS_FILE, Port.DOCUMENTS, rows)
    return tmp_path / "documents"


def reasons(rows: list[SftRow], tmp_path: Path, documents: Path, least: float) -> list[str]:
    all_rows = [qa("keep?", "a chain", doc_id="d1"), *rows]
    return [entry["reason"] for entry in run(all_rows, tmp_path, documents=documents, grounding=least).quarantine]


def test_an_answer_from_its_document_is_kept(tmp_path: Path, documents: Path) -> None:
    assert reasons([qa("q", "The nodes: a LIST.", doc_id="d1")], tmp_path, documents, 0.75) == []


def test_an_invented_answer_is_dropped(tmp_path: Path, documents: Path) -> None:
    assert reasons([qa("q", "The nodes: a LIST.", doc_id="d1")], tmp_path, documents, 0.76) == ["ungrounded"]
    assert reasons([qa("q", "A chain is a list", doc_id="d2")], tmp_path / "2", documents, 0.1) == ["ungrounded"]
    assert reasons([qa("q", "A chain", doc_id="d3")], tmp_path / "3", documents, 0.1) == ["ungrounded"]


def test_a_row_without_a_known_document_is_dropped(tmp_path: Path, documents: Path) -> None:
    rows = [qa("q", "A chain", doc_id="d9"), qa("r", "A list", doc_id="")]
    assert reasons(rows, tmp_path, documents, 0.1) == ["no_document", "no_document"]


def test_the_quarantine_says_how_much_was_found(tmp_path: Path, documents: Path) -> None:
    rows = [qa("a", "a chain", doc_id="d1"), qa("x", "y", doc_id="d9"), qa("q", "a fish", doc_id="d1")]
    entry = run(rows, tmp_path, documents=documents, grounding=0.9).quarantine[1]
    assert entry["detail"] == "50% of the answer's words are in its document, least 90%"


def test_completions_are_compared_too(tmp_path: Path, documents: Path) -> None:
    rows = [make_labelled("q", "a chain", doc_id="d1"), make_labelled("q", "fish", doc_id="d1")]
    assert run(rows, tmp_path, documents=documents, grounding=0.5).facts["dropped"] == {"ungrounded": 1}


def test_grounding_needs_documents(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="E-DATA-NOT-FOUND: The validator's grounding is set, but no documents"):
        run([qa()], tmp_path, grounding=0.5)


def test_without_grounding_documents_are_not_read(tmp_path: Path) -> None:
    assert run([qa(doc_id="d9")], tmp_path, documents=tmp_path / "missing").facts["kept"] == 1


@pytest.mark.parametrize(
    ("answer", "document", "share"),
    [([], [1], 1.0), ([1], [], 0.0), ([1, 2], [2, 3], 0.5), ([4, 5], [1, 2], 0.0), ([1, 2], [1, 2, 3], 1.0)],
)
def test_share_of_words(answer: list[int], document: list[int], share: float) -> None:
    assert share_found(np.array(answer, np.uint64), np.array(document, np.uint64)) == share
