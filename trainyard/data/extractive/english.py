"""Questions for English sentences: the question that a sentence answers, made of the sentence's own words.

A sentence is cut by the parts of speech of its words (`clauses`): what is in front of its first comma (`fronts`),
subject, verb, and the phrases behind the verb (`predicates`). Where that is not certain there is no question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.clauses import Clause, cut, decapitalise, parse_clause
from trainyard.data.extractive.english_words import (
    DANGLING,
    FOLLOWING,
    HANGING,
    LONGEST_TAIL,
    NUMBER,
    REFERRING_VERBS,
    STATING_VERBS,
    TO_DO_VERBS,
    UNITS,
    Ask,
    Front,
    content_words,
    hangs,
    personal,
    pointing,
    read_front,
)
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.phrases import FINITE, NOUNS, read
from trainyard.data.extractive.predicates import ask_predicate

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
NONE = re.compile(r"There (?P<be>is|are) (?:currently )?no (?!longer|more|need|guarantee)(?P<things>[^,;:()]{8,90})")
BEFORE_INFINITIVE = word_set("en_before_infinitive")
"""Words whose infinitive is another thing than a purpose: "the ability to …"."""
POINTING_SUBJECT = re.compile(r"(?:It|They|He|She|This|These)(?= )")
REPLACEABLE = re.compile(rf"[pd]A*[{FINITE}]")
"""A pronoun in front of its verb: "This is", not "This limit is"."""
TWO_FACTS, THREE_FACTS = 10, 16
"""Words of a sentence that may answer two questions, or three."""
WISH = re.compile(r"\byou (?:want|would like|need|wish|have to|are looking)\b|\byou['’]d like\b")
ADVISING = re.compile(
    r"(?:we|I) (?:suggest|recommend|advise|encourage)\b|it is (?:recommended|best|advisable|important)\b", re.I
)
POINTS = re.compile(r"\b(?:this|these|following|above|below|here)\b(?! (?:page|guide|document|project|site|handbook))")
POINTS_NEAR = re.compile(r"\b(?:above|below)\b(?! (?:the|an?|zero|average|\d))")
CONDITION_WORDS = ("if", "when", "whenever", "unless", "once", "before", "after")


def ask_english(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers: none, one, or up to three of a long sentence.

    `vocabulary` has the words that the document writes in small letters; `subject` replaces a pronoun at the start.
    """
    front = read_front(sentence, vocabulary)
    if subject and (pronoun := POINTING_SUBJECT.match(front.main)) and REPLACEABLE.match(read(front.main).shape):
        front = front._replace(main=f"{subject[:1].upper()}{subject[1:]}{front.main[pronoun.end() :]}")
    asks: list[Ask] = []
    length = len(sentence.split())
    most = 3 if length >= THREE_FACTS else 2 if length >= TWO_FACTS else 1
    forms = () if POINTS_NEAR.search(front.main) else forms_of(front, vocabulary)
    for ask in forms:
        if ask.rule == "subject":
            if subject or FOLLOWING.match(front.main):
                continue
            ask = ask._replace(rule="bare")
        if len(asks) < most and acceptable(ask, sentence) and not any(alike(ask, other) for other in asks):
            asks.append(ask)
    return asks


def alike(first: Ask, second: Ask) -> bool:
    """Whether two questions of a sentence ask for the same."""
    first_words, two = set(content_words(first.topic)), set(content_words(second.topic))
    same = first.rule == second.rule and first.rule not in ("named", "bare")
    return same or len(first_words & two) * 2 > min(len(first_words), len(two))


def acceptable(ask: Ask, sentence: str) -> bool:
    """Whether a question can be read alone, and asks for something that it does not say itself."""
    topic = re.sub(r"`[^`]*`", "x", ask.topic)
    if DANGLING.search(topic) or len(ask.topic.split()) > 24 or ask.topic.count("(") != ask.topic.count(")"):
        return False
    if re.search(r"\b(?:below|above) listed\b|\b[Mm]ore (?:information|details)\b|\bgiven\b", topic):
        return False
    if re.search(r"\b(?:or|and|called|named|known|by \w+ing)\W*$| but |[;:\[\]]", topic):
        return False
    if ask.topic.count("`") % 2 or ask.topic.count('"') % 2 or ask.topic.count("“") != ask.topic.count("”"):
        return False
    topic_words = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in topic_words]
    least = 1 if re.match(r"What (?:is|are) ", ask.topic) and max(map(len, topic_words), default=0) > 3 else 2
    enough = 1 if ask.rule == "condition_do" else 2
    return len(topic_words) >= least and (ask.rule in ("avoid", "bare") or len(fresh) >= enough)


def forms_of(front: Front, vocabulary: Collection[str]) -> Iterator[Ask]:
    """Yield every question of a sentence, the surest first."""
    yield from ask_avoid(front.main)
    yield from ask_impersonal(front.main)
    clause = parse_clause(front.main, vocabulary)
    loose = clause or parse_clause(front.main, vocabulary, partly=True)
    if loose is not None and loose.verb not in REFERRING_VERBS:
        yield from ask_condition(front, loose)
        yield from ask_purpose(front, loose)
    if clause is None or front.kind not in ("", "place") or pointing(clause) or clause.verb in REFERRING_VERBS:
        return
    yield from ask_predicate(clause, decapitalise(front.text, vocabulary) if front.kind == "place" else "")


