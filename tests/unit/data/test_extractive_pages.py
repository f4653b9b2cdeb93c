"""Pairs of ten pages in five languages, judged by rules that know nothing of the engine's own.

The pages are full of what help pages contain besides sentences: anchors, transcripts, references, footnotes, menus,
lead-ins before lists, tables without a head, words cut by a line end.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from trainyard.data.extractive.pairs import Pair, pairs
from trainyard.data.language import detect_language
from trainyard.data.readers.documents import read_document
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate

PAGES = sorted((Path(__file__).parents[2] / "resources" / "pages").iterdir())
FUNCTION_WORDS = {
    "en": "what does about is in the of how which explain define tell give describe introduce please answer from a to",
    "de": "was wie ist in mit über der die das den ein eine ich zu bitte worum nach erkläre nenne stelle sagt wovon",
    "fr": "que quel quelle comment de la le est dans une en dit sur un qu décris définis résume présente je d après",
}
ANCHOR = re.compile(r"\{[:#]|[#.][\w-]+\}")
FOOTNOTE = re.compile(r"\[\^|\[\d+\]|[¹²³†‡※]|\[?注\d")
SPEAKER = re.compile(r"^(?:Presenter|Moderatorin|Sprecher|Animatrice|主持人|主讲人|司会者)\b ?[:：]")
REFERENCE = re.compile("see also|siehe auch|voir aussi|另请参阅|参见|関連項目", re.I)
LINE_BREAK = re.compile(r"[a-zäöüß]- (?!und |oder |and )[a-zäöüß]")
SHORT_FORMS = re.compile(r"z\. B\.|\d[.,]\d")
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")
NEVER = (
    *(
        "Welcome to the second part",
        "Herzlich willkommen",
        "Sehen wir uns",
        "Bonjour et bienvenue",
        "欢迎收看",
        "我们继续",
    ),
    *(
        "本日は新しい",
        "upper shelf",
        "wide guide",
        "autre modèle",
        "金属の棚",
        "企业版",
        "which ribbon suits",
        "relier un",
    ),
    *("Proceed as follows", "wie folgt", "次のとおり", "具体如下", "契約のページ", "Contents", "Sommaire", "目次"),
)
"""Texts that stand on the pages and belong into no pair."""


def read(page: Path) -> DocumentRow:
    return read_document(page.read_bytes(), page.name)


@pytest.fixture(scope="module")
def pairs_by_page() -> dict[str, list[Pair]]:
    return {page.name: pairs(read(page), GenerationTemplate.QA, wordings=8) for page in PAGES}


def normalise_page(page: Path) -> str:
    """The words of a page in one line: no marks of emphasis, headings and links, and a colon between two cells."""
    text = re.sub(r"(?<=[a-zäöüß])-\n(?=[a-zäöüß])", "", read(page).text) if page.suffix == ".txt" else read(page).text
    text = re.sub(r"\s*\{[:#][^}]*\}", "", text)
    text = re.sub(r"\[\^?(?:注)?\d+\]|[¹²³†‡]|※\d", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*\*|^\s*(?:#+|-|\d\.)\s+", "", text, flags=re.M)
    text = re.sub(r"\s*\|\s*", "|", text)
    return re.sub(r"\s+", " ", text)


def is_on(answer: str, text: str) -> bool:
    """Whether an answer is a part of the page; a full stop that ends it may be added."""
    words = answer.rstrip(".。")
    return words in text or re.sub(r" ?[:：] ?", "|", words, count=1) in text


def is_cell_on(answer: str, text: str) -> bool:
    """Whether the row, the column and the value of "row, column: value" are on the page."""
    return all(part in text for part in re.split(r", |: ", answer.rstrip(".")))


def is_asked_in(language: str, question: str) -> bool:
    """Whether a question is in the language, by script or by function words."""
    if language in ("ja", "zh"):
        asks = re.search(
            "か？|ですか|ください|質問|ません" if language == "ja" else "[？请]|问题|疑问|解答|什么|怎", question
        )
        return bool(asks) and bool(re.search("[\u3041-\u3096]", question)) == (language == "ja")
    words = re.findall(r"[^\W\d_]+", re.sub(r"\"[^\"]*\"|„[^“]*“|«[^»]*»", " ", question).lower())
    scores = {name: sum(word in listed.split() for word in words) for name, listed in FUNCTION_WORDS.items()}
    return scores[language] == max(scores.values()) > 0


SENTENCES = {
    "question": (1, 2, 3),
    "section": (1, 2, 3, 4, 5, 6),
    "statement": (1, 2, 3, 4, 5, 6),
    "named": (1, 2),
    "bare": (1, 2),
}
"""Sentences of an answer that may be a whole short section, a passage, or a sentence with one that points back."""


def faults(language: str, pair: Pair, text: str) -> list[str]:
    """The rules that a pair breaks."""
    answer, wordings = pair.answer, pair.wordings
    judged = {
        "not on the page": not (is_cell_on(answer, text) if pair.rule == "cell" else is_on(answer, text)),
        "not in its language": not all(is_asked_in(language, wording) for wording in wordings),
        "not one sentence": len(SENTENCE_END.findall(SHORT_FORMS.sub("", answer)))
        not in SENTENCES.get(pair.rule, (1,)),
        "no full stop": answer[-1] not in ".!?。！？",
        "two full stops": bool(re.search(r"[.。]\s*[.。]", answer)),
        "an anchor": bool(ANCHOR.search(answer) or any(map(ANCHOR.search, wordings))),
        "a footnote mark": bool(FOOTNOTE.search(answer)),
        "a speaker": bool(SPEAKER.search(answer)),
        "a reference": bool(REFERENCE.search(answer)),
        "a line break": bool(LINE_BREAK.search(answer)),
        "only a lead-in": answer.rstrip(".。").endswith((":", "：")),
        "something else": any(phrase in f"{wordings[0]} {answer}" for phrase in NEVER),
    }
    return [name for name, broken in judged.items() if broken]


def test_pairs_of_ten_pages_in_five_languages_pass_the_rules(pairs_by_page: dict[str, list[Pair]]) -> None:
    judged = [
        (page.name, faults(page.name[:2], pair, normalise_page(page)), pair)
        for page in PAGES
        for pair in pairs_by_page[page.name]
    ]
    passed = [entry for entry in judged if not entry[1]]
    assert len(PAGES) == 10
    assert len(judged) >= 80
    assert len(passed) >= 0.95 * len(judged), [entry for entry in judged if entry[1]]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_page_gives_pairs_and_its_language_is_known(page: Path, pairs_by_page: dict[str, list[Pair]]) -> None:
    assert len(pairs_by_page[page.name]) >= 6
    assert detect_language(read(page).text) == page.name[:2]
    wordings = Counter(wording for pair in pairs_by_page[page.name] for wording in pair.wordings)
    assert max(wordings.values()) == 1


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("La batería dura ocho horas y se carga en una hora con el cargador.", "es"),
        ("De pomp haalt het water uit de put en stopt als er niets meer is.", ""),
        ("La pompa è un apparecchio che solleva l'acqua e non si ferma.", ""),
        ("Насос поднимает воду из цистерны и останавливается сам.", ""),
        ("펌프는 물탱크에서 물을 끌어올리고 물이 없으면 멈춥니다.", ""),
        ("Saw Drill Hammer", "en"),
        ("`the of and` Wärmepumpe Gerät", ""),
        ("Docker 镜像使用 Kubernetes Pod 运行容器，kubectl 命令用于管理集群。", "zh"),
        ("", "en"),
    ],
)
def test_the_language_is_detected_by_script_and_stop_words(text: str, language: str) -> None:
    assert detect_language(re.sub("`[^`]*`", "", text)) == language


def test_another_language_gets_questions_without_words() -> None:
    text = "# Насос\n\n## Фильтр\n\nФильтр нужно промывать один раз в месяц под холодной водой.\n"
    [pair] = pairs(DocumentRow("d", "n.md", "markdown", "Насос", text), GenerationTemplate.QA, wordings=8)
    assert pair.answer == "Фильтр нужно промывать один раз в месяц под холодной водой."
    assert len(set(pair.wordings)) == 8
    assert {re.sub(r"[\W_]+", " ", wording).strip() for wording in pair.wordings} == {"Насос Фильтр", "Фильтр Насос"}


def test_spanish_pages_are_asked_about_in_spanish() -> None:
    text = "# Cafetera\n\n## Cómo limpiar la cafetera\n\nLlene el depósito con agua y vinagre una vez al mes.\n"
    text += "\n## Filtros\n\nEl filtro es una pieza que retiene la cal del agua y dura tres meses.\n"
    [first, second] = pairs(DocumentRow("d", "c.md", "markdown", "Cafetera", text), GenerationTemplate.QA, wordings=2)
    assert "¿Cómo limpiar la cafetera?" in first.wordings[0]
    assert second.wordings[-1] == "Necesito ayuda con «Filtros». ¿Qué dice «Cafetera»?"


def test_tags_of_a_site_builder_are_no_title() -> None:
    text = (
        "# <%= current_page.data.title %>\n\n## Overview\n\n"
        "The runbook restores the primary database from last night's snapshot.\n"
    )
    document = DocumentRow("d", "restore-database.md", "markdown", "<%= current_page.data.title %>", text)
    wordings = [wording for pair in pairs(document, GenerationTemplate.QA, wordings=8) for wording in pair.wordings]
    assert wordings, "the questions name the page by its file"
    assert not [question for question in wordings if "<%" in question]
