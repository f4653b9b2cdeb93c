"""Questions for the lead-in of a list, which its items answer together."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainyard.data.extractive import clauses, english_words, german, sentences
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.grammar import word_set
from trainyard.data.language import GERMAN

LEAD_VERBS = word_set("en_lead_verbs")
LEAD_PREDICATE = re.compile(
    r"(?:(?P<place>(?:In|During|For|At|On|As|After|Before) [^,]{3,50}), )?(?P<subject>[^,;:]{3,70}?) (?:"
    r"(?P<verb>will|must|should|can|may|need to|have to)(?: also| then| always)?"
    r"|(?P<be>is|are) (?:to|(?P<to_do>responsible for|able to|expected to|required to|allowed to)))"
)
"""A lead-in such as "The coordinator will:" or "In this phase, our goals are to:"."""


def ask_lead(lead: str, language: str, vocabulary: Collection[str]) -> Ask | None:
    """Return the question that the lead-in of a list answers with its items."""
    text = sentences.sentences(lead.rstrip(" :："))[-1]
    return german.ask_lead(text) if language == GERMAN else ask_english_lead(text, vocabulary)


def ask_english_lead(text: str, vocabulary: Collection[str]) -> Ask | None:
    match = re.fullmatch(r"(?:In order to|To) (?P<goal>.*?),? you (?:should|can|must|need to|have to|may)", text)
    if match:
        return Ask("purpose", match["goal"])
    text = english_words.without_adverbs(text)
    if ask := ask_predicate(text, vocabulary):
        return ask
    clause = clauses.parse_clause(text, vocabulary)
    if clause and not clause.phrases and not clause.negative and clause.lemma in LEAD_VERBS:
        plain = not english_words.pointing(clause) and len(text.split()) > 3
        return english_words.ask_with("What", clause) if plain else None
    condition = text.partition(",")[0]
    if re.fullmatch(r"(?:If|When) .{8,100}", condition) and not english_words.hangs(condition):
        advice = re.match(r" ?(?:please|you|we) |$", text.partition(",")[2]) or clauses.begins_with_command(
            text.partition(", ")[2]
        )
        return Ask("condition_do" if advice else "condition", condition[0].lower() + condition[1:])
    return None


def ask_predicate(text: str, vocabulary: Collection[str]) -> Ask | None:
    """Return the question of a lead-in whose items say what somebody does, or what something is."""
    match = LEAD_PREDICATE.fullmatch(text)
    if match is None or english_words.DANGLING.search(text):
        return None
    location = clauses.decapitalise(match["place"], vocabulary) if match["place"] else ""
    subject = clauses.decapitalise(match["subject"], vocabulary)
    verb, to_do = match["verb"], match["to_do"]
    if match["be"]:
        doing = f"{to_do} do" if to_do and to_do.endswith(" to") else to_do or ""
        question = clauses.join(f"What {match['be']}", subject, doing, location)
        clause = clauses.join("what", subject, match["be"], doing, location)
    elif verb in ("need to", "have to"):
        question = clauses.join("What do", subject, verb, "do", location)
        clause = clauses.join("what", subject, verb, "do", location)
    else:
        question = clauses.join(f"What {verb}", subject, "do", location)
        clause = clauses.join("what", subject, verb, "do", location)
    return Ask("named", f"{question}?", clause)
