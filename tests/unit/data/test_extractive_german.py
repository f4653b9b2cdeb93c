"""German sentences are asked for in their own words, with the right order, case and person."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.data.extractive.german import ask_german, ask_lead
from trainyard.data.extractive.german_topics import in_question, topics

WORDS = (
    "Der", "die", "das", "Server", "wird", "und", ",", "wenn", "Sie", "nicht", "in", "der", "Datei", "angelegt",
    "können", "zu", ":", "um", "`x`", "auf", "Klicke", "dass",
)  # fmt: skip
QUESTIONS = {
    "Über den Knopf `Neu` können Sie Ihre Vorlagen anlegen.": "Wie kann ich meine Vorlagen anlegen?",
    "Neue Züge auf der Strecke können über die Schaltfläche `Neu` angelegt werden.":
        "Wie können neue Züge auf der Strecke angelegt werden?",
    "Unter `Extras > Filter` können Regeln angelegt werden.": "Wo können Regeln angelegt werden?",
    "Den Direktlink findest du im Bereich `Info` deines Profils.": "Wo finde ich den Direktlink?",
    "Legen Sie unter Einstellungen eine neue Schule an.": "Wo muss ich eine neue Schule anlegen?",
    "Die Karte basiert auf freien Geodaten.": "Worauf basiert die Karte?",
    "Der Crossposter dient dem Verteilen von Beiträgen.": "Wozu dient der Crossposter?",
    "Der Vorstand ist dafür zuständig, dass die Profile gepflegt werden.": "Wofür ist der Vorstand zuständig?",
    "Achte beim Erstellen darauf, dass die Anmeldung geschlossen ist.": "Worauf muss ich beim Erstellen achten?",
    "Der Server unterstützt drei Datenbanken.": "Was unterstützt der Server?",
    "Ein Sprint bezeichnet einen festen Zeitraum von zwei Wochen.": "Was ist ein Sprint?",
    "Die Daten werden gesperrt, weil der Vertrag endet.": "Warum werden die Daten gesperrt?",
    "Eine Rechnung kann nur gelöscht werden, wenn alle Posten offen sind.": "Wann kann eine Rechnung gelöscht werden?",
    "Mitglieder müssen einen Antrag stellen.": "Wer muss einen Antrag stellen?",
    "Der Abgleich erfolgt täglich um 8 Uhr auf dem Server.": "Wie oft erfolgt der Abgleich",
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "question"), QUESTIONS.items(), ids=list(QUESTIONS.values()))
def test_a_phrase_is_left_out_and_asked_for(sentence: str, question: str) -> None:
    wordings = [ask.topic for ask in ask_german(sentence)]
    assert any(topic.startswith(question) for topic in wordings), wordings


@pytest.mark.parametrize(
    ("sentence", "rule", "topic"),
    [
        ("Ist die Checkbox deaktiv, kann nur ein Eintrag gewählt werden.", "condition_do",
         "wenn die Checkbox deaktiv ist"),
        ("Wenn du unsicher bist, wende dich an den Vorstand.", "condition_do", "wenn ich unsicher bin"),
        ("Tauchen die Dateien auf, ist das Plugin aktiv.", "condition", "wenn die Dateien auftauchen"),
        ("Klicke auf `Speichern`, um deine Änderungen zu übernehmen.", "purpose",
         "um meine Änderungen zu übernehmen"),
    ],
)  # fmt: skip
def test_clauses_keep_their_order_and_phrases_their_case(sentence: str, rule: str, topic: str) -> None:
    assert [(ask.rule, ask.topic) for ask in ask_german(sentence)][:1] == [(rule, topic)]


@pytest.mark.parametrize(
    "sentence",
    [
        "Wichtiger sind Zeit und Geld.",
        "So soll verhindert werden, dass ein Produkt entsteht, das niemand nutzt.",
        "Diese Karte basiert auf freien Geodaten.",
        "Vorlage bearbeiten und neu starten.",
        "Im Folgenden wird der Aufbau beschrieben.",
    ],
)
def test_a_sentence_without_a_certain_question_has_none(sentence: str) -> None:
    assert ask_german(sentence) == []


@pytest.mark.parametrize(
    ("lead", "question"),
    [
        ("Bei der Prüfung sind folgende Punkte wichtig", "Welche Punkte sind bei der Prüfung wichtig?"),
        ("Das Programm besteht aus folgenden Teilen", "Aus welchen Teilen besteht das Programm?"),
        ("Die Funktion wird wie folgt verwendet", "Wie wird die Funktion verwendet?"),
        ("Das Werkzeug bietet", "Was bietet das Werkzeug?"),
    ],
)
def test_a_lead_in_is_asked_for_with_its_list(lead: str, question: str) -> None:
    ask = ask_lead(lead)
    assert ask is not None
    assert ask.topic == question


@pytest.mark.parametrize(
    ("sentence", "topic"),
    [
        ("Der neue Pfad zur Programmdatei muss angepasst werden.", "den neuen Pfad zur Programmdatei"),
        ("Agile Teams arbeiten in Sprints.", "agile Teams"),
        ("Die Zusammenstellung der Daten dauert lange.", "die Zusammenstellung der Daten"),
        ("Ein Merge-Request enthält nie mehr als ein Feature.", "„Merge-Request“"),
        ("Kodifizierter Wissenstransfer wird über ein Wiki erreicht.", "kodifizierten Wissenstransfer"),
    ],
)
def test_a_topic_is_the_subject_in_the_accusative(sentence: str, topic: str) -> None:
    name, _ = next(topics(sentence))
    assert in_question(name, sentence) == topic


@pytest.mark.parametrize(
    "sentence",
    [
        "Diese Entscheidung kann kurzfristig getroffen werden.",
        "Man kann damit eine logische Abgrenzung erreichen.",
        "Ein Server ist ein zentraler Rechner.",
        "Die Person wird danach gelöscht.",
    ],
)
def test_a_noun_in_passing_is_no_topic(sentence: str) -> None:
    assert not {name for name, _ in topics(sentence)} - {"Server"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14))
def test_no_order_of_words_makes_the_questions_fail(words: list[str]) -> None:
    sentence = " ".join(words)
    for ask in ask_german(sentence):
        assert ask.topic
    for name, most in topics(sentence):
        assert in_question(name, sentence)
        assert most > 0
