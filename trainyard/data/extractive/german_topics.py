"""Noun phrases that a German sentence is about, and their form in "Was steht in … über …?".

A topic is the subject of the main clause, what a phrase in front names, or the object. Nouns inside of other phrases,
examples and clauses are only mentioned, so they are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainyard.data.extractive.german import is_negative, plain_sentence
from trainyard.data.extractive.german_clauses import (
    DETERMINERS,
    NOUNS,
    Constituent,
    MainClause,
    accusative,
    core_of,
    parse_clause,
)
from trainyard.data.extractive.german_questions import GENERIC, IDIOM, POINTING
from trainyard.data.extractive.tagging import Token, base_form, load_tagger
from trainyard.data.language import GERMAN

SUBJECT_SENTENCES, OBJECT_SENTENCES = 4, 2
"""Sentences of a page that may have a topic."""
LONGEST_TOPIC, LONGEST_FRONT = 7, 8
LONG_NOUN = 14
"""Letters of a noun that says enough alone."""
LEAST_LETTERS, LEAST_OBJECT_LETTERS = 6, 10
FRONT_PREPOSITIONS = ("bei", "beim", "für", "mit", "im", "in", "unter")
NAME = re.compile(r"[A-ZÄÖÜ][\w.]*[A-ZÄÖÜ\d.][\w.]*|`[^`]+`")
"""A short noun that is a name all the same."""
CLOSED = re.compile(r"^„[^„“]*“$|^\"[^\"]*\"$|^`[^`]*`$")


def topics(sentence: str) -> Iterator[tuple[str, int]]:
    """Yield what a sentence may be about with the sentences of the page that may have it, the surest first."""
    clause = parse_clause(plain_sentence(sentence))
    if clause is None:
        return
    for phrase, most in candidates(clause):
        if name := name_of(phrase, clause, least=LEAST_LETTERS if most > OBJECT_SENTENCES else LEAST_OBJECT_LETTERS):
            yield name, most


def candidates(clause: MainClause) -> Iterator[tuple[Constituent, int]]:
    if clause.kind == "NP" or (clause.kind == "PP" and is_topic_in_front(clause)):
        yield Constituent(clause.kind, clause.front), SUBJECT_SENTENCES
    things = [phrase for phrase in clause.middle if phrase.kind == "NP"]
    if not things:
        return
    if clause.kind != "NP" and clause.pronoun is None:
        if things[0].tokens[0].text in ("der", "die", "das") or things[0].tokens[0].tag not in DETERMINERS:
            yield things[0], SUBJECT_SENTENCES
    elif clause.is_for_reader and not is_negative(clause):
        yield things[-1], OBJECT_SENTENCES
    elif names_things(clause) and things[0].tokens[0].tag in ("ADJ(A)", "NN", "PIAT"):
        yield things[0], OBJECT_SENTENCES


def names_things(clause: MainClause) -> bool:
    """Whether a clause with "wir" or "es gibt" introduces its object."""
    if clause.pronoun is None or is_negative(clause):
        return False
    return clause.pronoun.text.lower() == "wir" or (clause.verb.text == "gibt" and bool(clause.after))


def is_topic_in_front(clause: MainClause) -> bool:
    return clause.front[0].text.lower() in FRONT_PREPOSITIONS and not IDIOM.match(clause.words(clause.front))


def topic_of(phrase: Constituent, clause: MainClause) -> tuple[Token, ...]:
    """Return the words of a phrase that may be a topic: all of a subject in front, else the noun with its genitive."""
    front = clause.kind == "NP" and phrase.tokens == clause.front and len(phrase.tokens) <= LONGEST_FRONT
    return core_of(phrase.tokens, whole=front and not any(token.text == "," for token in phrase.tokens))


def name_of(phrase: Constituent, clause: MainClause, *, least: int) -> str:
    """Return the words of a phrase that name a topic; empty where it names none."""
    core = topic_of(phrase, clause)
    if not core or len(core) > LONGEST_TOPIC or not is_whole(phrase, core):
        return ""
    text = clause.words(core)
    head = next(token for token in core if token.tag in NOUNS)
    lemma = base_form(head.text, "NN", GERMAN) if head.text.isalpha() else head.text
    quoted = CLOSED.match(text)
    genitive = core[0].tag == "ADJ(A)" and core[0].text.endswith("er") and phrase.tokens[0] is core[0]
    unfit = (
        POINTING.search(re.sub(r"`[^`]*`", "x", text)) or head.text in GENERIC or lemma in GENERIC,
        core[-1].tag in ("KON", "ADV") or core[-1].text in ("bzw", "etc"),
        re.search(r"(?:weise|falls|seits)$", head.text),
        re.search(r"[„“\"]", text) and not quoted,
        genitive and clause.verb.text.endswith("en"),
        len(core) == 1 and is_abstract(head.text),
        is_inflected(phrase, core),
    )
    if any(unfit):
        return ""
    if len(core) == 1 and not NAME.fullmatch(head.text) and (len(head.text) < least or is_definite(phrase, head.text)):
        return ""
    return text.strip('"„“') if quoted and "`" not in text else text


def is_whole(phrase: Constituent, core: Sequence[Token]) -> bool:
    """Whether a topic is neither one of several nor a part of what the text above names."""
    before = phrase.tokens[: phrase.tokens.index(core[0])]
    following = phrase.tokens[phrase.tokens.index(core[-1]) + 1 :]
    if following and following[0].tag in ("KON", "$,", "TRUNC", "PDAT", "PPOSAT"):
        return False
    if len(core) == 1 and any(token.tag == "PPOSAT" for token in before):
        return len(core[0].text) >= LEAST_OBJECT_LETTERS
    return not any(token.tag == "PDAT" or re.match(r"[Kk]ein|[Ss]olche", token.text) for token in before)


def is_definite(phrase: Constituent, noun: str) -> bool:
    """Whether a plain noun means a thing that the text above names: "die Dateien", but not "das Listenelement"."""
    generic = phrase.kind == "NP" and phrase.tokens[0].text.lower() not in ("der", "die", "das", "den")
    return not generic and not is_compound(noun)


def is_compound(noun: str) -> bool:
    parts = load_tagger(GERMAN).analyze(noun, taglevel=3, pos="NN")[1]
    return "-" in noun or len(noun) >= LONG_NOUN or sum(tag.startswith("NN") for _, tag in parts) > 1


def is_inflected(phrase: Constituent, core: Sequence[Token]) -> bool:
    """Whether a topic is a dative, which differs from its base form."""
    before = phrase.tokens[: phrase.tokens.index(core[0])]
    head = next(token for token in core if token.tag in NOUNS)
    if core[0].tag == "ADJ(A)" and not before and re.search(r"e[nm]$", core[0].text):
        return True
    if phrase.kind != "PP" or head.tag != "NN":
        return False
    if any(token.tag == "ADJ(A)" for token in core):
        return True
    lemma = base_form(head.text, "NN", GERMAN)
    same = head.text == lemma or lemma.endswith("e") or re.search(r"(?:ung|heit|keit|ion|schaft|tät|ik)$", lemma)
    return not same and not (before and before[-1].text in ("die", "das"))


def is_abstract(noun: str) -> bool:
    """Whether a noun is made of a verb or an adjective and names no thing of a page."""
    if not re.search(r"(?:ung|heit|keit|ion|enz|anz|ität)(?:en)?$", noun):
        return False
    return not is_compound(noun)


def in_question(name: str, sentence: str) -> str:
    """Return a topic in the accusative with its article, or in quotation marks where that is not certain."""
    if re.fullmatch(r"`[^`]+`", name):
        return name
    quoted = f"„{name}“" if "„" not in name else name
    clause = parse_clause(plain_sentence(sentence))
    for phrase, nominative in phrases_with_case(clause) if clause else ():
        core = topic_of(phrase, clause) if clause else ()
        if not core or clause is None or clause.words(core).strip('"„“') != name:
            continue
        if clause.words(core) != name:
            return quoted
        before = phrase.tokens[: phrase.tokens.index(core[0])]
        return accusative(before, core, clause, nominative=nominative) or quoted
    return quoted


def phrases_with_case(clause: MainClause) -> Iterator[tuple[Constituent, bool]]:
    """Yield the noun phrases in the nominative (True) or the accusative (False)."""
    subject_in_front = clause.kind == "NP" and clause.pronoun is None
    if clause.kind == "NP":
        yield Constituent("NP", clause.front), subject_in_front
    things = [phrase for phrase in clause.middle if phrase.kind == "NP"]
    copula = clause.verb.text in ("ist", "sind", "war", "waren", "heißt", "heißen", "bleibt", "wird", "werden")
    for index, phrase in enumerate(things):
        is_first = index == 0 and not subject_in_front and clause.pronoun is None
        yield phrase, is_first or (copula and not clause.end)
