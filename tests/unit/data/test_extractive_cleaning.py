"""What is taken out of a text before its sentences become answers, and what stays."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainyard.data.extractive.cleaning import (
    join_line_ends,
    only_refers,
    speakers_of,
    spoken,
    tidy_heading,
    tidy_text,
    without_label,
)
from trainyard.data.extractive.pairs import pairs
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Install the pump {#install}", "Install the pump"),
        ("Install the pump { #install }", "Install the pump"),
        ("Install the pump {: #install .wide }", "Install the pump"),
        ("The code `{#install}` stays as it is.", "The code `{#install}` stays as it is."),
        ("A set {a, b} and a map {x: 1} stay.", "A set {a, b} and a map {x: 1} stay."),
        ("The pump is loud.[1] It stops.[2, 3]", "The pump is loud. It stops."),
        ("The pump[^note] is loud", "The pump is loud"),
        (
            "The pump is loud.¹ It has 5 m² of pipe and 10⁶ turns.",
            "The pump is loud. It has 5 m² of pipe and 10⁶ turns.",
        ),
        ("A price* is not fixed†.", "A price is not fixed."),
        ("水泵很响。[1]它会停。※2", "水泵很响。它会停。"),
        ("内ぶたを外します（注1）。", "内ぶたを外します。"),
        ("Item `list[1]` and the year [2024] stay.", "Item `list[1]` and the year [2024] stay."),
        ("exam\u00adple of a soft hyphen", "example of a soft hyphen"),
        ('Use a {{< glossary_tooltip text="Pod" term_id="pod" >}} here.', "Use a Pod here."),
        ("发送**（未加密）响应**。", "发送（未加密）响应。"),
    ],
)
def test_marks_are_removed_and_text_is_not(text: str, clean: str) -> None:
    assert tidy_text(text) == clean


@pytest.mark.parametrize("text", ["Install¶", "Install #", "Install ##", "Install {#install} ¶"])
def test_a_heading_loses_the_link_to_itself(text: str) -> None:
    assert tidy_heading(text) == "Install"


@pytest.mark.parametrize(
    ("text", "is_speech"),
    [
        ("Presenter: Welcome to the course.", True),
        ("Speaker 2 (Anna): And now the pump.", True),
        ("[00:12] Anna: And now the pump.", True),
        ("00:12 And now the pump.", True),
        ("Q: How loud is it?", True),
        ("主持人：欢迎收看。", True),
        ("Anna: I like the pump.", True),
        ("Host: the name of the machine", False),
        ("Note: Close the lid first.", False),
        ("The pump has one rule: never run it dry.", False),
    ],
)
def test_a_transcript_is_recognised_by_role_time_and_repetition(text: str, is_speech: bool) -> None:
    speakers = speakers_of(["Anna: Hello to all of you.", "Ben: Good evening.", "Anna: Let us begin.", "No label."])
    assert speakers == {"Anna"}
    assert spoken(text, speakers) is is_speech


@pytest.mark.parametrize(
    ("text", "refers"),
    [
        ("See also: the pump", True),
        ("See the page on pumps for details.", True),
        ("Siehe auch Kapitel 7", True),
        ("Voir aussi : la pompe", True),
        ("Véase también: la bomba", True),
        ("另请参阅：水泵", True),
        ("関連項目：ポンプ", True),
        ("Seeds are sown in April.", False),
        ("Related parts share one number.", False),
    ],
)
def test_lines_that_only_name_other_pages_are_recognised(text: str, refers: bool) -> None:
    assert only_refers(text) is refers


def test_a_label_before_a_whole_sentence_is_removed() -> None:
    assert without_label("Note: Close the lid first.") == "Close the lid first."
    assert without_label("警告：请先关闭进水阀。") == "请先关闭进水阀。"
    assert without_label("※ご注意ください。") == "ご注意ください。"
    assert without_label("The result: a louder pump.") == "The result: a louder pump."


def test_words_that_a_line_end_cut_are_joined() -> None:
    text = "The submers-\nible pump is well-\nknown.\nA well-known pump.\nThe Meyer-\nSchulz pump.\nIn-\nand outlet."
    assert join_line_ends(text) == (
        "The submersible pump is well-known.\nA well-known pump.\nThe Meyer-Schulz pump.\nIn- and outlet."
    )


TRAPS = (
    *(
        "# Pump {#pump}\n\n",
        "## Noise {: #noise }\n\n",
        "## How loud is it?\n\n",
        "- **valve**: ",
        "- ",
        "\n\n",
        "\n",
        " ",
    ),
    *(
        "The pump is a part that lifts water",
        ".",
        ":",
        "：",
        "。",
        "[^1]",
        "[1]",
        "¹",
        "{#a}",
        "\ufffd",
        "...",
        ";",
        "`x`",
    ),
    *(
        "\n\nPresenter: Welcome to all of you.\n\n",
        "\n\nSee also: the page on pumps and pipes.\n\n",
        "水泵把水从井里抽上来",
        "exam-\nple",
    ),
    *(
        "The following table lists all the parts",
        "| part | meaning |\n|---|---|\n| seal | keeps the water inside the pump |\n",
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@example("- **valve**: ¹水泵把水从井里抽上来", "markdown")
@given(st.lists(st.sampled_from(TRAPS), max_size=30).map("".join), st.sampled_from(["markdown", "text", "rst", "html"]))
def test_no_mixture_of_traps_comes_into_an_answer(text: str, kind: str) -> None:
    for pair in pairs(DocumentRow("d", "p.md", kind, "Pump", text), GenerationTemplate.QA, wordings=2):
        assert not re.search(
            r"\{#|\ufffd|\[\^|\[1\]|¹|[.。]\s*[.。]|;\.|[:：][.。]?$|Presenter:|See also|- ple", pair.answer
        )
        assert pair.answer[-1] in ".!。！)"
        assert "{#" not in "".join(pair.wordings)
