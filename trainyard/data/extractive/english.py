"""Questions for English sentences: the question that a sentence answers, made of the sentence's own words.

A sentence is cut by the parts of speech of its words (`clauses`): what is in front of its first comma (`fronts`),
subject, verb, and the phrases behind the verb (`predicates`). Where that is not certain there is no question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainyard.data.extractive.clauses import Clause, cut, decapitalise, parse_clause
from trainyard.data.extractive.english_fronts import LIGHT_ADVERB, Front, instructs, read_front
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
    content_words,
    hangs,
    personal,
    pointing,
)
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.noun_phrases import may_be_verb
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
EXPLETIVE = re.compile(
    r"It (?:is|was|will be|may be|can be|might be)(?: \w+ly| also| not| always| often)* \w+ (?:to|that|for)\b|"
    r"It (?:takes|helps|seems|appears)\b"
)
"""Sentences whose "it" means nothing: "It is recommended to"."""
POINTING_SUBJECT = re.compile(r"(?:It|They|He|She|This|These)(?= )")
REPLACEABLE = re.compile(rf"[pd]A*[{FINITE}]")
"""A pronoun in front of its verb: "This is", not "This limit is"."""
TWO_FACTS, THREE_FACTS = 10, 16
"""Words of a sentence that may answer two questions, or three."""
WISH = re.compile(r"\byou (?:want|would like|need|wish|have to|are looking)\b|\byou['’]d like\b")
POINTS = re.compile(r"\b(?:this|these|following|above|below|here)\b(?! (?:page|guide|document|project|site|handbook))")
POINTS_NEAR = re.compile(r"\b(?:above|below)\b(?! (?:the|an?|zero|average|\d))")
OBLIGED = re.compile(
    r"(?P<subject>(?:the )?[a-z]+(?: [a-z]+)?) (?P<modal>should|must) (?!be\b|not\b|also be\b)(?=[a-z]+ )"
)
"""A main clause with a duty: "they should notify"."""
STATE = re.compile(
    r"(?:it|that|this|they|there|you|we)(?:['’](?:s|re)| (?:is|are|was|were|has|have|had)) (?!been|to\b|\w+ed\b)", re.I
)
"""A main clause that says how something is."""
PERMITTED = re.compile(r"you (?:can|may|could|might) (?!(?:also|need|want|be|have|find|notice|see)\b)", re.I)
"""A main clause with a permission of the reader."""
OUTSIDE = re.compile(
    r"\b(?:everything|anything|aforementioned|given|[Mm]ore (?:information|details)|(?:below|above) listed)\b"
)
"""Words of a question that mean something outside of it."""
NO_GOAL = re.compile(
    r"(?:get|be) started|make sure|ensure|familiari[sz]e|learn|find out|do\b|help|start$|begin$|see (?:more|what)|"
    r"read|understand\b"
)
"""Purposes of which a sentence never says how."""
MEANS = re.compile(
    r"(?:(?:you|users|admins|administrators|members|participants|teams|people|staff)"
    r"(?: (?:can|may|could|should|must|need to|have to))"
    r"(?: (?:also|then|either|easily|simply|now|quickly|always|often|usually|typically))* )?"
    r"(?P<goal>[a-z][^,;:()]{8,90}?) "
    r"(?:by (?:\w+ly )?(?!being|having|doing)[a-z]+ing|using|via) (?!them\b|this\b|these\b|it\b|that\b|those\b)(?=\S)",
    re.I,
)
"""The action of a sentence, in front of its means."""
NO_MEANS = ("you", "we", "do", "be", "have", "avoid", "consider", "try", "start", "note", "make")
CONDITION_PART = re.compile(r"(?:^| )(?:if|when|whenever|once|after|before|unless|as soon as|as long as|in case) .*")
OWN = re.compile(r"\b(?:we|us|our|I|me|my|however|also|instead|too)\b")
OWN_PRONOUN = re.compile(r"\b(?:it|its|they|their|them)\b")
LONGEST_CONDITION = 24
DASHES = re.compile(r"(?:^| )--(?: |$)")
"""Separator of a label and its meaning: sentences with it give no question."""
SEES = re.compile(r"(?:see|notice|get|receive|find|have|be able)\b")
"""Verbs behind "you should" that say what happens."""
NO_ADVICE = re.compile(
    r"(?:please )?(?:keep in mind|be aware|note|remember)\b|.*\b(?:instructions|guides?) for\b", re.I
)
ALSO = re.compile(r"(?:you|we) (?:can|may|could) (?:also|either|alternatively)\b", re.I)
"""Beginnings of an alternative to the sentence before."""
UNSURE = re.compile(
    r"if you(?:['’]re| are) (?:not sure|unsure|willing\b.*|interested\b.*)$|in case you (?:missed|forgot)\b.*|"
    r"(?:if|when) you (?:wish|like|want|prefer|need|can)$",
    re.I,
)
PAST = re.compile(r"\b(?:was|were|had)\b")
CONDITION_WORDS = ("if", "when", "whenever", "unless", "once", "before", "after")


def ask_english(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers: none, one, or up to three of a long sentence.

    `vocabulary` has the words that the document writes in small letters; `subject` replaces a pronoun at the start.
    """
    if DASHES.search(sentence):
        return []
    front = read_front(sentence, vocabulary)
    if subject and EXPLETIVE.match(front.main):
        subject = ""
    if re.match(r"(?:each|every|no|any)\b", subject, re.I):
        subject = ""
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
        if (
            sentence[:1] not in "–—-"
            and len(asks) < most
            and acceptable(ask, sentence)
            and not any(alike(ask, other) for other in asks)
        ):
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
    asks_of_condition = ask.rule.startswith("condition") or re.match(r"What (?:should|can) ", topic)
    if DANGLING.search(CONDITION_PART.sub("", topic) if asks_of_condition else topic):
        return False
    if len(ask.topic.split()) > LONGEST_CONDITION or ask.topic.count("(") != ask.topic.count(")"):
        return False
    if OUTSIDE.search(topic):
        return False
    if re.search(r"\b(?:or|and|called|named|known|by \w+ing)\W*$| but |[;:\[\]]", topic):
        return False
    if ask.topic.count("`") % 2 or ask.topic.count('"') % 2 or ask.topic.count("“") != ask.topic.count("”"):
        return False
    topic_words = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in topic_words]
    least = 1 if re.match(r"What (?:is|are) ", ask.topic) and max(map(len, topic_words), default=0) > 3 else 2
    enough = 1 if ask.rule == "condition_do" else 2
    least = 1 if ask.rule == "condition_do" else least
    return len(topic_words) >= least and (ask.rule in ("avoid", "bare") or len(fresh) >= enough)


