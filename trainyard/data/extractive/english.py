"""Questions for English sentences: the question that a sentence answers, made of the sentence's own words.

A sentence is cut by the parts of speech of its words (`clauses`): what stands in front of its first comma, subject,
verb, and the phrases behind the verb. Where that is not certain there is no question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from trainyard.data.extractive.clauses import Clause, cut, decapitalise, join, parse_clause
from trainyard.data.extractive.fronts import Front, read_front
from trainyard.data.extractive.lexicon import word_set
from trainyard.data.extractive.phrases import FINITE, Phrase, read

UNITS = r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|business days?|working days?|cycles?)"
NUMBER = r"(?:\d[\d.,]*|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|several|a few)"
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
    r"|(?:at|by|before|after) the (?:end|start|beginning) of .*)$"
)
TIMES = ((FREQUENCY, "How often"), (DURATION, "How long"), (POINT, "When"))
ELAPSED = re.compile(
    rf"(?:It|it) (?:(?:usually|typically|normally|can|may|will) )*takes? (?:up to |about |around |at least |between )?"
    rf"{NUMBER}(?:[- ](?:to |and )?{NUMBER})? {UNITS}(?: or more| or longer)? to (?P<goal>[^,;:()]{{4,100}})"
)
IMPOSSIBLE = re.compile(r"(?:It|it) is (?:not |im)possible to (?P<goal>[^,;:()]{4,100})(?:[,;:(].*)?")
COUNTED = re.compile(
    r"There are (?:about |over |at least |currently |only )?"
    r"(?:\d+|two|three|four|five|six|seven|eight|nine|ten|twelve) "
    r"(?P<things>[a-z][\w-]*(?: [\w-]+){1,7}?)(?: (?:that|which|who|you|we|to)\b.*|[:,;(].*)?"
)
HANGING = re.compile(
    r"^(?:(?:if|when|whenever|unless|once|after|before|while|to \w+|that|even if|in case) )?"
    r"(?:it|its|this|that|these|those|they|them|their|he|she|so|such|one|there|not|no|any)\b",
    re.I,
)
DANGLING = re.compile(
    r"\b(?:this|these|those|them|such|the above|above(?! \w)|below(?! \w)|below in|above in|here|latter|"
    r"former|following|it|they|its|their|same|other|others|another|further)\b",
    re.I,
)
"""A question with such a word needs the text around it."""
STOP_WORDS = word_set("en_stop_words")
PERSON_NOUNS = word_set("en_person_nouns")
VAGUE_HEADS = word_set("en_generic")
POINTING_ADJECTIVES = word_set("en_pointing_adjectives")
"""Adjectives that make a noun depend on the text around it."""
VAGUE_SUBJECT = re.compile(
    r"^(?:even|some|many|most|several|other|another|both|few|either|neither|any|no|all|every|each|such|more|one|two|"
    r"three) |\b(?:and|or|this|that|these|those|it|they|you|we|I|their|its|your|our|same|other|here|itself|he|she)\b"
    r"|[,;:(\"“„]",
    re.I,
)
WEAK_VERBS = word_set("en_weak_verbs")
INTENDING_VERBS = word_set("en_intending_verbs")
TO_DO_VERBS = word_set("en_to_do_verbs")
MOTION_VERBS = word_set("en_motion_verbs")
PLACED_VERBS = word_set("en_placed_verbs")
PLACE_NOUNS = word_set("en_place_nouns")
TOLD_VERBS = word_set("en_told_verbs")
FOLLOWING = re.compile(r"(?:this|that|these|those|such|the same|it|they|he|she)\b", re.I)
POINTING_SUBJECT = re.compile(r"(?:It|They|He|She|This|These)(?= )")
LONGEST_SUBJECT, LONGEST_OBJECT = 7, 7
LEAST_PREDICATE = 3
"""Words that say something, behind the verb of a question for the subject."""
LONGEST_STATE = 10
"""Words of "is not …" that become a question."""
LONGEST_TAIL = 12
UNCERTAIN = re.compile(
    r"\b(?:until|unless|because|but|only|just|always|necessarily|yet|about|as|the same)\b|^(?:to|that|a|so|too|very) "
)
"""What makes the answer to a question with "is" more than yes or no."""
TWO_FACTS, THREE_FACTS = 10, 16
"""Words of a sentence that may answer two questions, or three."""
WANTED = re.compile(
    r"(?:you|we) (?:can|could|should|must|need|have|may|might|will need|['’]ll need)\b|(?:please|do not|don['’]t|never) ",
    re.I,
)
WISH = re.compile(r"\byou (?:want|would like|need|wish|have to|are looking)\b|\byou['’]d like\b")


class Ask(NamedTuple):
    """A question for a sentence. `topic` is what the rule's wordings need; `clause` is the question as a clause."""

    rule: str
    topic: str
    clause: str = ""


