"""The extractive engine: which sentences become answers, that questions are clear, and that nothing is invented."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.data.extractive.code import commit_parts, parse_python
from trainyard.data.extractive.english import ask_english
from trainyard.data.extractive.facts import Fact
from trainyard.data.extractive.german import ask_german
from trainyard.data.extractive.outline import outline
from trainyard.data.extractive.pairs import Pair, extract, pairs
from trainyard.data.extractive.questions import INSTRUCTIONS, WORDINGS, questions
from trainyard.data.extractive.sentences import sentences, short_answer
from trainyard.data.language import detect_language
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate

DOCS = Path(__file__).parents[3] / "docs"
QA, CODE, INSTRUCTION = GenerationTemplate.QA, GenerationTemplate.CODE, GenerationTemplate.INSTRUCTION


def document(text: str, kind: str = "markdown", *, source: str = "docs/nodes.md", title: str = "Nodes") -> DocumentRow:
    return DocumentRow("d1", source, kind, title, textwrap.dedent(text))


def extract_facts(
    text: str, kind: str = "markdown", template: GenerationTemplate = QA, **fields: str
) -> dict[str, str]:
    """Topic -> answer."""
    return {fact.topic: fact.answer for fact in extract(document(text, kind, **fields), template)}


def rules(
    text: str, kind: str = "markdown", template: GenerationTemplate = QA, **fields: str
) -> list[tuple[str, str, str]]:
    return [(fact.rule, fact.topic, fact.title) for fact in extract(document(text, kind, **fields), template)]


MANUAL = """\
---
layout: page
---
# Nodes

The training chain has six kinds of nodes, and each does one thing.

## The validator

The validator keeps the good rows and counts **every** other one with its
[reason](reasons.md). It runs before training. ![picture](x.png)

