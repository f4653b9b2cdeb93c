"""Questions for the phrases behind the verb of an English clause, and for its subject."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.data.extractive.clauses import Clause, join
from trainyard.data.extractive.english_words import (
    FRAMES,
    HANGING,
    INTENDING_VERBS,
    LONGEST_TAIL,
    NUMBER,
    PERSON_NOUNS,
    PLACE_NOUNS,
    PLACED_VERBS,
    POINTING_ADJECTIVES,
    STATING_VERBS,
    TO_DO_VERBS,
    UNITS,
    VAGUE_HEADS,
    WEAK_VERBS,
    Ask,
    ask_with,
    content_words,
    hangs,
    personal,
)
from trainyard.data.extractive.noun_phrases import may_be_verb
from trainyard.data.extractive.phrases import Phrase

FREQUENCY = re.compile(
    rf"(?:^|,? )(?:(?:once|twice|{NUMBER} times) (?:a|an|per|every|each) \w+|every "
    rf"(?:{NUMBER} |second |third |other )?{UNITS}|(?:daily|weekly|monthly|quarterly|annually|yearly))$"
)
DURATION = re.compile(rf"(?: |^)for (?:up to |at least |at most |about |the first )?{NUMBER} {UNITS}$")
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
POINT = re.compile(
    rf"(?: |^)(?:within (?:the (?:first|next|last) )?{NUMBER}? ?{UNITS}\b.*"
    r"|on (?:the|your) (?:first|last) (?:working )?day\b.*"
    rf"|(?:after|before|in|by|until|since) (?:\d{{4}}|{NUMBER} {UNITS}\b.*)"
    rf"|(?:on|by|until|before|after) (?:{DAYS}|{MONTHS})\b.*"
    rf"|(?:at|by|before|after|until) \d{{1,2}}(?::\d\d)? ?(?:am|pm|o'clock)?\b.*"
    r"|(?:at|by|before|after) the (?:end|start|beginning) of (?:(?:the|each|every|a|your) )?(?:\w+ )?"
    r"(?:day|week|month|year|quarter|sprint|cycle|meeting|shift|call|event|session|period|term|season)s?\b.*)$"
)
TIMES = ((FREQUENCY, "How often"), (DURATION, "How long"), (POINT, "When"))
VAGUE_SUBJECT = re.compile(
    r"^(?:even|some|many|most|several|other|another|both|few|either|neither|any|no|all|every|each|such|more|one|two|"
    r"three) |\b(?:and|or|this|that|these|those|it|they|you|we|I|their|its|your|our|same|other|here|itself|he|she)\b"
    r"|[,;:(\"“„]",
    re.I,
)
UNSPECIFIC = re.compile(
    r"(?:(?:all|some|most|many|each|one) of|each|one(?= [a-z])|"
    r"there|some|several|many|most|few|other|another|any|both|either|neither|no|"
    r"more|such|certain|various)\b",
    re.I,
)
"""Beginnings of an unclear subject."""
VAGUE_VERBS = (
    "use",
    "want",
    "mean",
    "like",
    "love",
    "need",
    "distribute",
    "involve",
    "see",
    "face",
    "say",
    "give",
    "signal",
    "play",
)
"""Verbs that are too vague for a question about their object: "What does the club use?"."""
CODE_NOUNS = tuple(
    "commands files flags options values requests queries types calls plugins scripts tests jobs packages tags fields "  # noqa: SIM905
    "uses models tables keys hooks helpers methods functions modules".split()
)
"""Nouns behind a code span that may be taken for its verb."""
SOMEBODY = re.compile(
    r"(?:someone|somebody|anyone|people|your (?:company|team)|the (?:company|author)|you or .*|[a-z]+ of action)$|"
    r"(?!(?:the|this|a|an)\b)[A-Za-z]+ing\b",
    re.I,
)
"""Subjects without a question: persons without a name, and activities."""
ANYBODY = ("user", "users", "people", "person", "everyone", "anyone", "visitor", "visitors", "member", "members")
"""Subjects that no question asks for."""
ANY_POINTING = re.compile(r"\b(?:appropriate|respective|necessary|relevant|corresponding|remaining)\b")
LONGEST_SUBJECT, LONGEST_OBJECT = 7, 7
LEAST_PREDICATE = 3
"""Words that say something, behind the verb of a question for the subject."""
LONGEST_PREDICATE = 16
SUMMARY = re.compile(
    r"\b(?:good|great|useful|helpful|excellent|nice|detailed|more) (?:\w+ )?"
    r"(?:summary|overview|guides?|articles?|tutorials?|introduction|information|explanations?|tools?)\b"
)
"""An object that only refers to another text."""
NO_DEFINITION = re.compile(
    r"\b(?:example|product|result|part|place|way|thing|reason|start|choice|option|idea|matter|step|requirement|goal)s?\b"
)
"""Nouns behind "is" that judge a thing and do not say what it is."""
LEAST_DEFINITION, LEAST_COMMON = 10, 11
"""Words of a sentence that says what something is; more where that is one common word."""
LONGEST_STATE = 10
"""Words of "is not …" that become a question."""
UNCERTAIN = re.compile(
    r"\b(?:until|unless|because|but|only|just|always|necessarily|yet|about|as|the same)\b|^(?:to|that|a|so|too|very) "
)
"""What makes the answer to a question with "is" more than yes or no."""
UNCERTAIN_STATE = re.compile(r"\b(?:only|just|always|necessarily|yet|longer|much|many|either|both)\b")
PLACE_PREPOSITIONS = ("in", "on", "at", "under", "inside", "within", "into", "onto")
KEEPING_VERBS = ("store", "keep", "save", "put", "place", "hang", "record", "install")
NEEDED_PREPOSITIONS = ("to", "with", "from", "as", "on", "by", "for", "of", "against", "into", "under")
"""Prepositions behind a participle that belong to it."""
NO_PURPOSE = (
    "schedule",
    "say",
    "know",
    "think",
    "believe",
    "suppose",
    "need",
    "find",
    "see",
    "go",
    "report",
    "estimate",
)
CONDITIONS = ("when", "if", "after", "before", "once", "while")
MEANS = ("using", "via", "through")
QUESTION_WORDS = ("that", "how", "when", "where", "whether", "which", "what")


def ask_predicate(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the questions of a clause; `where` is the phrase in front of it."""
    if clause.negative:
        yield from ask_negative(clause, where)
        return
    if is_unclear(clause):
        return
    verb = clause.reading.lower(clause.phrases[0].start - 1) if clause.phrases else ""
    if (verb in CODE_NOUNS and clause.subject.endswith("`")) or SOMEBODY.match(clause.subject):
        return
    if not clause.phrases or (clause.subject.lower() == "you" and clause.auxiliary in ("will", "shall")):
        return
    yield from ask_reason(clause)
    times = list(ask_time(clause, where))
    yield from times
    if clause.kind == "be":
        yield from ask_state(clause, where)
    elif clause.kind == "passive" and not times:
        yield from ask_passive(clause, where)
    elif not times:
        yield from ask_verb(clause, where)
    if not personal(clause) and is_specific(clause):
        yield from ask_subject(clause, where)


