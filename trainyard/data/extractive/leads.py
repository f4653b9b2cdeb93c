"""Questions for the lead-in of a list, which its items answer together."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainyard.data.extractive import clauses, english_words, german, sentences
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.noun_phrases import is_finite
from trainyard.data.extractive.tagging import tag_sentence
from trainyard.data.language import ENGLISH, GERMAN

LEAD_VERBS = word_set("en_lead_verbs")
LEAD_PREDICATE = re.compile(
    r"(?:(?P<place>(?:In|During|For|At|On|As|After|Before) [^,]{3,50}), )?(?P<subject>[^,;:]{3,70}?) (?:"
    r"(?P<verb>will|must|should|can|may|need to|have to)(?: also| then| always)?"
    r"|(?P<be>is|are) (?:to|(?P<to_do>responsible for|able to|expected to|required to|allowed to)))"
)
"""A lead-in such as "The coordinator will:" or "In this phase, our goals are to:"."""


FOLLOWING_SUBJECT = re.compile(
    r"(?:The|All) following (?P<things>[a-z][\w-]*(?: [\w-]+){0,3}?) (?P<predicate>(?:are|is|can|must|should|may|will|have|"
    r"need|apply|were) .+|apply|exist)"
)
FOLLOWING_OBJECT = re.compile(r"the following (?P<things>(?:[\w-]+ ){0,3}[\w-]+)$")
TO_DO = re.compile(
    r"(?:(?:For example|Alternatively|Then|Now|Next|First),? )?(?:"
    r"(?:In order to|To) (?P<front>[a-z][^,:;]{5,90}?)(?:, (?:you (?:can|need to|should|must|may) )?(?:just |simply )?"
    r"(?:do|run|use|add|execute|call|type|enter|create|set|write|make|specify|include|put|insert|follow)\b.*)?"
    r"|(?:Run|Use|Execute|Add|Enter|Call|Type|Issue|Paste|Insert|Include) (?:the |this |these )?(?:following|command|code)"
    r"\b.{0,60}? to (?P<behind>[a-z][^,:;]{5,90}))"
)
"""What the reader wants to do with the code or the steps that follow."""
HEADING_WORDS = 7
"""Of a lead-in without a verb, which is the heading of its list."""
EXAMPLES = re.compile(
    r"(?:(?:\w+ )?examples?\b|note|notes|beispiele?\b|hinweis|e\.g|z\.\s?b|where|such as|that is|for|like|and|or|see|siehe)|"
    r".*\b(?:following|folgende\w*|example|beispiel\w*)\b",
    re.I,
)


def heading_of(lead: str, language: str) -> str:
    """Return a lead-in such as "Supported devices:" without its colon; empty for a sentence or an example."""
    text = lead.rstrip(" :：*")
    tokens = tag_sentence(text, language)
    words = [token for token in tokens if token.text[0].isalnum() or token.text[0] == "`"]
    if not 1 < len(words) <= HEADING_WORDS or EXAMPLES.match(text) or not text[0].isupper() or "`" in text:
        return ""
    verbs = any(is_finite(token, language) or token.tag in ("VVB", "VVI") for token in tokens)
    return "" if verbs or english_words.hangs(text) or re.search(r"[.,;:()\"“„]", text) else text


def goal_of_lead(lead: str, language: str) -> str:
    """Return what the reader does with what a lead-in announces: "unbind the queue from the app"."""
    match = TO_DO.fullmatch(lead.rstrip(" :：")) if language == ENGLISH else None
    goal = (match["front"] or match["behind"] or "") if match else ""
    verb = tag_sentence(f"You should {goal}", ENGLISH)[2:3]
    if not verb or verb[0].tag not in ("VVI", "VDI") or english_words.DANGLING.search(goal) or goal.count("`") % 2:
        return ""
    return "" if len(english_words.content_words(goal)) < 2 else goal


def ask_following(text: str, vocabulary: Collection[str]) -> Ask | None:
    """Return "Which packages does it require?" for a lead-in with "the following packages"."""
    if match := FOLLOWING_SUBJECT.fullmatch(text):
        topic = f"Which {match['things']} {match['predicate']}?"
        return Ask("bare", topic) if not english_words.DANGLING.search(topic) else None
    clause = clauses.parse_clause(english_words.read_front(text, vocabulary).main, vocabulary)
    if clause is None or clause.negative or clause.kind == "command" or english_words.pointing(clause):
        return None
    last = clause.phrases[-1] if clause.phrases else None
    match = FOLLOWING_OBJECT.search(last.text) if last else None
    if last is None or match is None or last.kind not in ("noun", "place"):
        return None
    before = clause.reading.words(clause.phrases[0].start, last.start)
    preposition = last.first if last.kind == "place" else ""
    word = f"{preposition} which".strip()
    question = clauses.join(
        word[0].upper() + word[1:], match["things"], clause.auxiliary, clause.subject, clause.verb, before
    )
    return Ask("bare", f"{question}?") if not english_words.DANGLING.search(question) else None


def ask_lead(lead: str, language: str, vocabulary: Collection[str]) -> Ask | None:
    """Return the question that the lead-in of a list answers with its items."""
    text = sentences.sentences(lead.rstrip(" :："))[-1]
    return german.ask_lead(text) if language == GERMAN else ask_english_lead(text, vocabulary)


def ask_english_lead(text: str, vocabulary: Collection[str]) -> Ask | None:
    match = re.fullmatch(r"(?:In order to|To) (?P<goal>.*?),? you (?:should|can|must|need to|have to|may)", text)
    if match:
        return Ask("purpose", match["goal"])
    text = english_words.without_adverbs(text)
    if ask := ask_following(re.sub(r",? (?:in order|for example)$", "", text), vocabulary):
        return ask
    if goal := goal_of_lead(text, ENGLISH):
        return Ask("purpose", goal)
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