- **quarantine**: the file of rejected rows with line numbers
- `max_tokens` — longest row that is kept, in tokens
- Rows: what the validator reads from the node above it
- [The trainer](#trainer)
- it: this line says nothing about anything here
- a line of more than six words here: that is no term
- **bold** start: where the label is not the term

## What does a gate decide?

A gate decides whether an adapter is deployed.

### Notes

Nothing is switched unless every target has answered its canary prompt.

| option | meaning | default |
|---|---|---|
| `role` | what the adapter is for | assistant |
| `canary` | | |

| term | meaning |
|---|---|
| slot | the right to use the training device |

```bash
trainyard check chain.yaml
```

> A quotation is somebody else's text and is not taken as an answer.
"""


def test_markdown_gives_headings_questions_items_and_tables() -> None:
    answer_by_topic = extract_facts(MANUAL)
    assert answer_by_topic == {
        "The validator": (
            "The validator keeps the good rows and counts every other one with its reason. It runs before training."
        ),
        "What does the validator keep?": (
            "The validator keeps the good rows and counts every other one with its reason. It runs before training."
        ),
        "What does a gate decide?": "A gate decides whether an adapter is deployed.",
        "Notes (What does a gate decide?)": "Nothing is switched unless every target has answered its canary prompt.",
        "quarantine": "quarantine: the file of rejected rows with line numbers.",
        "max_tokens": "`max_tokens` — longest row that is kept, in tokens.",
        "Rows": "Rows: what the validator reads from the node above it.",
        "role": "`role`: what the adapter is for.",
        '"`role`" under "default"': "`role`, default: assistant.",
        "slot": "slot: the right to use the training device.",
    }


def test_the_question_names_the_document_and_where_a_term_stands() -> None:
    assert ("section", "The validator", "Nodes") in rules(MANUAL)
    assert ("question", "What does a gate decide?", "Nodes") in rules(MANUAL)
    assert ("term", "quarantine", "Nodes: The validator") in rules(MANUAL)
    assert ("named", "What does the validator keep?", "Nodes: The validator") in rules(MANUAL)


def test_questions_of_headings_come_first_then_terms() -> None:
    assert [fact.worth for fact in extract(document(MANUAL), QA)] == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def test_what_a_page_is_about_is_asked_only_where_there_is_nothing_else() -> None:
    assert rules("# Guide\n\nThis guide exists.\n") == []
    assert "about" not in {rule for rule, _, _ in rules(MANUAL)}
    russian = "# Насос\n\nНасос поднимает воду из цистерны и останавливается сам.\n"
    assert [rule for rule, _, _ in rules(russian, title="Насос")] == ["about"]


def test_a_definition_inside_a_paragraph_is_found() -> None:
    text = """\
    # Ports

    ## Kinds

    Nodes are linked to each other. A reference is the address, digest, kind and size of a finished result. This is not
    a definition of a thing at all. The latter is a thing that nobody could name.
    """
    answer_by_topic = extract_facts(text)
    assert answer_by_topic["What is a reference?"].startswith(
        "A reference is the address, digest, kind and size of a finished result."
    )
    assert set(answer_by_topic) == {"Kinds", "What is a reference?", "nodes"}


def test_a_sentence_that_an_answer_already_holds_is_not_taken_again() -> None:
    text = "# Words\n\n## Chain\n\nA node list is a set of boxes that run in order. It is data only.\n"
    assert rules(text) == [("named", "What is a node list?", "Words: Chain")]


def test_a_heading_that_occurs_twice_is_told_apart_by_the_one_above_it() -> None:
    text = "# Tools\n## Saw\n### Care\nClean the saw after every use.\n"
    text += "## Drill\n### Care\nOil the drill every second month.\n"
    assert extract_facts(text) == {
        "Care (Saw)": "Clean the saw after every use.",
        "Care (Drill)": "Oil the drill every second month.",
        "How often should you oil the drill?": "Oil the drill every second month.",
    }


def test_a_question_with_two_answers_is_left_out() -> None:
    text = "# Tools\n| tool | use |\n|---|---|\n| saw | cuts wood along a line |\n| saw | cuts metal along a line |\n"
    assert extract_facts(text) == {}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Too short here.", None),
        ("It works like this, with these three parts:", None),
        ("!!! ??? ... --- +++ === ***", None),
        ("word " * 61 + "end.", None),
        ("A whole sentence without a full stop", "A whole sentence without a full stop."),
        ("Short one here. Seven words are in this one.", None),
        (
            "One sentence of some words stands here. Another one is not taken.",
            "One sentence of some words stands here.",
        ),
        ("Use e.g. a saw, i.e. a tool. Then stop at once.", "Use e.g. a saw, i.e. a tool."),
        ("An item of a list ends like this one;", "An item of a list ends like this one."),
        ("The button is called `start the pump`", "The button is called `start the pump`."),
        ("The page says so (and it is right.)", "The page says so (and it is right.)"),
        ("It depends on what the sentence before says.", None),
        ("The following table lists all of the codes.", None),
        ("The text was cut off somewhere in the...", None),
        ("The word was cut by a line and stays bro- ken in the answer.", None),
        (
            "Short- and long-term storage are both possible here.",
            "Short- and long-term storage are both possible here.",
        ),
        ("The anchor `{#name}` is never part of an answer.", None),
        ("The character \ufffd was lost when the page was read.", None),
        ("更换滤芯之前请先关闭进水阀。然后打开龙头。", "更换滤芯之前请先关闭进水阀。"),
        ("指示灯用颜色表示滤芯的剩余寿命", "指示灯用颜色表示滤芯的剩余寿命。"),
        ("请按照以下步骤操作：", None),
        (
            "说明书写道：“请先关闭进水阀。然后打开龙头。”这样做最安全。",
            "说明书写道：“请先关闭进水阀。然后打开龙头。”这样做最安全。",
        ),
        ("設定は次のとおりです。", None),
        ("内ぶたは左右のつまみを押すと外れます！", "内ぶたは左右のつまみを押すと外れます！"),
    ],
)
def test_answers_are_short_whole_sentences(text: str, answer: str | None) -> None:
    assert short_answer(text) == answer


def test_abbreviations_and_initials_end_no_sentence() -> None:
    assert sentences("See Fig. 3 and J. Smith. It (e.g. This) ends. `Code` starts.") == [
        "See Fig. 3 and J. Smith.",
        "It (e.g. This) ends.",
        "`Code` starts.",
    ]


def test_restructured_text() -> None:
    text = """\
    =======
    Sockets
    =======

    Sockets connect two programs over :class:`a network <net.Network>`.

    Closing
    =======

    Call :func:`close` when nothing more is to be sent over it.

    * ``backlog``: how many connections wait for an answer
    * **host**: the name or address of the machine

    timeout
        The seconds after which a call gives up.

    .. unknown:: directive
       with content

    .. include:: /etc/passwd

    ::

        code()

    ===== ==========================
    name  meaning
    ===== ==========================
    port  number between 0 and 65535
    ===== ==========================
    """
    assert extract_facts(text, "rst") == {
        "backlog": "`backlog`: how many connections wait for an answer.",
        "host": "host: the name or address of the machine.",
        "timeout": "timeout: The seconds after which a call gives up.",
        "port": "port: number between 0 and 65535.",
        "What do sockets connect?": "Sockets connect two programs over `a network`.",
        "`close`": "Call `close` when nothing more is to be sent over it.",
    }
    assert "root:" not in str(outline("rst", textwrap.dedent(text)))
    assert extract_facts(text, "rst", CODE) == {
        "Call `close` when nothing more is to be sent over it.": "```\ncode()\n```"
    }


def test_restructured_text_without_a_single_title_uses_the_documents_own() -> None:
    text = "One\n===\n\nThe first part has a few words.\n\nTwo\n===\n\nThe second part has a few words.\n"
    assert rules(text, "rst", title="Guide") == [("section", "One", "Guide"), ("section", "Two", "Guide")]
    assert outline("rst", "")[0].paragraphs == []


def test_plain_text_has_headings_paragraphs_and_items() -> None:
    text = """\
    Care of tools

    Tools last long when they are kept dry and clean.

    Storing
    -------

    Store every tool in a dry box
    with a lid that closes.

    - oil: keeps the metal parts from rusting
    - cloth: removes dust and dirt from it
    """
    assert extract_facts(text, "text") == {
        "Where should you store every tool?": "Store every tool in a dry box with a lid that closes.",
        "oil": "oil: keeps the metal parts from rusting.",
        "cloth": "cloth: removes dust and dirt from it.",
    }


def test_other_kinds_with_markdown_headings_are_read_as_markdown() -> None:
    assert extract_facts("# Page\n\n## Part\n\nThe part has a few words.\n", "html") == {
        "Part": "The part has a few words."
    }


PYTHON = '''\
"""Tools for cutting wood along a line."""

class Saw:
    """A tool with a toothed blade.

    Details that nobody asked for.
    """

    def cut(self, length_mm: int) -> str:
        """Cut a board to the given length in millimetres."""
        if length_mm < 0:
            raise ValueError(length_mm)
        return "cut"

    def _hidden(self):
        """Never asked about, because it is private."""

async def sharpen(saw):
    """Sharpen every tooth of the saw."""
    return saw

def undocumented(): ...
'''


def test_python_docstrings_say_what_symbols_do() -> None:
    where = {"kind": "code", "source": "shop/tools.py"}
    assert extract_facts(PYTHON, **where) == {
        "Saw": "A tool with a toothed blade.",
        "sharpen()": "Sharpen every tooth of the saw.",
        "Saw.cut()": "Cut a board to the given length in millimetres.",
        "shop/tools.py": "Tools for cutting wood along a line.",
    }


def test_python_bodies_answer_signature_and_docstring() -> None:
    [(topic, answer)] = extract_facts(PYTHON, "code", CODE, source="tools.py").items()
    assert topic.splitlines()[1] == "def cut(self, length_mm: int) -> str:"
    assert answer == '```python\nif length_mm < 0:\n    raise ValueError(length_mm)\nreturn "cut"\n```'


def test_comments_above_declarations_in_other_languages() -> None:
    text = """\
    /** Opens the box and returns what is inside.
     * @param key the key
     */
    export function openBox(key) {
    }

    // Counts the boxes on a shelf, empty ones too.
    func CountBoxes(shelf Shelf) int {
    }

    # A comment that belongs to nothing that has a name.
    x = 1

    /// Short.
    struct Tiny;
    """
    assert extract_facts(text, "code", source="box.js") == {
        "openBox": "Opens the box and returns what is inside.",
        "CountBoxes": "Counts the boxes on a shelf, empty ones too.",
    }


@pytest.mark.parametrize(
    "text", ["def broken(:", "x = '\0'", "(" * 5000, "-" * 100_000 + "1"], ids=["syntax", "nul", "depth", "length"]
)
def test_text_that_is_not_python_is_no_error(text: str) -> None:
    assert parse_python(text) is None
    assert extract_facts(text, "code", source="x.py") == extract_facts(text, "code", CODE, source="x.py") == {}


COMMIT = """\
Count every rejected row

The report now balances, so nothing is lost.

diff --git a/report.py b/report.py
--- a/report.py
+++ b/report.py
@@ -1 +1 @@
-kept
+kept + dropped
diff --git a/tests/test_report.py b/tests/test_report.py
"""


def test_commits_answer_with_their_message_or_their_diff() -> None:
    where = {"kind": "commit", "source": "repo@1234567", "title": "1234567"}
    answer = "Count every rejected row. The report now balances, so nothing is lost."
    assert extract_facts(COMMIT, **where) == {"report.py, tests/test_report.py": answer}
    [(message, diff)] = extract_facts(COMMIT, template=CODE, **where).items()
    assert message.startswith("Count every rejected row")
    assert diff.startswith("```diff\ndiff --git a/report.py")
    assert commit_parts("Only a message") == ("Only a message", "")
    assert (
        extract_facts("Only a message of some words", **where)
        == extract_facts("Only a message", template=CODE, **where)
        == {}
    )
    assert extract_facts(COMMIT + "+x\n" * 3000, template=CODE, **where) == {}


def test_fenced_code_answers_the_paragraph_before_it() -> None:
    assert extract_facts(MANUAL, template=CODE) == {
        "Nothing is switched unless every target has answered its canary prompt.": (
            "```\ntrainyard check chain.yaml\n```"
        )
    }
    assert extract_facts("# Run\n\n    make demo\n", template=CODE) == {"Run": "```\nmake demo\n```"}


@pytest.mark.parametrize(("language", "rule"), [(name, rule) for name, table in WORDINGS.items() for rule in table])
def test_wordings_differ_and_the_last_is_reserved(language: str, rule: str) -> None:
    forms = WORDINGS[language][rule]
    assert len(forms) == 8
    if rule in ("diff", "body", "snippet", "named", "bare"):
        return
    for count in range(2, 9):
        for turn in range(7):
            questions_asked = questions(rule, "TOPIC", "TITLE", count=count, turn=turn, language=language)
            assert len(set(questions_asked)) == count
            assert questions_asked[-1] == forms[-1].format(topic="TOPIC", title="TITLE")
            assert questions_asked[-1] not in questions_asked[:-1]
    first = questions(rule, "T", "D", count=1, turn=0, language=language)
    assert first == [forms[0].format(topic="T", title="D")]
    assert rule in INSTRUCTIONS[language] or rule == "cell"


@pytest.mark.parametrize(
    ("question", "clause"),
    [
        ("How long does the Otter pump run in a power cut?", "how long the Otter pump runs in a power cut"),
        ("How is an old Otter pump cleaned?", "how an old Otter pump is cleaned"),
        ("How exact is the Otter pump?", "how exact the Otter pump is"),
        ("Does the Otter pump carry sand?", "whether the Otter pump carries sand"),
        ("Which fuse does the Otter pump have?", "which fuse the Otter pump has"),
        ("How do I start the Otter pump?", "how to start the Otter pump"),
        ("When should I replace the Otter pump?", "when I should replace the Otter pump"),
        ("In which month may the Otter pump rest?", "in which month the Otter pump may rest"),
        ("What belongs into the Otter pump?", "what belongs into the Otter pump"),
        ("How long is one turn of the Otter pump?", "how long one turn of the Otter pump is"),
    ],
)
def test_a_question_that_names_its_page_is_asked_directly_and_as_a_clause(question: str, clause: str) -> None:
    questions_asked = questions("question", question, "Otter pump", count=8, turn=0)
    assert questions_asked[:2] == [question, f"Can you tell me {clause}?"]
    assert questions_asked[-1] == f"I am trying to find out {clause}. Can you help?"
    assert len(set(questions_asked)) == 8


@pytest.mark.parametrize("question", ["Can tap water replace the Otter pump?", "Why did the Otter pump stop?"])
def test_a_question_whose_subject_is_uncertain_is_never_turned_round(question: str) -> None:
    assert all(question in wording for wording in questions("question", question, "Otter pump", count=8, turn=0))


def test_a_definition_of_what_the_title_names_is_asked_for_directly() -> None:
    [pair] = pairs(document("# Otter pump\n\nThe Otter pump is the pump that empties the cellar.\n"), QA, wordings=8)
    assert "What is the Otter pump?" in pair.wordings
    assert pair.answer == "The Otter pump is the pump that empties the cellar."


def test_pairs_are_stable_and_their_questions_unique() -> None:
    first, second = (pairs(document(MANUAL), QA, wordings=3) for _ in range(2))
    assert first == second
    assert Counter(len(pair.wordings) for pair in first) == {3: 10}
    assert len({pair.id for pair in first}) == 10
    wordings = [wording for pair in first for wording in pair.wordings]
    assert len(set(wordings)) == len(wordings)
    changed = pairs(document(MANUAL.replace("good rows", "best rows")), QA, wordings=3)
    assert len({pair.id for pair in first} & {pair.id for pair in changed}) == 8


def test_topics_with_braces_are_taken_as_text() -> None:
    [pair] = pairs(document("# API\n## `{id}` of {title}\nThe number of the thing that is meant.\n"), QA, wordings=2)
    assert "{id}" in pair.wordings[0]


def test_instructions_have_one_wording_each() -> None:
    pairs_found = pairs(document(MANUAL), INSTRUCTION, wordings=3)
    assert {len(pair.wordings) for pair in pairs_found} == {1}
    assert 'Write a glossary entry for "slot" as used in "Nodes: Notes (What does a gate decide?)".' in [
        pair.wordings[0] for pair in pairs_found
    ]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400), st.sampled_from(["markdown", "rst", "text", "code", "commit", "html"]))
def test_any_text_gives_answers_that_are_its_own_words(text: str, kind: str) -> None:
    for template in (QA, CODE):
        for pair in pairs(DocumentRow("d", "s.md", kind, "t", text), template, wordings=2):
            assert isinstance(pair, Pair)
            assert pair.answer.strip()


def test_the_projects_own_manual_gives_many_good_pairs() -> None:
    pages = sorted(DOCS.glob("*.md"))
    facts_found: list[Fact] = []
    for page in pages:
        facts_found += extract(document(page.read_text(), source=page.name, title=page.stem), QA)
    lengths = [len(fact.answer.split()) for fact in facts_found]
    assert len(facts_found) >= 10 * len(pages) / 2
    assert sum(4 <= length <= 75 for length in lengths) >= 0.9 * len(lengths)


GOOD = {
    "Refunds are paid within 14 days.": "When are refunds paid?",
    "If the lock is frozen, hold it in your hand.": "What should you do if the lock is frozen?",
    "To cancel a booking, open the app.": "How do you cancel a booking?",
    "Use the blue cable to charge the battery.": "How do you charge the battery?",
    "The team meets every week.": "How often does the team meet?",
    "The deposit costs 40 EUR.": "How much does the deposit cost?",
    "Members must not lend a card to guests.": "Must members lend a card to guests?",
    "Wenn der Akku leer ist, wenden Sie sich an die Station.": "Was ist zu tun, wenn der Akku leer ist?",
    "Der Antrag ist innerhalb von 14 Tagen bei der Behörde einzureichen.": "In welcher Frist ist der Antrag",
    "Bei der Rückgabe muss das Rad abgeschlossen werden.": "Was muss bei der Rückgabe abgeschlossen werden?",
}


@pytest.mark.parametrize(("sentence", "question"), GOOD.items(), ids=list(GOOD))
def test_a_sentence_is_asked_for_in_its_own_words(sentence: str, question: str) -> None:
    ask = ask_german if detect_language(sentence) == "de" else ask_english
    first = next(iter(ask(sentence, frozenset(("refunds", "members", "team")))))
    language = "de" if ask is ask_german else "en"
    [question_text] = questions(first.rule, first.topic, "T", count=1, turn=0, language=language, clause=first.clause)
    assert question_text.startswith(question)


@pytest.mark.parametrize(
    "sentence",
    [
        "It depends on what they want.",
        "This is done using one of three methods.",
        "A counter of HTTP requests made.",
        "Not only the lid but also the box is closed.",
        "Und dann kommt es darauf an.",
    ],
)
def test_a_sentence_that_needs_its_neighbours_has_no_question(sentence: str) -> None:
    assert ask_english(sentence) == []
    assert ask_german(sentence) == []


CORPORA = sorted((Path(__file__).parents[2] / "resources" / "corpora").rglob("*.md"))


@pytest.mark.parametrize("page", CORPORA, ids=[page.stem for page in CORPORA])
def test_prose_and_tables_give_a_pair_for_25_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pairs_found = pairs(document(text, source=page.name, title=page.stem), QA, wordings=3)
    assert len(text.split()) / len(pairs_found) <= 25
    assert not [pair for pair in pairs_found if pair.rule == "about"]
    assert len({pair.wordings[0] for pair in pairs_found}) == len(pairs_found)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_no_sentence_makes_the_questions_fail(sentence: str) -> None:
    for ask in (*ask_english(sentence), *ask_german(sentence)):
        assert ask.topic