def is_unclear(clause: Clause) -> bool:
    """Whether a sentence is an addition to the one before, a reference, or read wrongly."""
    before = clause.reading.words(0, clause.phrases[0].start) if clause.phrases else ""
    misread = clause.subject.endswith("`") and clause.auxiliary == "do"
    return misread or bool(re.search(r"\balso\b", before) or SUMMARY.search(clause.rest))


def ask_reason(clause: Clause) -> Iterator[Ask]:
    """Yield "Why …?" for a sentence with "because", and "How …?" for one with "by doing" or "using"."""
    if clause.kind == "command":
        return
    for phrase in clause.phrases:
        if phrase.kind == "when" and phrase.first == "because" and len(phrase.text.split()) > 3:
            if phrase.start > clause.phrases[0].start:
                yield ask_with("Why", clause, clause.reading.words(clause.phrases[0].start, phrase.start))
            elif clause.kind == "passive":
                yield ask_with("Why", clause)
            return


def ask_negative(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question of a sentence that denies: "Does restic support it?"."""
    by_reader = clause.kind == "passive" and re.search(r"\bby (?:you|us|me)\b", clause.rest)
    promises = clause.auxiliary in ("will", "shall") and personal(clause)
    unsure = clause.auxiliary in ("might", "would", "could", "had") or " you " in f" {where} "
    unsure = unsure or (personal(clause) and clause.auxiliary != "can") or "due to" in clause.rest
    if unsure or by_reader or promises or not clause.phrases:
        return
    group = clause.reading.shape[: clause.phrases[0].start]
    if re.search("XA|AX|A$", group) or UNSPECIFIC.match(clause.subject):
        return  # "not automatically" denies less than "not"
    kinds = {phrase.kind for phrase in clause.phrases}
    state = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    if {"when", "that"} & kinds or clause.kind == "command" or len(state.split()) > LONGEST_STATE or " and " in state:
        return
    if clause.kind == "be" and (UNCERTAIN.search(state) or VAGUE_SUBJECT.search(clause.subject)):
        return
    if HANGING.match(state) or re.search(r"\b(?:only|just|always|necessarily|yet|longer|much|many)\b", state):
        return
    if not content_words(clause.subject) and len(content_words(state)) < 2:
        return
    yield Ask("bare", f"{join(clause.auxiliary.capitalize(), clause.subject, clause.verb, state, where)}?")


def ask_time(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for how often, how long or when something happens: what a phrase of its own says."""
    if clause.auxiliary == "did":
        return
    start = clause.reading.tokens[clause.phrases[0].start].start
    short = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    begins = {clause.reading.tokens[phrase.start].start - start: phrase.kind for phrase in clause.phrases}
    for pattern, word in TIMES:
        match = pattern.search(short)
        offset = match.start() + len(match[0]) - len(match[0].lstrip(" ,")) if match else -1
        if match is None or offset not in begins:
            continue
        before = short[: match.start()].strip()
        if word == "How often" and re.search(r"\d|\b(?:from|plus)\b", before):
            continue  # an amount for each year, not an event
        kinds = {kind for begin, kind in begins.items() if begin < offset}
        if (clause.kind == "be" and not before) or kinds - {"noun", "place", "adjective"} or hangs(before):
            continue
        yield ask_with(word, clause, before, where)
        return


def is_specific(clause: Clause) -> bool:
    """Whether a subject says alone what a question is about."""
    words = content_words(clause.subject)
    if len(words) == 1 and re.match(r"all |every |each ", clause.subject, re.I):
        return False
    if not words or UNSPECIFIC.match(clause.subject) or len(clause.subject.split()) > LONGEST_SUBJECT:
        return False
    vague = {words[-1].removesuffix("s"), clause.head.removesuffix("s")} & VAGUE_HEADS
    return not (vague and (len(words) == 1 or words[0] in POINTING_ADJECTIVES))


def question_word(phrase: Phrase, clause: Clause) -> str:
    """Return "What" where a noun phrase is a thing; empty for a person, whom few questions ask for, and a pronoun."""
    head = clause.reading.head(phrase.start + (phrase.kind == "place"), phrase.end)
    if head is None or head.tag in ("PNP", "CRD") or re.search(r"\d+ ?%|\bpercent\b", phrase.text):
        return ""
    return "" if head.tag == "PNI" or head.text.lower() in PERSON_NOUNS else "What"


def is_place(phrase: Phrase | None, clause: Clause) -> bool:
    """Whether a phrase with a preposition names a place: a file, a page, a folder."""
    if phrase is None or phrase.kind != "place" or phrase.first not in PLACE_PREPOSITIONS or hangs(inner(phrase)):
        return False
    head = clause.reading.head(phrase.start + 1, phrase.end)
    return head is not None and (
        head.text.lower() in PLACE_NOUNS or (head.text[0] == "`" and bool(re.search(r"[/.]", head.text)))
    )


def is_name(phrase: Phrase, clause: Clause) -> bool:
    """Whether a phrase with a preposition has a name: "in Slack"."""
    head = clause.reading.head(phrase.start + 1, phrase.end)
    return head is not None and head.tag == "NP0"


def is_plural(phrase: Phrase, clause: Clause) -> bool:
    head = clause.reading.head(phrase.start, phrase.end)
    return head is not None and head.tag in ("NN2", "NP0")


def first_two(clause: Clause) -> tuple[Phrase, Phrase | None]:
    return clause.phrases[0], clause.phrases[1] if len(clause.phrases) > 1 else None


def inner(phrase: Phrase) -> str:
    """Return a phrase without its preposition."""
    return phrase.text.partition(" ")[2]


def is_means(phrase: Phrase | None) -> bool:
    """Whether a phrase says how something is done: "by adding a row", "using `dnf`", "with the `-x` flag"."""
    if phrase is None:
        return False
    by_code = phrase.kind == "place" and phrase.first == "with" and "`" in phrase.text
    return by_code or phrase.first in MEANS or (phrase.kind == "means" and phrase.first == "by")


def ask_needed(clause: Clause, phrase: Phrase, *before: str, where: str) -> Iterator[Ask]:
    """Yield the question for what a preposition at the end of the question asks for."""
    word = question_word(phrase, clause)
    if clause.reading.shape[clause.phrases[0].start - 1] == "P" or (phrase.first == "by" and is_name(phrase, clause)):
        return  # "reach out to": the particle belongs to the verb; "by HR": who or what, nobody knows
    if word and not hangs(inner(phrase)) and not re.match(r"(?:\w+ )?(?:more|each|all|any|one)\b", phrase.text):
        yield ask_with(word, clause, *before, phrase.first, where)


def ask_state(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for what a subject is, or for what it is good for."""
    if personal(clause) or not is_specific(clause) or clause.verb:
        return
    if is_slogan(clause):
        return
    if re.match(r"(?:each|every|all)\b", clause.subject):
        return
    first, second = first_two(clause)
    is_clause = first.kind in ("infinitive", "that") and first.first in ("to", "that", "what")
    if (first.kind == "noun" and defines(first, clause) and not hangs(first.text) and question_word(first, clause)) or (
        is_clause and len(content_words(clause.subject)) > 1
    ):
        yield ask_with("What", clause, where)
    elif is_place(first, clause):
        yield ask_with("Where", clause, where)
    elif first.kind == "adjective" and second and second.kind == "place" and not UNCERTAIN.search(first.text):
        available = first.text == "available" and (second.first == "from" or is_name(second, clause))
        if is_place(second, clause) or available:
            yield ask_with("Where", clause, first.text, where)
        elif second.first in ("for", "to", "with", "of", "on"):
            yield from ask_needed(clause, second, first.text, where=where)


def defines(phrase: Phrase, clause: Clause) -> bool:
    """Whether a noun phrase behind "is" says what a thing is: "a tool for …", not "a good example", "MIT licensed"."""
    if re.match(r"(?:your|our) ", clause.subject) or NO_DEFINITION.search(phrase.text):
        return False
    plural = is_plural(phrase, clause) and not re.search(r"\d", phrase.text)
    return plural or bool(re.match(r"(?:an?|the|one|just|another) ", phrase.text))


def is_slogan(clause: Clause) -> bool:
    """Whether a sentence says of one common word what it is, in few words: "Honesty is my highest value"."""
    words = len(clause.reading.text.split())
    common = clause.subject.islower() or len(clause.subject.split()) == 1
    return "`" not in clause.subject and (words < LEAST_DEFINITION or (common and words < LEAST_COMMON))


def ask_passive(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for "is made of …", "is kept in …" or "is used to …"."""
    first = clause.phrases[0]
    either = clause.reading.lower(first.start - 1) in ("either", "both", "only")
    if personal(clause) or not is_specific(clause) or either:
        return
    by_means = first.kind == "place" and first.first == "by" and clause.reading.tokens[first.start + 1].tag == "NN1"
    if first.text == "by default":
        return
    if is_means(first) or by_means:
        yield ask_with("How", clause, where)
    elif clause.lemma == "use" and (first.text.startswith("to ") or first.first == "for"):
        yield ask_with("What", clause, "for", where)
    elif first.kind == "infinitive" and first.first == "to":
        if clause.lemma in TO_DO_VERBS:
            if not first.text.startswith("to be "):
                yield ask_with("What", clause, "to do", where)
        elif clause.lemma not in NO_PURPOSE and may_be_verb(clause.reading.lower(first.start + 1)):
            yield ask_with("Why", clause, where)
    elif is_place(first, clause) and first.first != "into":
        yield ask_with("Where", clause, where)
    elif first.kind == "place" and first.first in ("in", "at", "inside", "on") and clause.lemma != "write":
        if clause.lemma in PLACED_VERBS or (first.first == "in" and is_name(first, clause)):
            yield ask_with("Where", clause, where)
    elif first.kind == "place" and first.first in NEEDED_PREPOSITIONS and clause.lemma not in TO_DO_VERBS:
        yield from ask_needed(clause, first, where=where)
    elif first.kind == "when" and first.first in ("when", "after", "once", "before") and not hangs(first.text):
        yield ask_with("When", clause, where)


def ask_verb(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for what a verb needs: an amount, an infinitive, a preposition or an object."""
    first, verb = clause.phrases[0], clause.lemma
    if not personal(clause) and not is_specific(clause):
        return
    if verb in ("cost", "weigh") and re.match(r"[\d$€£]|EUR|USD|about|up|at", first.text):
        yield ask_with("How much", clause, where)
    elif verb in ("last", "take") and not personal(clause) and re.search(rf"{NUMBER} {UNITS}", first.text):
        yield ask_with("How long", clause, where)
    elif first.kind == "noun":
        yield from ask_action(clause, where) if personal(clause) else ask_object(clause, where)
    elif personal(clause):
        return
    elif first.kind == "infinitive" and first.first == "to" and verb in INTENDING_VERBS:
        if not first.text.startswith("to be "):
            yield ask_with("What", clause, "to do", where)
    elif first.kind in ("that", "when") and first.first in QUESTION_WORDS:
        if verb in STATING_VERBS:
            yield ask_with("What", clause, where)
    elif first.kind == "gerund" and verb in ("mean", "include", "involve"):
        yield ask_with("What", clause, where)
    elif is_place(first, clause) or (verb in PLACED_VERBS and first.first in ("in", "at", "inside")):
        yield ask_with("Where", clause, where)
    elif first.kind == "place" and first.first in ("on", "to", "with", "from", "of", "as") and verb not in WEAK_VERBS:
        yield from ask_needed(clause, first, where=where)


def ask_action(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for where, how or to what somebody does something."""
    obj, following = first_two(clause)
    is_named = len(content_words(obj.text)) > 1 or re.search(r"[`\dA-Z]", obj.text)
    if (
        following is None
        or not is_named
        or len(obj.text.split()) > LONGEST_OBJECT
        or hangs(obj.text)
        or not question_word(obj, clause)
    ):
        return
    if clause.lemma == "use" and clause.auxiliary == "do" and clause.kind != "command":
        if following.text.startswith("to ") or following.first == "for":
            yield ask_with("What", clause, obj.text, "for", where)
        return
    if following.first == "of" and clause.reading.lower(following.start - 1) == "instead":
        if not hangs(inner(following)):
            yield ask_with("What", clause, "instead of", inner(following), where)
    elif is_means(following) and clause.lemma not in (*WEAK_VERBS, *FRAMES) and not clause.verb.endswith("ed"):
        yield Ask("purpose", join(clause.verb, obj.text))
    elif following.kind == "place" and following.first in FRAMES.get(clause.lemma, ()):
        yield from ask_needed(clause, following, obj.text, where=where)
    elif is_place(following, clause) and clause.lemma not in WEAK_VERBS:
        yield ask_with("Where", clause, obj.text, where)
    elif clause.lemma in KEEPING_VERBS and following.kind == "place" and following.first in PLACE_PREPOSITIONS:
        if not hangs(inner(following)):
            yield ask_with("Where", clause, obj.text, where)
    elif following.text.startswith("to ") and following.kind == "infinitive" and clause.lemma in TO_DO_VERBS:
        yield ask_with("What", clause, obj.text, "to do", where)


def ask_object(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for the object of a verb, or for where and how something is done to it."""
    obj, following = first_two(clause)
    short = len(obj.text.split()) <= LONGEST_OBJECT
    if re.match(r"no (?!one|longer|more)", obj.text) and clause.auxiliary in ("does", "do") and short:
        yield Ask(
            "bare", join(clause.auxiliary.capitalize(), clause.subject, clause.verb, f"any {inner(obj)}", where) + "?"
        )
        return
    if following and following.kind in ("infinitive", "adjective") and clause.lemma in TO_DO_VERBS:
        if (
            following.kind == "infinitive"
            and short
            and "i" not in clause.reading.shape[obj.start : obj.end]
            and not following.text.startswith("to be ")
            and len(following.text.split()) > 2
        ):
            yield ask_with("What", clause, obj.text, "to do" if following.first == "to" else "do", where)
        return
    if obj.text in ("you", "us") and following and following.kind == "noun" and not hangs(following.text):
        yield ask_with("What", clause, obj.text, where)
        return
    word = question_word(obj, clause)
    if clause.lemma in VAGUE_VERBS:
        return
    if not word or hangs(obj.text) or clause.lemma in WEAK_VERBS or is_complement(following, clause):
        return
    named = short and len(content_words(obj.text)) > 1
    if is_means(following) and named:
        yield ask_with("How", clause, obj.text, where)
    elif is_place(following, clause) and named and following and following.first != "within":
        yield ask_with("Where", clause, obj.text, where)
    else:
        yield ask_with(word, clause, tail_of(clause, following), where)


def is_complement(phrase: Phrase | None, clause: Clause) -> bool:
    """Whether a phrase behind an object is a part of what the verb says: "find it hard", "use it to do that"."""
    if phrase is None:
        return False
    bare = phrase.kind == "infinitive" and phrase.first != "to"
    hanging = clause.lemma == "use" and phrase.kind == "infinitive" and hangs(phrase.text)
    return bare or hanging or phrase.kind == "adjective" or (phrase.kind == "gerund" and phrase.first != "using")


def tail_of(clause: Clause, following: Phrase | None) -> str:
    """Return the phrase behind an object that belongs to the verb, so that a question keeps it."""
    if following is None or len(following.text.split()) > LONGEST_TAIL or hangs(following.text):
        return ""
    condition = following.kind == "when" and following.first in CONDITIONS
    condition = condition or (clause.lemma == "use" and following.kind == "infinitive")
    needed = following.kind == "place" and following.first in FRAMES.get(clause.lemma, ())
    return following.text if condition or needed else ""


def ask_subject(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for the subject: "Which flag sets the size?", "Who approves the request?"."""
    if clause.kind == "be" or VAGUE_SUBJECT.search(clause.subject) or clause.reading.shape[0] == "G":
        return
    rest = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    long = len(content_words(rest)) < LEAST_PREDICATE or len(rest.split()) > LONGEST_PREDICATE
    if clause.reading.tokens[clause.phrases[0].start - 1].tag == "VVD" and clause.phrases[0].kind == "infinitive":
        return  # "guidelines revised to include": a participle
    if long or HANGING.match(rest) or clause.phrases[-1].kind == "means":
        return
    predicate, head, words = join(clause.surface, rest, where), clause.head, content_words(clause.subject)
    is_singular = not clause.plural or clause.auxiliary in ("can", "may", "must", "should", "will", "could")
    if ANY_POINTING.search(rest):
        return
    if head in PERSON_NOUNS:
        if is_singular and head not in ANYBODY:
            yield Ask("subject", f"Who {predicate}?")
    elif head[:1] == "`" and is_singular and len(words) == 1:
        yield Ask("subject", f"What {predicate}?")
    elif (
        head.isalpha()
        and head in clause.subject.split()
        and "`" in clause.subject
        and words[0] not in POINTING_ADJECTIVES
        and not re.search(rf"\b{head}\b", rest)
        and head.removesuffix("s") not in VAGUE_HEADS
    ):
        yield Ask("subject", f"Which {head} {predicate}?")
