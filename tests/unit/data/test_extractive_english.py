"""Questions of English manuals: fronts, lead-ins, headings that are tasks, and what a passage is about."""

from __future__ import annotations

import textwrap

import pytest

from trainyard.data.extractive.cleaning import tidy_text
from trainyard.data.extractive.english import ask_english
from trainyard.data.extractive.grammar import as_task
from trainyard.data.extractive.leads import ask_lead, name_of
from trainyard.data.extractive.noun_phrases import noun_phrases
from trainyard.data.extractive.pairs import extract
from trainyard.data.language import ENGLISH
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate

FRONTS = {
    "If your parcel isn't with you within three days, please write to the shop.": (
        "condition_do", "if your parcel isn't with you within three days",
    ),
    "If you are on macOS, please use the other driver instead.": ("condition_do", "if you are on macOS"),
    "Before creating indices in the search engine, be sure to stop the importer.": (
        "condition_do", "before creating indices in the search engine",
    ),
    "If a member wishes to leave their role early, they should notify the board.": (
        "bare", "What should happen if a member wishes to leave their role early?",
    ),
    "If you become a helper, you can take a day of leave.": ("bare", "What can you do if you become a helper?"),
    "When you report a fault, one of the mechanics will call you.": ("condition", "when you report a fault"),
    "To sync all lockers with the office, run the nightly job.": ("purpose", "sync all lockers with the office"),
    "You can see a list of your bookings by clicking the clock symbol.": ("purpose", "see a list of your bookings"),
    "We use paper tags to mark borrowed tools.": ("named", "What do we use paper tags for?"),
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "question"), FRONTS.items(), ids=list(FRONTS))
def test_a_front_is_asked_for_by_what_its_main_clause_says(sentence: str, question: tuple[str, str]) -> None:
    assert question in [(ask.rule, ask.topic) for ask in ask_english(sentence)]


@pytest.mark.parametrize(
    "sentence",
    [
        "If it breaks, write to the shop.",  # what breaks is in another sentence
        "If we cannot repair the pump, we send a new one.",
        "Boats are fast. It is recommended to wear a vest.",
        "To learn more, open the handbook.",
        "You will not use the boats to cause harm.",
    ],
)
def test_a_front_that_needs_other_text_has_no_question(sentence: str) -> None:
    rules = {ask.rule for ask in ask_english(sentence)}
    assert rules.isdisjoint(("condition", "condition_do", "purpose"))


def test_an_it_that_means_nothing_is_not_replaced() -> None:
    assert ask_english("It is strongly recommended to wear a vest.", subject="the boat") == []


LEADS = {
    "Make the following changes in the form:": "Which changes in the form should you make?",
    "In the form, make the following changes:": "Which changes should you make in the form?",
    "Costs may be refunded in the following situations:": "In which situations may costs be refunded?",
    "The following items are free:": "Which items are free?",
    "The request must include the following:": "What must the request include?",
    "There are three kinds of rooms:": "What are the three kinds of rooms?",
    "There are a few options for paying a deposit:": "What are the options for paying a deposit?",
    "Examples of requests include, but are not limited to:": "What are examples of requests?",
}


@pytest.mark.parametrize(("lead", "question"), LEADS.items(), ids=list(LEADS))
def test_a_lead_in_is_asked_for_what_its_list_has(lead: str, question: str | None) -> None:
    ask = ask_lead(lead, ENGLISH, frozenset())
    assert (ask.topic if ask else None) == question


def test_a_lead_in_with_a_condition_is_asked_by_what_its_items_are() -> None:
    lead = "If you lose the key:"
    for instructs, rule in ((True, "condition_do"), (False, "condition")):
        ask = ask_lead(lead, ENGLISH, frozenset(), instructs=instructs)
        assert ask is not None
        assert (ask.rule, ask.topic) == (rule, "if you lose the key")


@pytest.mark.parametrize(
    ("lead", "name"),
    [("Possible causes:", "Possible causes"), ("Example:", ""), ("Open the lid:", ""), ("The pump has parts:", "")],
)
def test_a_lead_in_may_name_its_list(lead: str, name: str) -> None:
    assert name_of(lead) == name


@pytest.mark.parametrize(
    ("heading", "question"),
    [
        ("Create a booking", "How do I create a booking?"),
        ("Installing the pump", "How do I install the pump?"),
        ("Editing your profile", "How do I edit my profile?"),
        ("Test results", None),
        ("Reporting guidelines", None),
        ("Contact", None),
        ("Create and delete: a guide", None),
    ],
)
def test_a_heading_that_is_a_task_is_a_question(heading: str, question: str | None) -> None:
    assert as_task(heading) == question


def facts(text: str) -> dict[str, str]:
    document = DocumentRow("d1", "boats.md", "markdown", "Boats", textwrap.dedent(text))
    return {fact.topic: fact.answer for fact in extract(document, GenerationTemplate.QA)}


def test_a_task_is_answered_by_its_whole_section() -> None:
    text = """\
    # Boats

    ## Return a boat

    The boathouse is open until eight. To hand the boat over:

    1. Tie it to the jetty
    2. Put the oars into the rack

    ## Create a plan

    Every club has a plan for the summer.
    """
    answer_by_topic = facts(text)
    assert answer_by_topic["Create a plan"] == "Every club has a plan for the summer."  # says nothing of how
    assert "How do I create a plan?" not in answer_by_topic
    assert answer_by_topic["How do I return a boat?"] == (
        "The boathouse is open until eight. To hand the boat over: Tie it to the jetty; Put the oars into the rack."
    )