def ask_avoid(text: str) -> Iterator[Ask]:
    """Yield the question of "Do not open the lid" and "Avoid opening the lid"."""
    match = re.fullmatch(r"(?:do not|don['’]t|never) (?P<rest>.+)", text, re.I)
    if match is None or HANGING.match(match["rest"]):
        return
    rest = re.sub(r" (?:though|either|anymore|yet)$", "", cut(match["rest"]))
    reading = read(f"You should {rest}")
    if reading.shape[2:3] == "I" and len(content_words(rest)) > 2 and " and " not in rest:
        yield Ask("avoid", rest)


def ask_impersonal(text: str) -> Iterator[Ask]:
    """Yield the questions for "It is not possible to …", "It takes two days to …" and "There are three kinds of …"."""
    if match := IMPOSSIBLE.fullmatch(text):
        yield Ask("bare", f"Is it possible to {match['goal']}?")
    elif match := ELAPSED.fullmatch(text):
        yield Ask("named", f"How long does it take to {match['goal']}?", f"how long it takes to {match['goal']}")
    elif match := NONE.fullmatch(text):
        yield Ask("bare", f"{match['be'].capitalize()} there any {match['things']}?")
    elif (match := COUNTED.fullmatch(text)) and re.fullmatch(NOUNS, read(match["things"]).shape):
        yield Ask("named", f"How many {match['things']} are there?", f"how many {match['things']} there are")


def is_advice(clause: Clause) -> bool:
    """Whether a clause is an instruction."""
    if clause.kind == "command":
        return True
    advising = clause.auxiliary in ("can", "should", "must", "may") or clause.lemma in ("need", "have")
    return personal(clause) and advising and clause.kind in ("verb", "passive")


def ask_condition(front: Front, clause: Clause) -> Iterator[Ask]:
    """Yield "What happens if …?", or what to do, for a condition in front or at the end."""
    condition = front.text if front.kind == "condition" else condition_behind(clause)
    words = condition.lower().split()
    if (
        len(words) < 3
        or hangs(condition)
        or words[0] in ("while", "until", "even")
        or words[-1] == "that"
        or POINTS.search(front.main)
    ):
        return
    if pointing(clause) and front.kind != "condition":
        return  # what a pronoun behind "if" means is in the condition
    condition = condition[0].lower() + condition[1:]
    shape = read(condition).shape
    advice = is_advice(clause) or bool(ADVISING.match(front.main)) or (personal(clause) and clause.kind == "be")
    if re.match("[CQ]G", shape) and words[0] in ("if", "when") and advice:
        condition = (
            f"{words[0]} you are {condition.partition(' ')[2]}" if words[1] in ("using", "running") else condition
        )
    elif re.match("[CQ][GN]", shape) or not re.search(rf"[{FINITE}]", shape):
        return
    if (clause.kind == "be" and front.kind != "condition") or (words[0] == "when" and words[1] == "we"):
        return
    needed = clause.auxiliary in ("should", "must") and clause.verb.startswith("be ") and clause.kind == "passive"
    offered = clause.auxiliary == "can" and clause.kind == "passive" and words[1].startswith("you")
    if needed and not advice:
        yield Ask("bare", f"What {clause.auxiliary} be done {condition}?")
    elif advice or offered or (WISH.search(condition) and not clause.negative):
        yield Ask("condition_do", condition)
    elif words[0] != "before":
        yield Ask("condition", condition)


def condition_behind(clause: Clause) -> str:
    """Return the condition at the end of a clause; empty where it belongs to another verb or noun."""
    if not clause.phrases or clause.negative:
        return ""
    *before, last = clause.phrases
    if last.kind != "when" or last.first not in CONDITION_WORDS or clause.lemma in STATING_VERBS:
        return ""
    if any(phrase.kind not in ("noun", "place", "adjective") for phrase in before):
        return ""
    joined = clause.reading.lower(last.start - 1) in ("only", "even", "or", "and", "as", "just")
    whole = last.end == len(clause.reading.tokens) and len(last.text.split()) <= LONGEST_TAIL
    return last.text if whole and not joined else ""


def ask_purpose(front: Front, clause: Clause) -> Iterator[Ask]:
    """Yield "How do you …?" for advice with a purpose, and "What does X do to …?" for a report with one."""
    goal = front.text if front.kind == "purpose" else ""
    if not goal and is_advice(clause) and not clause.negative:
        goal = goal_behind(clause)
    if not goal or hangs(f"to {goal}") or hangs(goal) or len(content_words(goal)) < 2:
        return
    if is_advice(clause):
        yield Ask("purpose", goal)
    elif clause.negative or pointing(clause) or clause.kind == "be":
        return
    elif clause.kind == "passive":
        yield Ask("bare", f"What {clause.auxiliary} {re.sub(r'[^ ]+$', 'done', clause.verb)} to {goal}?")
    elif clause.auxiliary in ("does", "do", "did", "can", "will") and clause.lemma not in ("need", "have"):
        yield Ask("named", f"What {clause.auxiliary} {clause.subject} do to {goal}?")


def goal_behind(clause: Clause) -> str:
    """Return the purpose behind "Use the flag", "Click the button"; empty where it may belong to a noun."""
    for index, phrase in enumerate(clause.phrases):
        if phrase.kind == "infinitive":
            noun = clause.reading.lower(phrase.start - 1)
            certain = (
                index and noun not in BEFORE_INFINITIVE and clause.lemma not in (*TO_DO_VERBS, "be", "need", "have")
            )
            has_object = re.match(r"tA?IP?[dnapi1qN]", clause.reading.shape[phrase.start :])
            certain = certain and not re.match(",A?a", clause.reading.shape[phrase.end :])
            return phrase.text.partition(" ")[2] if certain and has_object and phrase.first == "to" else ""
        if phrase.kind not in ("noun", "place"):
            return ""
    return ""
