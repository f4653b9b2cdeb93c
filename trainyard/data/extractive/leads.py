"""Questions for the lead-in of a list, which its items answer together."""

from __future__ import annotations

import re
from collections.abc import Collection

from trainyard.data.extractive import clauses, english_fronts, english_words, german, sentences
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.grammar import BARE, POINTERS, word_set
from trainyard.data.extractive.phrases import FINITE, read
from trainyard.data.language import ENGLISH, GERMAN

GOAL = re.compile(
    r"(?:In order to|To) (?P<goal>(?!this|that|do (?:so|this|that)\b|learn|get started)[a-z][^,:;]{4,90}?)(?:"
    r",? (?:you|we) (?:should|can|must|need to|have to|may|need|will need(?: to)?)|,? (?:please )?"
    r"(?:do|follow|take|use|complete|perform) (?:the following|these|the|one of the following)(?: \w+)*)?"
)
"""A lead-in that names a purpose: "To register an account", "To stop it, follow these steps"."""
FOLLOWING = re.compile(
    r"\b(?:(?:any|one|all|some|most|each) of )?(?:the|these) (?:following|below) (?P<noun>[A-Za-z][\w '’-]{2,40})$"
    r"|\b(?:(?:any|one|all|some|most|each) of )?the following$"
)
FOLLOWING_FIRST = re.compile(
    r"(?:Any of |All of )?[Tt]he following (?P<noun>[a-z][\w'’-]+(?: [\w'’-]+){0,3}?) "
    r"(?P<verb>(?:are|is|can|may|must|should|will|have|were|need|apply|contain|do)\b[^,;:]{0,90})"
)
THERE = re.compile(
    r"There are (?:currently |generally |usually )?"
    r"(?:(?P<count>(?:two|three|four|five|six|seven|eight|nine|ten|\d+) )|"
    r"(?:different|many|several|various|multiple|an? (?:few|couple of|number of|variety of)|some) )"
    r"(?P<things>[a-z][^,;:()]{6,90}?)(?:, .*)?"
)
EXAMPLES = re.compile(
    r"(?P<things>(?:(?:Some |Common |Typical |Other )?[Ee]xamples of|Some|Common|Typical|Possible|Key|Other) (?!of\b)"
    r"[^,;:]{6,90}?) (?:are|include)"
)
NOT_ONLY = re.compile(r",? but (?:(?:are|is) )?not limited to(?: the following)?$")
IN_FRONT = ("in", "under", "at", "on", "through", "by", "with", "for")
"""Prepositions that a question may begin with: "In which cases"."""
PREPOSITIONS = (
    "in",
    "on",
    "at",
    "to",
    "with",
    "for",
    "from",
    "by",
    "of",
    "under",
    "about",
    "through",
    "into",
    "between",
)
LONGEST_TAIL, LONGEST_NAME = 9, 7
LEAD_VERBS = word_set("en_lead_verbs")
LEAD_PREDICATE = re.compile(
    r"(?:(?P<place>(?:In|During|For|At|On|As|After|Before) [^,]{3,50}), )?(?P<subject>[^,;:]{3,70}?) (?:"
    r"(?P<verb>will|must|should|can|may|need to|have to)(?: also| then| always)?"
    r"|(?P<be>is|are) (?:to|(?P<to_do>responsible for|able to|expected to|required to|allowed to)))"
)
"""A lead-in such as "The coordinator will:" or "In this phase, our goals are to:"."""


def ask_lead(lead: str, language: str, vocabulary: Collection[str], *, instructs: bool = False) -> Ask | None:
    """Return the question that the lead-in of a list answers with its items; `instructs` if they say what to do."""
    text = sentences.sentences(lead.rstrip(" :："))[-1]
    return german.ask_lead(text) if language == GERMAN else ask_english_lead(text, vocabulary, instructs=instructs)


def name_of(lead: str) -> str:
    """Return an English lead-in that only names the items: "Possible causes"; else nothing."""
    text = lead.rstrip(" :")
    reading = read(text)
    if not 1 <= len(text.split()) <= LONGEST_NAME or re.search(r"[.?!,;()\[\]]|\d$", text) or BARE.fullmatch(text):
        return ""
    verbless = not re.search(rf"[{FINITE}CQ]", reading.shape) and reading.shape[-1:] in ("n", "G")
    named = reading.shape[:1] in tuple("dan1") and not english_fronts.instructs(text)
    return (
        text if verbless and named and not english_words.hangs(text) and not POINTERS[ENGLISH].fullmatch(text) else ""
    )