def forms_of(front: Front, vocabulary: Collection[str]) -> Iterator[Ask]:
    """Yield every question of a sentence, the surest first."""
    yield from ask_avoid(front.main)
    yield from ask_impersonal(front.main)
    clause = parse_clause(front.main, vocabulary)
    loose = clause or parse_clause(front.main, vocabulary, partly=True)
    if loose is None or loose.verb not in REFERRING_VERBS or loose.kind != "command":
        yield from ask_condition(front, loose)
        yield from ask_purpose(front, loose)
        yield from ask_means(front)
    if clause is None or front.kind not in ("", "place") or pointing(clause) or clause.verb in REFERRING_VERBS:
        return
    yield from ask_predicate(clause, decapitalise(front.text, vocabulary) if front.kind == "place" else "")


def ask_avoid(text: str) -> Iterator[Ask]:
    """Yield the question of "Do not open the lid" and "Avoid opening the lid"."""
    match = re.fullmatch(r"(?:do not|don['’]t|never) (?P<rest>.+)", text, re.I)
    if match is None or HANGING.match(match["rest"]) or re.match(r"(?:hesitate|worry|forget|panic|be )", match["rest"]):
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
    if clause.auxiliary == "should" and SEES.match(clause.verb):
        return False
    has_to = clause.lemma in ("need", "have") and bool(clause.phrases) and clause.phrases[0].first == "to"
    advising = clause.auxiliary in ("can", "should", "must", "may") or has_to
    return personal(clause) and advising and clause.kind in ("verb", "passive")


