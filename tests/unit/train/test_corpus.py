"""What the starter model reads: complete, repeatable, and never executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.data.extractive.questions import WORDINGS as GENERATED
from trainyard.data.language import ENGLISH
from trainyard.train.starter.corpus import (
    ASKS,
    CLOSINGS,
    OPENINGS,
    PHRASES_PER_PASSAGE,
    WORDINGS,
    PackageSource,
    Passage,
    corpus_sha256,
    corpus_sources,
    phrase_questions,
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


@pytest.fixture
def package(tmp_path: Path) -> PackageSource:
    files = {
        "__init__.py": '"""A package of things."""\n',
        "small.py": MODULE,
        "copy/small.py": MODULE,
        "tests/test_small.py": '"""Tests are not read."""\n',
        "_vendor/other.py": '"""Neither are other packages."""\n',
        "broken.py": "def f(:\n",
    }
    for name, text in files.items():
        path = tmp_path / "things" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return PackageSource("things", "1.0", tmp_path / "things")


def test_docstrings_become_text_and_questions(package: PackageSource) -> None:
    passages = list(read_corpus([package]))
    texts = [passage.text for passage in passages if passage.question is None]
    assert "module things\nA package of things." in texts
    assert any(text.startswith("function things.small.join\nJoin the parts") for text in texts)
    assert not any("Nobody asks" in text or "not read" in text or "Neither" in text for text in texts)
    answers = {passage.text for passage in passages if passage.question and "things.small.Box.open" in passage.question}
    assert "Show what is inside of it." in answers
    questions = [passage.question for passage in passages if passage.text == "Join the parts with a separator."]
    by_name = {wording.format(name="things.small.join") for wording in WORDINGS["function"]} & set(questions)
    assert len(by_name) == 2


def test_sentences_are_asked_for_by_words_of_theirs(package: PackageSource) -> None:
    passages = [passage for passage in read_corpus([package]) if passage.text == "Join the parts with a separator."]
    named = {wording.format(name=name) for wording in WORDINGS["function"]
             for name in ("things.small.join", "things.copy.small.join")}  # fmt: skip
    questions = [passage.question for passage in passages if passage.question and passage.question not in named]
    assert questions
    assert any(word in questions[0] for word in ("Join", "the parts", "with a", "separator"))


def test_phrase_questions_are_repeatable_and_bounded() -> None:
    text = " ".join(f"Sentence number {n} speaks of the thing called thing{n}." for n in range(9)) + "\n\nname  value"
    phrases = list(phrase_questions(text, "things"))
    assert phrases == list(phrase_questions(text, "things"))
    assert 1 <= len(phrases) <= PHRASES_PER_PASSAGE
    assert all(passage.text.startswith("Sentence number") for passage in phrases)


def test_what_is_not_a_sentence_is_not_asked_for() -> None:
    assert list(phrase_questions("a = 1\n\n----\n\nToo short.\n\n" + "word " * 60, "things")) == []


def test_a_repeated_passage_is_read_once(package: PackageSource) -> None:
    passages = list(read_corpus([package]))
    assert len({passage.digest for passage in passages}) == len(passages)


def test_digest_follows_every_passage(package: PackageSource) -> None:
    passages = list(read_corpus([package]))
    before = corpus_sha256(passages)
    assert before == corpus_sha256(list(read_corpus([package])))
    (package.folder / "small.py").write_text('"""Changed text here."""')
    assert corpus_sha256(list(read_corpus([package]))) != before


def test_a_sentence_and_its_questions_are_on_one_side() -> None:
    passages = [
        Passage(f"Sentence {number} is here.", question) for number in range(300) for question in (None, "Why?")
    ]
    sides = {passage.text: set() for passage in passages}
    for passage in passages:
        sides[passage.text].add(passage.held_out)
    assert all(len(side) == 1 for side in sides.values())
    assert 0 < sum(passage.held_out for passage in passages) < 30


def test_no_form_is_a_wording_that_chains_hold_out() -> None:
    """What `unseen wording` measures has to be unseen by the base model, too."""
    forms = [*OPENINGS, *ASKS, *CLOSINGS, *(wording for kind in WORDINGS.values() for wording in kind)]
    reserved = [wordings[-1] for wordings in GENERATED[ENGLISH].values() if wordings[0] != wordings[-1]]
    pieces = [piece.strip(' "`?.') for wording in reserved for piece in wording.replace("}", "{").split("{")]
    long_pieces = [piece for piece in pieces if len(piece.split()) >= 4]  # shorter ones are courtesies
    assert long_pieces
    assert not [(form, piece) for form in forms for piece in long_pieces if piece in form]


def test_a_real_package_gives_enough_to_read() -> None:
    passages = list(read_corpus(corpus_sources(("trl",))))
    assert sum(len(passage.text) for passage in passages if passage.question is None) > 100_000
    assert sum(passage.question is not None for passage in passages) > 500