def ask_english_lead(text: str, vocabulary: Collection[str], *, instructs: bool = False) -> Ask | None:
    match = GOAL.fullmatch(text)
    goal = match["goal"] if match else ""
    whole = bool(goal) and read(goal).shape[-1:] not in ("r", "o", "t")
    if whole and not english_words.hangs(goal) and len(english_words.content_words(goal)) > 1:
        return Ask("purpose", goal)
    text = NOT_ONLY.sub("", english_fronts.without_adverbs(text))
    if english_words.DANGLING.search(re.sub(r"\b(?:[Tt]he|these) (?:following|below)\b", "", text)):
        return None
    ask = ask_following(text, vocabulary) or ask_counted(text) or ask_examples(text)
    if ask or english_words.DANGLING.search(text):
        return ask
    return ask_predicate(text, vocabulary) or ask_open(text, vocabulary) or ask_condition(text, vocabulary, instructs)


def ask_open(text: str, vocabulary: Collection[str]) -> Ask | None:
    """Return "What does the box contain?" for "The box contains"."""
    clause = clauses.parse_clause(text, vocabulary)
    if clause is None or clause.phrases or clause.negative or clause.lemma not in LEAD_VERBS:
        return None
    plain = not english_words.pointing(clause) and len(text.split()) > 3
    return english_words.ask_with("What", clause) if plain else None


def ask_condition(text: str, vocabulary: Collection[str], instructs: bool) -> Ask | None:
    """Return what to do, or what happens, under a condition that a list answers."""
    front = english_fronts.read_front(text, vocabulary)
    condition = front.text if front.kind == "condition" else text if "," not in text else ""
    if not re.fullmatch(r"(?:If|When|Before|After|Once) .{8,100}", condition) or english_words.hangs(condition):
        return None
    advice = english_fronts.instructs(front.main) if front.kind else instructs
    advice = advice or bool(re.search(r"\bsteps\b", front.main))
    if condition.startswith(("Before", "After")) and not advice:
        return None
    return Ask("condition_do" if advice else "condition", condition[0].lower() + condition[1:])


def ask_following(text: str, vocabulary: Collection[str]) -> Ask | None:
    """Return "Which changes should you make?" for "Make the following changes"."""
    front = english_fronts.read_front(text, vocabulary)
    main = front.main
    if front.kind in ("condition", "purpose"):
        is_instruction = FOLLOWING.search(main) and english_fronts.instructs(main)
        rule = "condition_do" if front.kind == "condition" else "purpose"
        return (
            Ask(rule, front.text[0].lower() + front.text[1:])
            if is_instruction and not english_words.hangs(front.text)
            else None
        )
    if match := FOLLOWING_FIRST.fullmatch(main):
        verb = match["verb"]
        return Ask("bare", f"Which {match['noun']} {verb}?") if len(verb.split()) > 1 else None
    match = FOLLOWING.search(main)
    if match is None or match.end() != len(main):
        return None
    noun, before = match["noun"], main[: match.start()].strip()
    location = clauses.decapitalise(front.text, vocabulary) if front.kind == "place" else ""
    *rest, last = before.split() or [""]
    preposition = last if last in PREPOSITIONS and rest else ""
    body = " ".join(rest) if preposition else before
    probe = clauses.parse_clause(f"{body} the thing" if not preposition else body, vocabulary)
    if probe is None or probe.negative or (probe.kind != "command" and english_words.pointing(probe)):
        return None
    tail = re.sub(r"(?:^| )the thing$", "", probe.rest) if not preposition else probe.rest
    if len(tail.split()) > LONGEST_TAIL or re.search(r"[,;:]|\bsomething\b", tail):
        return None
    word = f"which {noun}" if noun else "what"
    if preposition in IN_FRONT and noun:
        word, preposition = f"{preposition} {word}", ""
    words = (word, probe.auxiliary, probe.subject, probe.verb, tail, preposition, location)
    question = clauses.join(*words)
    return Ask("bare", f"{question[0].upper()}{question[1:]}?")


def ask_counted(text: str) -> Ask | None:
    """Return "What are the kinds of rooms?" for "There are three kinds of rooms"."""
    match = THERE.fullmatch(text)
    if match is None or len(english_words.content_words(match["things"])) < 2:
        return None
    who = "Who" if match["things"].split()[-1] in english_words.PERSON_NOUNS else "What"
    return Ask("bare", f"{who} are the {match['count'] or ''}{match['things']}?")


def ask_examples(text: str) -> Ask | None:
    """Return "What are examples of requests?" for "Examples of requests include"."""
    match = EXAMPLES.fullmatch(text)
    if match is None:
        return None
    things = match["things"][0].lower() + match["things"][1:]
    return Ask("bare", f"What are {things}?") if len(english_words.content_words(things)) > 1 else None


def ask_predicate(text: str, vocabulary: Collection[str]) -> Ask | None:
    """Return the question of a lead-in whose items are actions of a person, or descriptions of a thing."""
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