def ask_condition(front: Front, clause: Clause | None) -> Iterator[Ask]:
    """Yield "What happens if …?", what to do, or what to know, for a condition in front or at the end."""
    condition = front.text if front.kind == "condition" else condition_behind(clause) if clause else ""
    words = condition.lower().split()
    if (
        not 3 <= len(words) <= LONGEST_CONDITION
        or hangs_outside(condition)
        or words[0] in ("while", "until", "even")
        or words[-1] == "that"
        or POINTS.search(front.main)
    ):
        return
    if clause and pointing(clause) and front.kind != "condition":
        return  # what a pronoun behind "if" means is in the condition
    condition = condition[0].lower() + condition[1:]
    advice = instructs(front.main) or bool(clause and is_advice(clause))
    shape = read(condition).shape
    if words[1].endswith("ing") and shape[1:2] in ("G", "g", "n"):
        if not advice or words[0] in ("unless", "once"):
            return
        if words[0] in ("if", "when") and words[1] in ("using", "running"):
            condition = f"{words[0]} you are {condition.partition(' ')[2]}"
    elif re.match("[CQ][GN]", shape) or not (re.search(rf"[{FINITE}]", shape) or any(map(may_be_verb, words[2:5]))):
        return
    if OWN.search(condition) or UNSURE.match(condition) or NO_ADVICE.match(front.main):
        return  # what happens to the writer
    if front.kind != "condition" and (clause is None or clause.kind == "be"):
        return
    yield from ask_for_condition(condition, front, clause, advice=advice)


def hangs_outside(condition: str) -> bool:
    """Whether a condition needs the text before it; what a pronoun behind one of its own nouns means is in it."""
    bare = OWN_PRONOUN.sub("", condition)
    first = OWN_PRONOUN.search(condition)
    noun = first is None or "n" in read(condition[: first.start()]).shape
    return hangs(bare) or hangs(" ".join(condition.split()[1:3])) or not noun


def ask_for_condition(condition: str, front: Front, clause: Clause | None, *, advice: bool) -> Iterator[Ask]:
    """Yield the question for a condition by what its main clause says."""
    first = condition.partition(" ")[0]
    obliged = OBLIGED.match(front.main)
    passive = clause is not None and clause.kind == "passive" and clause.verb.startswith("be ")
    if advice and PERMITTED.match(front.main):
        yield Ask("bare", f"What can you do {condition}?")
    elif advice:
        yield Ask("condition_do", condition)
    elif clause and passive and clause.auxiliary in ("should", "must"):
        yield Ask("bare", f"What {clause.auxiliary} be done {condition}?")
    elif obliged and FOLLOWING.match(obliged["subject"]):
        yield Ask("bare", f"What should happen {condition}?")
    elif obliged:
        yield Ask("bare", f"What {obliged['modal']} {obliged['subject']} do {condition}?")
    elif (clause and passive and clause.auxiliary == "can" and condition.split()[1] == "you") or (
        WISH.search(condition) and not (clause and clause.negative)
    ):
        yield Ask("condition_do", condition)
    elif (
        first not in ("before", "unless")
        and not PAST.search(condition)
        and not (STATE.match(front.main) or (clause and clause.kind == "be"))
    ):
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
    if re.search(r"\bonly\b", clause.reading.words(0, last.start)):
        return ""
    joined = clause.reading.lower(last.start - 1) in ("only", "even", "or", "and", "as", "just")
    whole = last.end == len(clause.reading.tokens) and len(last.text.split()) <= LONGEST_TAIL
    return last.text if whole and not joined else ""


def ask_means(front: Front) -> Iterator[Ask]:
    """Yield "How do you …?" for "You can … by doing something" and for the same as a command."""
    match = MEANS.match(front.main)
    if match is None or front.kind == "purpose" or not instructs(front.main) or ALSO.match(front.main):
        return
    goal = LIGHT_ADVERB.sub("", match["goal"][0].lower() + match["goal"][1:])
    last = read(goal).shape[-1:]
    if (
        hangs(goal)
        or len(content_words(goal)) < 2
        or last in tuple("rotcdCTQ")
        or goal.split()[0] in NO_MEANS
        or re.match(r"[a-z]*(?:['’]|ed\b)", goal)
        or NO_GOAL.match(goal)
    ):
        return
    yield Ask("purpose", goal)


def ask_purpose(front: Front, clause: Clause | None) -> Iterator[Ask]:
    """Yield "How do you …?" for advice with a purpose, and "What does X do to …?" for a report with one."""
    goal = front.text if front.kind == "purpose" else ""
    advice = (bool(goal) and instructs(front.main)) or bool(clause and is_advice(clause))
    if not goal and clause and advice and not clause.negative:
        goal = goal_behind(clause)
    if not goal or hangs(f"to {goal}") or hangs(goal) or len(content_words(goal)) < 2 or NO_GOAL.match(goal):
        return
    if read(goal).shape[-1:] in ("I", "v", "B", "H", "r", "o"):
        return  # its object is cut off: "the code that you need to copy"
    if advice:
        yield Ask("purpose", goal)
    elif clause is None or clause.negative or pointing(clause) or clause.kind == "be":
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