def content_words(text: str) -> list[str]:
    """The words of a text in small letters without stop words."""
    return [word for word in re.findall(r"[\w'’-]+", text.lower()) if word not in STOP_WORDS]


def ask_english(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers: none, one, or up to three of a long sentence.

    `vocabulary` has the words that the document writes in small letters; `subject` replaces a pronoun at the start.
    """
    front = read_front(sentence, vocabulary)
    if subject and (pronoun := POINTING_SUBJECT.match(front.main)):
        front = front._replace(main=f"{subject[:1].upper()}{subject[1:]}{front.main[pronoun.end() :]}")
    asks: list[Ask] = []
    length = len(sentence.split())
    most = 3 if length >= THREE_FACTS else 2 if length >= TWO_FACTS else 1
    for ask in forms_of(front, vocabulary):
        if ask.rule == "subject":
            if subject or FOLLOWING.match(front.main):
                continue
            ask = ask._replace(rule="bare")
        if len(asks) < most and acceptable(ask, sentence) and not any(alike(ask, other) for other in asks):
            asks.append(ask)
    return asks


def alike(first: Ask, second: Ask) -> bool:
    """Whether two questions of a sentence ask for the same."""
    one, two = set(content_words(first.topic)), set(content_words(second.topic))
    same = first.rule == second.rule and first.rule not in ("named", "bare")
    return same or len(one & two) * 2 > min(len(one), len(two))


def acceptable(ask: Ask, sentence: str) -> bool:
    """Whether a question can be read alone, and asks for something that it does not say itself."""
    shown = re.sub(r"`[^`]*`", "x", ask.topic)
    if DANGLING.search(shown) or len(ask.topic.split()) > 24 or ask.topic.count("(") != ask.topic.count(")"):
        return False
    if re.search(r"\b(?:below|above) listed\b|\b[Mm]ore (?:information|details)\b|\bgiven\b", shown):
        return False
    if re.search(r"\b(?:or|and|called|named|known|by \w+ing)\W*$| but |[;:\[\]]", shown):
        return False
    if ask.topic.count("`") % 2 or ask.topic.count('"') % 2 or ask.topic.count("“") != ask.topic.count("”"):
        return False
    asked = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in asked]
    least = 1 if re.match(r"What (?:is|are) ", ask.topic) and max(map(len, asked), default=0) > 3 else 2
    enough = 1 if ask.rule == "condition_do" else 2
    return len(asked) >= least and (ask.rule in ("avoid", "bare") or len(fresh) >= enough)


def forms_of(front: Front, vocabulary: Collection[str]) -> Iterator[Ask]:
    """Yield every question of a sentence, the surest first."""
    yield from ask_avoid(front.main)
    yield from ask_impersonal(front.main)
    clause = parse_clause(front.main, vocabulary)
    loose = clause or parse_clause(front.main, vocabulary, partly=True)
    if loose is not None:
        yield from ask_condition(front, loose)
        yield from ask_purpose(front, loose)
    if clause is None:
        return
    if clause.kind != "command" and (not clause.head or clause.reading is None or pointing(clause)):
        return
    where = decapitalise(front.text, vocabulary) if front.kind == "place" else ""
    if front.kind not in ("", "place"):
        return
    if clause.negative:
        yield from ask_negative(clause, where)
        return
    yield from ask_reason(clause, where)
    times = list(ask_time(clause, where))
    yield from times
    if clause.kind == "be":
        yield from ask_state(clause, where)
    elif clause.kind == "passive":
        yield from () if times else ask_passive(clause, where)
    elif not times:
        yield from ask_verb(clause, where)
    yield from ask_subject(clause, where)


def pointing(clause: Clause) -> bool:
    """Whether a subject is a pronoun that needs the text around it."""
    subject = clause.subject.lower()
    return bool(FOLLOWING.match(subject) or DANGLING.search(subject))


def personal(clause: Clause) -> bool:
    return clause.kind == "command" or clause.subject.lower() in ("you", "we", "i")


def ask_with(word: str, clause: Clause, *tail: str) -> Ask:
    """A question with its clause form: "How often do we meet?" and "how often we meet"."""
    question = join(word, clause.auxiliary, clause.subject, clause.verb, *tail)
    return Ask("named", f"{question}?", join(word[0].lower() + word[1:], clause.subject, clause.surface, *tail))


def ask_avoid(text: str) -> Iterator[Ask]:
    """Yield the question of "Do not open the lid" and "Avoid opening the lid"."""
    match = re.fullmatch(r"(?:do not|don['’]t|never) (?P<rest>.+)", text, re.I)
    if match is None or HANGING.match(match["rest"]):
        return
    rest = cut(match["rest"])
    reading = read(f"You should {rest}")
    if reading.shape[2:3] == "I" and len(content_words(rest)) > 2 and " and " not in rest:
        yield Ask("avoid", rest)


def ask_impersonal(text: str) -> Iterator[Ask]:
    """Yield the questions for "It is not possible to …", "It takes two days to …" and "There are three kinds of …"."""
    if match := IMPOSSIBLE.fullmatch(text):
        yield Ask("bare", f"Is it possible to {match['goal']}?")
    elif match := ELAPSED.fullmatch(text):
        yield Ask("named", f"How long does it take to {match['goal']}?", f"how long it takes to {match['goal']}")
    elif match := COUNTED.fullmatch(text):
        yield Ask("named", f"How many {match['things']} are there?", f"how many {match['things']} there are")


def is_advice(clause: Clause) -> bool:
    """Whether a clause tells somebody what to do."""
    if clause.kind == "command":
        return True
    return personal(clause) and (
        clause.auxiliary in ("can", "should", "must", "may") or clause.lemma in ("need", "have")
    )


def ask_condition(front: Front, clause: Clause) -> Iterator[Ask]:
    condition = front.text if front.kind == "condition" else condition_behind(clause)
    words = condition.lower().split()
    if len(words) < 3 or HANGING.match(condition) or DANGLING.search(condition) or pointing(clause):
        return
    shape = read(condition).shape
    condition = condition[0].lower() + condition[1:]
    if re.match(r"[CQ][GN]", shape):
        if words[0] not in ("if", "when") or not is_advice(clause) or shape[1] == "N":
            return
        condition = (
            f"{words[0]} you are {condition.split(maxsplit=1)[1]}" if words[1] in ("using", "running") else condition
        )
    elif not re.search(rf"[{FINITE}]", shape):
        return
    if clause.kind == "be" and front.kind != "condition":
        return
    rule = "condition_do" if is_advice(clause) or WISH.search(condition) else "condition"
    yield Ask(rule, condition)


def condition_behind(clause: Clause) -> str:
    """Return the condition at the end of a clause; empty where it belongs to another verb or noun."""
    if not clause.phrases or clause.reading is None or clause.negative:
        return ""
    last = clause.phrases[-1]
    kinds = [phrase.kind for phrase in clause.phrases[:-1]]
    if last.kind != "when" or last.first not in ("if", "when", "whenever", "unless", "once", "before", "after"):
        return ""
    if {"that", "when", "infinitive", "gerund", "means"} & set(kinds) or clause.lemma in TOLD_VERBS:
        return ""
    if not kinds and clause.kind not in ("passive", "verb"):
        return ""
    if last.end < len(clause.reading.tokens) or clause.reading.lower(last.start - 1) in (
        "only",
        "even",
        "or",
        "and",
        "as",
    ):
        return ""
    return last.text if len(last.text.split()) <= LONGEST_TAIL else ""


def ask_purpose(front: Front, clause: Clause) -> Iterator[Ask]:
    """Yield "How do you …?" for advice with a purpose, and "What does X do to …?" for a report with one."""
    goal, behind = front.text if front.kind == "purpose" else "", ""
    if not goal and is_advice(clause) and clause.reading is not None and not clause.negative:
        goal = behind = goal_behind(clause)
    if not goal or HANGING.match(f"to {goal}") or DANGLING.search(goal) or len(content_words(goal)) < 2:
        return
    if is_advice(clause) and (not clause.negative or not behind):
        yield Ask("purpose", goal)
    elif clause.negative or pointing(clause) or clause.kind == "be":
        return
    elif clause.kind == "passive":
        group = re.sub(r"\S+$", "done", clause.verb)
        yield Ask("bare", f"What {clause.auxiliary} {group} to {goal}?")
    elif clause.auxiliary in ("does", "do", "did", "can", "will", "should", "must") and clause.lemma not in (
        "need",
        "have",
    ):
        yield Ask("named", f"What {clause.auxiliary} {clause.subject} do to {goal}?")


def goal_behind(clause: Clause) -> str:
    """Return the purpose behind "Use the flag", "Click the button"; empty where it may belong to a noun."""
    phrases = clause.phrases
    place = next((place for place, phrase in enumerate(phrases) if phrase.kind == "infinitive"), 0)
    if not place or any(phrase.kind not in ("noun", "place", "adverb") for phrase in phrases[:place]):
        return ""
    goal, main = phrases[place], phrases[0]
    if (
        goal.first != "to"
        or main.kind not in ("noun", "place")
        or clause.lemma in (*TO_DO_VERBS, *TOLD_VERBS, "be", "need", "have")
    ):
        return ""
    before = clause.reading.lower(goal.start - 1) if clause.reading else ""
    if before in word_set("en_before_infinitive") or not re.match(
        r"tI[dnapi1qNGPr]", clause.reading.shape[goal.start :] if clause.reading else ""
    ):
        return ""
    return goal.text.partition(" ")[2]


def ask_reason(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield "Why …?" for a sentence with "because", and "How …?" for one with "by doing" or "using"."""
    if clause.reading is None or clause.kind == "command":
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
    if clause.reading is None or clause.auxiliary in ("might", "would", "could", "had") or not clause.phrases:
        return
    kinds = {phrase.kind for phrase in clause.phrases}
    state = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    if {"when", "that"} & kinds or clause.kind == "command" or len(state.split()) > LONGEST_STATE:
        return
    if clause.kind == "be" and (UNCERTAIN.search(state) or VAGUE_SUBJECT.search(clause.subject)):
        return
    if HANGING.match(state) or re.search(r"\b(?:only|just|always|necessarily|yet|longer|much|many)\b", state):
        return
    if not content_words(clause.subject) and len(content_words(state)) < 2:
        return
    yield Ask("bare", f"{join(clause.auxiliary.capitalize(), clause.subject, clause.verb, state, where)}?")


def ask_time(clause: Clause, where: str) -> Iterator[Ask]:
    if clause.reading is None or not clause.phrases or clause.auxiliary == "did":
        return
    short = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    for pattern, word in TIMES:
        match = pattern.search(short)
        if match is None:
            continue
        before = short[: match.start()].strip()
        starts = {phrase.start: phrase for phrase in clause.phrases}
        cut_at = next(
            (phrase for phrase in starts.values() if phrase.text in match[0] or match[0].strip() in phrase.text), None
        )
        if (clause.kind == "be" and not before) or cut_at is None or before.endswith((" of", " and", " or")):
            continue
        yield ask_with(word, clause, before, where)
        return


def is_specific(clause: Clause) -> bool:
    """Whether a subject says alone what a question is about."""
    words = content_words(clause.subject)
    if not words or re.match(r"(?:all|some|most|many|each|one) of |there\b", clause.subject):
        return False
    vague = words[-1].removesuffix("s") in VAGUE_HEADS or clause.head.removesuffix("s") in VAGUE_HEADS
    return (
        not (vague and (len(words) == 1 or words[0] in POINTING_ADJECTIVES))
        and len(clause.subject.split()) <= LONGEST_SUBJECT
    )


def who(phrase: Phrase, clause: Clause) -> str:
    """Return "Who" where a noun phrase is a person's."""
    offset = phrase.start + (phrase.kind == "place")
    head = clause.reading.head(offset, phrase.end) if clause.reading else None
    if head is not None and (
        head.text.lower() in PERSON_NOUNS or head.text.lower() in ("everyone", "anyone", "someone", "people")
    ):
        return "Who"
    return "What"


def is_place(phrase: Phrase, clause: Clause) -> bool:
    """Whether a phrase with a preposition names a place: a file, a page, a folder."""
    if phrase.first not in ("in", "on", "at", "under", "inside", "within", "into", "onto") or clause.reading is None:
        return False
    head = clause.reading.head(phrase.start + 1, phrase.end)
    if head is None:
        return False
    return head.text.lower() in PLACE_NOUNS or (head.text[0] == "`" and bool(re.search(r"[/.]", head.text)))


def ask_state(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for what a subject is, or for what it is good for."""
    first = clause.first
    if first is None or personal(clause) or not is_specific(clause):
        return
    phrases = [phrase for phrase in clause.phrases if phrase.kind != "adverb"]
    first = phrases[0] if phrases else first
    second = phrases[1] if len(phrases) > 1 else None
    if (first.kind == "noun" and not HANGING.match(first.text)) or (
        first.kind in ("infinitive", "that")
        and len(content_words(clause.subject)) > 1
        and first.first in ("to", "that", "what")
    ):
        yield ask_with("What", clause, where)
    elif first.kind == "place" and is_place(first, clause):
        yield ask_with("Where", clause, where)
    elif first.kind == "adjective" and second and second.kind == "place":
        if is_place(second, clause) or (
            first.text == "available" and second.first in ("in", "on", "at", "from", "through")
        ):
            yield ask_with("Where", clause, first.text, where)
        elif second.first in ("for", "to", "with", "of", "on") and not HANGING.match(second.text.partition(" ")[2]):
            yield ask_with(who(second, clause), clause, first.text, second.first, where)


def ask_passive(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for "is made of …", "is kept in …" or "is used to …"."""
    first = clause.first
    if first is None or not is_specific(clause) or (personal(clause) and clause.subject != "you"):
        return
    if (first.kind == "means" and first.first in ("by", "through")) or first.first in ("through", "via", "using"):
        yield ask_with("How", clause, where)
    elif first.kind == "infinitive" and first.first == "to":
        if clause.lemma == "use":
            yield ask_with("What", clause, "for", where)
        elif clause.lemma in TO_DO_VERBS:
            yield ask_with("What", clause, "to do", where)
    elif first.kind == "place" and first.first in ("to", "with", "from", "as", "on", "by", "for", "of", "against"):
        if not HANGING.match(first.text.partition(" ")[2]) and (first.first != "as" or who(first, clause) == "What"):
            yield ask_with(who(first, clause), clause, first.first, where)
    elif first.kind == "place" and (
        is_place(first, clause)
        or (clause.lemma in PLACED_VERBS and first.first in ("in", "at", "inside", "under", "on"))
    ):
        yield ask_with("Where", clause, where)
    elif first.kind == "when" and first.first in ("when", "after", "once", "before") and not HANGING.match(first.text):
        yield ask_with("When", clause, where)


def ask_verb(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for what a verb needs: an amount, an infinitive, a preposition or an object."""
    first, verb = clause.first, clause.lemma
    if first is None or (not personal(clause) and not is_specific(clause)):
        return
    if verb in ("cost", "weigh") and re.match(r"[\d$€£]|EUR|USD|about|up|at", first.text):
        yield ask_with("How much", clause, where)
    elif verb in ("last", "take") and not personal(clause) and re.search(rf"{NUMBER} {UNITS}", first.text):
        yield ask_with("How long", clause, where)
    elif first.kind == "noun":
        yield from ask_object(clause, where)
    elif personal(clause):
        return
    elif first.kind == "infinitive" and first.first == "to" and verb in INTENDING_VERBS:
        yield ask_with("What", clause, "to do", where)
    elif first.first in ("that", "how", "when", "where", "whether", "which", "what") and first.kind in ("that", "when"):
        if verb in TOLD_VERBS:
            yield ask_with("What", clause, where)
    elif first.kind == "place" and first.first in ("on", "to", "with", "from", "of", "as"):
        plain = verb not in PLACED_VERBS and not HANGING.match(first.text.partition(" ")[2])
        if plain and verb not in WEAK_VERBS:
            yield ask_with(who(first, clause), clause, first.first, where)
    elif first.kind == "place" and (
        is_place(first, clause) or (verb in PLACED_VERBS and first.first in ("in", "at", "inside", "on"))
    ):
        yield ask_with("Where", clause, where)


def ask_object(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for the object of a verb, or for where and how something is done to it."""
    obj, *others = clause.phrases
    following = others[0] if others else None
    if clause.reading is None or HANGING.match(obj.text) or (clause.lemma in ("be", "have") and personal(clause)):
        return
    object_is_name = len(content_words(obj.text)) > 1 or bool(re.search(r"[`\dA-Z]", obj.text))
    plain = len(obj.text.split()) <= LONGEST_OBJECT and object_is_name and not DANGLING.search(obj.text)
    shape = clause.reading.shape[obj.start : obj.end]
    if personal(clause):
        if (
            plain
            and following
            and following.kind == "place"
            and is_place(following, clause)
            and clause.lemma not in WEAK_VERBS
        ):
            yield ask_with("Where", clause, obj.text, where)
        elif (
            plain
            and following
            and (
                (following.kind == "means" and following.first == "by")
                or following.first in ("using", "via", "through")
            )
        ):
            yield Ask("purpose", f"{clause.verb} {obj.text}")
        elif following and following.kind == "place" and following.first == "to" and clause.lemma in MOTION_VERBS:
            if plain and not HANGING.match(following.text[3:]):
                yield ask_with(who(following, clause), clause, obj.text, "to", where)
        return
    if following and following.kind == "infinitive" and clause.lemma in TO_DO_VERBS:
        if len(obj.text.split()) <= LONGEST_OBJECT and shape[0] != "i":
            yield ask_with("What", clause, obj.text, "to do" if following.first == "to" else "do", where)
        return
    if clause.lemma in WEAK_VERBS or "p" in shape or shape == "i":
        return
    if following and (following.kind == "infinitive" and following.first != "to"):
        return
    tail = ""
    if following and following.kind == "when" and following.first in ("when", "if", "after", "before", "once", "while"):
        tail = (
            following.text if len(following.text.split()) <= LONGEST_TAIL and not HANGING.match(following.text) else ""
        )
    elif following and following.kind == "place" and following.first == "to" and clause.lemma in MOTION_VERBS:
        tail = following.text
    if DANGLING.search(tail):
        tail = ""
    yield ask_with(who(obj, clause), clause, tail, where)


def ask_subject(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for the subject: "Which flag sets the size?", "Who approves the request?"."""
    if (
        clause.reading is None
        or personal(clause)
        or clause.kind == "be"
        or not clause.phrases
        or not is_specific(clause)
    ):
        return
    if VAGUE_SUBJECT.search(clause.subject) or clause.reading.shape[0] == "G":
        return
    rest = clause.reading.words(clause.phrases[0].start, clause.phrases[-1].end)
    words = content_words(rest)
    if (
        len(words) < LEAST_PREDICATE
        or HANGING.match(rest)
        or len(rest.split()) > LONGEST_TAIL + 4
        or clause.phrases[-1].kind in ("means", "adverb")
    ):
        return
    predicate = join(clause.surface, rest, where)
    modal = clause.auxiliary in ("can", "may", "must", "should", "will", "could")
    head = clause.head
    if head in PERSON_NOUNS:
        if not clause.plural or modal:
            yield Ask("subject", f"Who {predicate}?")
    elif head[0] == head[-1] == "`" or (" " not in clause.subject and clause.subject[0].isupper()):
        if not clause.plural or modal:
            yield Ask("subject", f"What {predicate}?")
    elif head.isalpha() and len(content_words(clause.subject)) > 1 and head.removesuffix("s") not in VAGUE_HEADS:
        if not re.search(rf"\b{head}\b", rest):
            yield Ask("subject", f"Which {head} {predicate}?")
