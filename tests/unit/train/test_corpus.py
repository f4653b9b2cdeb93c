"""What the starter model reads: complete, repeatable, and never executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.train.starter.corpus import (
    PHRASES_PER_PASSAGE,
    WORDINGS,
    Passage,
    corpus_sources,
    phrase_questions,
    project_docs,
    read_corpus,
)

MODULE = '''"""Small things."""
raise SystemExit("this module must not run")

def join(first, *rest, sep="/"):
    """Join the parts with a separator.

    The details follow here.
    """

def _hidden():
    """Nobody asks about this one."""

class Box:
    """A thing that holds another thing."""

    def open(self):
        """Show what is inside of it."""
'''
TOPICS = 'topics = {"with": "The with statement\\n******\\n\\nThe with statement wraps the execution of a block."}\n'


@pytest.fixture
def library(tmp_path: Path) -> Path:
    files = {
        "small.py": MODULE,
        "pkg/__init__.py": '"""A package of things."""\n',
        "copy_of_small/small.py": "",
        "pydoc_data/topics.py": TOPICS,
        "test/test_small.py": '"""Tests are not read."""\n',
        "site-packages/other.py": '"""Neither are other packages."""\n',
        "broken.py": "def f(:\n",
    }
    for name, text in files.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "lib"


def passages(library: Path, docs: Path | None = None) -> list[Passage]:
    return list(read_corpus(corpus_sources(docs, stdlib=library)))


def test_sources_are_listed_with_digests_in_a_fixed_order(library: Path) -> None:
    names = [source.name for source in corpus_sources(None, stdlib=library)]
    expected = ["broken.py", "copy_of_small/small.py", "pkg/__init__.py", "pydoc_data/topics.py", "small.py"]
    assert names == [f"stdlib/{name}" for name in expected]
    before = {source.name: source.sha256 for source in corpus_sources(None, stdlib=library)}
    (library / "small.py").write_text('"""Changed text here."""')
    after = {source.name: source.sha256 for source in corpus_sources(None, stdlib=library)}
    assert {name for name in before if before[name] != after[name]} == {"stdlib/small.py"}


def test_docstrings_become_text_and_questions(library: Path) -> None:
    found = passages(library)
    texts = [passage.text for passage in found if passage.question is None]
    assert any(text.startswith("function small.join(first, *rest, sep='/')\nJoin the parts") for text in texts)
    assert not any("Nobody asks" in text or "not read" in text or "Neither" in text for text in texts)
    answers = {passage.text for passage in found if passage.question and "small.Box.open" in passage.question}
    assert answers == {"Show what is inside of it."}
    asked = [passage.question for passage in found if passage.text == "Join the parts with a separator."]
    by_name = {wording.format(name="small.join") for wording in WORDINGS["function"]} & set(asked)
    assert len(by_name) == 2


def test_sentences_are_asked_for_by_words_of_theirs(library: Path) -> None:
    found = [passage for passage in passages(library) if passage.text == "Join the parts with a separator."]
    named = {wording.format(name="small.join") for wording in WORDINGS["function"]}
    asked = [passage.question for passage in found if passage.question and passage.question not in named]
    assert len(asked) == 1
    assert any(word in asked[0] for word in ("Join", "the parts", "with a", "separator"))


def test_phrase_questions_are_repeatable_and_bounded() -> None:
    text = " ".join(f"Sentence number {n} speaks of the thing called thing{n}." for n in range(9)) + "\n\nname  value"
    found = list(phrase_questions(text, "things"))
    assert found == list(phrase_questions(text, "things"))
    assert 1 <= len(found) <= PHRASES_PER_PASSAGE
    assert all(passage.text.startswith("Sentence number") for passage in found)


def test_what_is_not_a_sentence_is_not_asked_for() -> None:
    assert list(phrase_questions("a = 1\n\n----\n\nToo short.\n\n" + "word " * 60, "things")) == []


def test_topics_are_read_without_running_them(library: Path) -> None:
    found = passages(library)
    assert Passage("The with statement\n\nThe with statement wraps the execution of a block.") in found
    assert any(passage.text == "The with statement wraps the execution of a block." for passage in found)


def test_pages_are_plain_text_by_section_and_never_questions(library: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text(
        "# Title\n\nFirst words of it.\n\n## What is a chain?\n\nA chain is a list of nodes.\n"
    )
    extra = [passage for passage in passages(library, docs) if passage not in passages(library)]
    assert [passage.text for passage in extra] == [
        "# Title\n\nFirst words of it.",
        "## What is a chain?\n\nA chain is a list of nodes.",
    ]
    assert all(passage.question is None for passage in extra)


def test_a_repeated_passage_is_read_once(library: Path) -> None:
    (library / "copy_of_small" / "small.py").write_text('"""Text one is here."""')
    (library / "pkg" / "small.py").write_text(MODULE)
    texts = [passage.text for passage in passages(library)]
    assert len(texts) == len(set(zip(texts, [p.question for p in passages(library)], strict=True)))


def test_the_real_library_gives_enough_to_read() -> None:
    sources = corpus_sources(project_docs())
    assert len(sources) > 300
    found = list(read_corpus(sources))
    assert sum(len(passage.text) for passage in found if passage.question is None) > 1_500_000
    assert sum(passage.question is not None for passage in found) > 5000