def test_a_word_that_a_site_builder_prints_is_missing() -> None:
    assert tidy_text("Write to us in {% channel help %}.") == "Write to us in \ufffd."
    assert tidy_text("{% include note.md %} Close the lid.") == "Close the lid."
    assert facts("# Boats\n\n## Help\n\nIf you lose an oar, write to us in {% channel help %}.\n") == {}


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("Either the host or the helper can start, and end breakout rooms.", "end breakout rooms"),
        ("For information on boats, visit Example Pages.", "visit Example Pages"),
        ("Meet within the hours of continental U.S. time zones.", "continental U.S"),
        ("The team has a designer, a writer, and a club secretary.", "a club secretary"),
    ],
)
def test_a_part_of_a_phrase_is_no_topic(sentence: str, phrase: str) -> None:
    assert phrase not in [candidate.text for candidate in noun_phrases(sentence, ENGLISH)]


def test_a_run_of_nouns_before_the_verb_is_a_subject() -> None:
    [first, *_] = noun_phrases("Pull request reviews are now also required by default.", ENGLISH)
    assert (first.text, first.part) == ("pull request reviews", "subject")


def steps(text: str) -> dict[str, str]:
    return {topic: answer for topic, answer in facts(text).items() if topic.startswith("step ")}


def test_a_step_has_the_number_that_the_page_shows() -> None:
    restarted = steps("""\
    # Boats

    ## Clean a boat

    1. Take the boat out of the water.

    ```
    brush --soft
    ```

    2. Rinse the hull with clear water.
    """)
    assert restarted == {
        "step 1": "Take the boat out of the water.",
        "step 2": "Rinse the hull with clear water.",
    }
    picture = "1. Take the boat out.\n2. [A picture](hull.png)\n3. Rinse the hull with water.\n"
    assert list(steps(f"# Boats\n\n## Clean a boat\n\n{picture}")) == ["step 1", "step 3"]
    twice = "1. Take the boat out.\n2. Rinse the hull.\n\nIn winter:\n\n1. Take the boat in.\n2. Cover the hull.\n"
    assert steps(f"# Boats\n\n## Clean a boat\n\n{twice}") == {}, "two lists have a first step"


def test_tags_and_attributes_of_cells_are_left_out() -> None:
    yawl = '| [Yawl](y.html){:target="_blank"}{:rel="noopener"} | for races.<br/>Holds two |'
    rows = f"{yawl}\n| Skiff | <li>oars</li><li>sails</li> |\n"
    answers = facts(f"# Boats\n\n## Kinds\n\n| Boat | Use |\n|---|---|\n{rows}").values()
    assert sorted(answers) == ["Skiff, Use: oars; sails.", "Yawl, Use: for races. Holds two."]


@pytest.mark.parametrize("cell", ["here", "N/A", "see the page about hulls", "only for", "Yawl", "GitHub"])
def test_a_cell_that_says_nothing_is_left_out(cell: str) -> None:
    table = f"| Boat | Use |\n|---|---|\n| Yawl | {cell} |\n| Skiff | for races on lakes |\n"
    assert list(facts(f"# Boats\n\n## Kinds\n\n{table}").values()) == ["Skiff, Use: for races on lakes."]


def test_a_page_is_named_by_its_file_where_its_first_heading_is_one_of_several() -> None:
    text = "## Is there a boat?\n\nThe club has twelve boats.\n\n## Opening hours\n\nThe boathouse opens at eight.\n"
    for source, title in (("club/faq.md", "faq"), ("club-rules/index.md", "club rules")):
        document = DocumentRow("d1", source, "markdown", "Is there a boat?", text)
        assert {fact.title for fact in extract(document, GenerationTemplate.QA)} <= {title, f"{title}: Opening hours"}
    late = (
        "The club has twelve boats, " + "and each has two oars and one sail, " * 8 + "as in every year.\n\n# Boats\n\n"
    )
    document = DocumentRow("d1", "club.md", "markdown", "Boats", f"{late}A yawl is a boat with two masts and a crew.\n")
    assert "Boats" not in {fact.title for fact in extract(document, GenerationTemplate.QA)}


def test_a_section_of_two_hundred_words_is_one_answer() -> None:
    text = " ".join(
        f"Boat {number} lies at pier {number} and has a crew of {number} in summer." for number in range(2, 15)
    )
    answers = facts(f"# Boats\n\n## Piers\n\n{text}\n")
    assert answers["Piers"] == text
    assert "Piers" not in facts(f"# Boats\n\n## Piers\n\n{text} {text.replace('summer', 'winter')}\n")


@pytest.mark.parametrize(
    "sentence",
    [
        "Press the button in the boat panel to open the lock.",  # the picture of the button is lost
        "Boats are not needed.",  # the question would only turn it around
        "Yawl is a good example of how to do it with two masts and one crew.",
        "You may also rent the yawl by writing to the harbour office.",
        "`-v BOATS:/data` -- tells the container where to keep the boats.",
        "If you're not sure, we recommend keeping the boats in the harbour.",
        "In case you missed it, read the boat list of the club.",
    ],
)
def test_a_sentence_of_which_no_question_is_sure(sentence: str) -> None:
    kinds = {"named", "bare", "purpose", "condition", "condition_do"}
    document = DocumentRow("d1", "boats.md", "markdown", "Boats", f"# Boats\n\n## Use\n\n{sentence}\n")
    assert kinds.isdisjoint(fact.rule for fact in extract(document, GenerationTemplate.QA))


def test_a_comma_inside_of_a_number_ends_no_condition() -> None:
    (ask,) = ask_english("If the yawl costs $4,000 a season, the club pays half of the rent.")
    assert ask.topic == "if the yawl costs $4,000 a season"
