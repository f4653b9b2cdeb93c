"""Questions for English sentences: the question that a sentence answers, made of the sentence's own words.

No tagger and no model: a sentence is cut into subject, verb and rest by a list of common verbs (`lexicon.json`), and
left alone where that is not certain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from trainyard.data.extractive.clauses import (
    ADVERBS,
    AUXILIARIES,
    DETERMINERS,
    POINTING_SUBJECTS,
    PREPOSITIONS,
    PRONOUNS,
    RELATIVE,
    Clause,
    cut,
    decapitalise,
    first_word,
    join,
    noun_start,
    parse_clause,
    split_object,
)
from trainyard.data.extractive.lexicon import BASE, GERUNDS, PARTICIPLES, THIRD, word_set

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
CONDITION = re.compile(
    r"(?P<clause>(?:if|when|whenever|unless|once|in case|as soon as|as long as|even if|before|after) "
    r"[^,;:()]{6,110}), (?:then )?(?P<main>.+)",
    re.I,
)
CONDITION_LAST = re.compile(
    r"(?P<main>.{12,}?)(?<!as)(?<!or)(?<!and)(?<!only)(?<!that)(?<!even),? "
    r"(?P<clause>(?:if|when|whenever|unless|in case|as soon as|as long as) "
    r"[^,;:()]{6,110})"
)
PURPOSE = re.compile(r"(?:In order to|To) (?P<goal>(?P<verb>[a-z]+) [^,;:]{3,100}), (?P<main>.+)")
PURPOSE_LAST = re.compile(r"(?P<main>.{8,}?),? (?:in order )?to (?P<goal>(?P<verb>[a-z]+) [^,;:()]{3,100})")
BECAUSE = re.compile(r"(?P<main>.{12,}?),? because (?P<why>.{6,})")
CAUSE_FIRST = re.compile(r"(?:Because|Because of|Due to|Thanks to) (?P<why>[^,;:()]{6,110}), (?P<main>.+)")
MEANS = re.compile(r"(?P<main>.{10,}?),? by (?P<means>(?P<verb>[a-z]+ing) [^,;:()]{4,110})")
EFFECT = re.compile(r"(?P<main>.{12,}?),? so that (?P<why>[^,;:()]{8,110})")
UNASKED = re.compile(r"\w+ (?:and|or|so|not|however|possible|necessary|needed)\b|.* (?:one|so|it|them|that)$")
"""A condition that needs the text around it."""
IMPOSSIBLE = re.compile(r"(?:It|it) is (?:not |im)possible to (?P<goal>(?P<verb>[a-z]+) [^,;:()]{4,100})(?:[,;:(].*)?")
ELAPSED = re.compile(
    rf"(?:It|it) (?:(?:usually|typically|normally|can|may|will) )*takes? (?:up to |about |around |at least |between )?"
    rf"{NUMBER}(?:[- ](?:to |and )?{NUMBER})? {UNITS}(?: or more| or longer)? to "
    r"(?P<goal>(?P<verb>[a-z]+) [^,;:()]{4,100})"
)
COUNTED = re.compile(
    r"There are (?:about |over |at least |currently |only )?"
    r"(?:\d+|two|three|four|five|six|seven|eight|nine|ten|twelve) "
    r"(?P<things>[a-z][\w-]*(?: [\w-]+){1,7}?)(?: (?:that|which|who|you|we|to)\b.*|[:,;(].*)?"
)
LEADING = re.compile(
    r"(?P<place>(?:With|In|On|At|For|During|Within|From|Under|Through|As an?|By|Since|Until|Without|Unlike) "
    r"[^,;:()]{2,60}), (?P<main>(?!and |or |which |but ).+)"
)
OPENING = re.compile(
    r"(?:Please(?: do)?|Note that|Please note that|Remember that|Remember to|Make sure to|Make sure that|Be sure to|"
    r"Also|In general|Generally|Usually|Typically|By default|Optionally|Currently|Instead|Finally|Next|Then|First|"
    r"For example|For instance|In fact|In other words|In particular|In addition|In short|In practice|In most cases|"
    r"In some cases|In many cases|"
    r"As a result|At the moment|As always|However|Moreover|Furthermore|Therefore|Thus|Unfortunately|Fortunately|"
    r"Similarly|In this way|As such|Notably|Specifically|"
    r"Second|Lastly|Now|Additionally|Most often|Most importantly|Of course|Ideally|Otherwise|Alternatively)"
    r"(?:,)? (?=\S)"
)
NEGATIVE = re.compile(r"(?:do not|don['’]t|never|avoid) (?P<rest>.+)", re.I)
HANGING = re.compile(
    r"^(?:(?:if|when|whenever|unless|once|after|before|while|to \w+|that|even if|in case) )?"
    r"(?:it|its|this|that|these|those|they|them|their|he|she|so|such|one|there|not|no|any)\b",
    re.I,
)
DANGLING = re.compile(
    r"\b(?:this|these|those|them|such|the above|above(?! \w)|below(?! \w)|below in|above in|here|latter|"
    r"former|following|it|they|its|"
    r"their)\b",
    re.I,
)
"""A question with such a word needs the text around it."""
STOP_WORDS = word_set("en_stop_words")


INTENDING_VERBS = word_set("en_intending_verbs")
PERSONS = word_set("en_persons")
FOLLOWING = re.compile(r"(?:this|that|these|those|such|the same|it|they|he|she)\b", re.I)
DUTIES = ("required", "expected", "allowed", "permitted", "encouraged", "advised", "invited", "obliged")
EMBEDDING = re.compile(rf"\b(?:{'|'.join(sorted(word_set('en_embedding')))})(?: you| us)?$")
"""How a main clause ends whose "if" begins a question: "Let us know if …"."""
PERSON_NOUNS = word_set("en_person_nouns")
VAGUE_HEADS = word_set("en_generic")
POINTING_ADJECTIVES = word_set("en_pointing_adjectives")
"""Adjectives that make a noun depend on the text around it."""
VAGUE_SUBJECT = re.compile(
    r"^(?:even|some|many|most|several|other|another|both|few|either|neither|any|no|all|every|each|such|more|one|two|"
    r"three) |\b(?:and|or|this|that|these|those|it|they|you|we|I|their|its|your|our|same|other|here|itself)\b"
    r"|[,;:(\"“„]",
    re.I,
)
LONGEST_SUBJECT = 7
LEAST_PREDICATE = 3
"""Words that say something, behind the verb of a question for the subject."""
LONGEST_STATE = 10
"""Words of "is not …" that become a question."""
UNCERTAIN = re.compile(
    r"\b(?:until|unless|because|but|only|just|always|necessarily|yet|about|as|the same)\b|^(?:to|that|a|so|too|very) "
)
"""What makes the answer to a question with "is" more than yes or no."""
TWO_FACTS, THREE_FACTS = 10, 18
"""Words of a sentence that may answer two questions, or three."""


VERB = "|".join(sorted({*AUXILIARIES, *THIRD}))
POINTING_SUBJECT = re.compile(rf"(?:(?:It|They|He|She) (?=[a-z])|(?:This|These) (?=(?:{VERB})\b))")


class Ask(NamedTuple):
    """A question for a sentence. `topic` is what the rule's wordings need; `clause` is the question as a clause."""

    rule: str
    topic: str
    clause: str = ""


def content_words(text: str) -> list[str]:
    """The words of a text in small letters without stop words."""
    return [word for word in re.findall(r"[\w'’-]+", text.lower()) if word not in STOP_WORDS]


TO_DO_VERBS = word_set("en_to_do_verbs")
USE = re.compile(r"(?P<thing>(?!for |to )[^,;:()]{2,60}?) (?:to [a-z]{3,} |for ).{8,}")
KEEPING_VERBS = ("prevent", "stop", "keep", "protect")
ON_VERBS = ("depend", "rely", "focus", "run", "work", "build", "agree", "insist")
WEAK_VERBS = word_set("en_weak_verbs")
STATE_VERBS = word_set("en_state_verbs")
MOTION_VERBS = word_set("en_motion_verbs")
PLACED_VERBS = word_set("en_placed_verbs")
PLACED_PARTICIPLES = word_set("en_placed_participles")


def ask_english(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers: none, one, or two of a long sentence.

    `vocabulary` has the words that the document writes in small letters; `subject` replaces a pronoun at the start.
    """
    text = sentence.strip().rstrip(".!。").strip()
    text = re.sub(r"\s*\([^()]*\)$", "", re.sub(r",? for (?:example|instance)\b,?", "", text))
    text = re.sub(r"\b([Yy]ou|[Ww]e|[Tt]hey)['’]re\b", r"\1 are", text)
    text = re.sub(r"\b([Yy]ou|[Ww]e|[Tt]hey|[Ii]t)['’]ll\b", r"\1 will", text)
    while match := OPENING.match(text):
        text = text[match.end() :]
        text = text[:1].upper() + text[1:]
    if subject and (pronoun := POINTING_SUBJECT.match(text)):
        text = f"{subject[:1].upper()}{subject[1:]} {text[pronoun.end() :]}"
    found: list[Ask] = []
    length = len(sentence.split())
    most = 3 if length >= THREE_FACTS else 2 if length >= TWO_FACTS else 1
    for ask in forms_of(text, vocabulary):
        if ask.rule == "subject":
            if subject or FOLLOWING.match(text):
                continue
            ask = ask._replace(rule="bare")
        if len(found) < most and acceptable(ask, sentence) and not any(alike(ask, other) for other in found):
            found.append(ask)
    return found


def alike(first: Ask, second: Ask) -> bool:
    """Whether two questions of a sentence ask for the same."""
    one, two = set(content_words(first.topic)), set(content_words(second.topic))
    return first.rule == second.rule or len(one & two) * 2 > min(len(one), len(two))


def acceptable(ask: Ask, sentence: str) -> bool:
    """Whether a question can be read alone, and asks for something that it does not say itself."""
    shown = re.sub(r"`[^`]*`", "x", ask.topic)
    if DANGLING.search(shown) or len(ask.topic.split()) > 24 or ask.topic.count("(") != ask.topic.count(")"):
        return False
    if re.search(r"\b(?:below|above) listed\b|\b[Mm]ore (?:information|details)\b|\bgiven\b", shown):
        return False
    if re.search(r"\b(?:or|and)\W*$", shown):
        return False
    if re.search(r"\b(?:called|named|known|by \w+ing)\W*$| but |;", shown):
        return False
    if ask.topic.count("`") % 2 or ask.topic.count('"') % 2 or ask.topic.count("“") != ask.topic.count("”"):
        return False
    asked = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in asked]
    least = 1 if re.match(r"What (?:is|are) ", ask.topic) and max(map(len, asked), default=0) > 3 else 2
    enough = 1 if ask.rule == "condition_do" else 2
    return len(asked) >= least and (ask.rule in ("avoid", "bare") or len(fresh) >= enough)


def forms_of(text: str, vocabulary: Collection[str]) -> Iterator[Ask]:
    yield from negative_forms(text)
    yield from impersonal_forms(text)
    yield from conditions(text)
    yield from purposes(text, vocabulary)
    yield from cause_forms(text, vocabulary)
    place, main = "", text
    if match := LEADING.fullmatch(text):
        place, main = match["place"], match["main"]
    clause = parse_clause(main, vocabulary)
    if clause is None:
        return
    if match := BECAUSE.fullmatch(main):
        short = parse_clause(match["main"], vocabulary)
        if short and not short.negative and short.kind != "command":
            yield direct("Why", short, join(short.rest))
    where = decapitalise(place, vocabulary) if place else ""
    yield from clause_forms(clause, where)
    yield from subject_forms(clause, where)


def subject_forms(clause: Clause, where: str) -> Iterator[Ask]:
    """Yield the question for the subject: "Which flag sets the size?", "Who approves the request?"."""
    words = clause.subject.split()
    if clause.negative or clause.kind == "command" or clause.subject.lower() in (*PRONOUNS, *POINTING_SUBJECTS):
        return
    place = next((place for place, word in enumerate(words) if place and word.lower() in PREPOSITIONS), len(words))
    head, rest = words[place - 1], cut(clause.rest)
    state = clause.verb if clause.kind != "be" else first_word(rest)
    if clause.kind == "be" and not (state in PARTICIPLES or state.endswith("ed")):
        return
    if clause.verb == "be" and not (first_word(rest) in PARTICIPLES or first_word(rest).endswith("ed")):
        return
    if len(words) > LONGEST_SUBJECT or VAGUE_SUBJECT.search(clause.subject) or first_word(words[0]) in GERUNDS:
        return
    if len(content_words(rest)) < LEAST_PREDICATE or words[0].lower().endswith("ing") or head.endswith(("ed", "ing")):
        return
    if rest.split()[-1].lower() in (*DETERMINERS, *PREPOSITIONS, "and", "or"):
        return
    predicate = join(clause.surface, rest, where)
    plural = clause.auxiliary in ("do", "are", "have", "were")
    if head.lower() in PERSON_NOUNS:
        if not plural:
            yield Ask("subject", f"Who {predicate}?")
    elif head.islower() and head.isalpha() and len(content_words(" ".join(words[:place]))) > 1:
        if head not in VAGUE_HEADS and head not in PARTICIPLES:
            yield Ask("subject", f"Which {head} {predicate}?")
    elif head[0] == head[-1] == "`" and len(words) == 1 and not plural:
        yield Ask("subject", f"What {predicate}?")


def negative_forms(text: str) -> Iterator[Ask]:
    if (match := NEGATIVE.fullmatch(text)) and not HANGING.match(match["rest"]):
        rest = cut(match["rest"])
        if text.lower().startswith("avoid") and (verb := GERUNDS.get(first_word(rest))):
            rest = f"{verb} {rest.partition(' ')[2]}"
        if rest.split()[0].lower() in BASE and len(rest.split()) > 2:
            yield Ask("avoid", rest)


def impersonal_forms(text: str) -> Iterator[Ask]:
    """Yield the questions for "It is not possible to …", "It takes two days to …" and "There are three kinds of …"."""
    if (match := IMPOSSIBLE.fullmatch(text)) and match["verb"] in BASE:
        yield Ask("bare", f"Is it possible to {match['goal']}?")
    elif (match := ELAPSED.fullmatch(text)) and match["verb"] in BASE:
        yield Ask("named", f"How long does it take to {match['goal']}?", f"how long it takes to {match['goal']}")
    elif match := COUNTED.fullmatch(text):
        yield Ask("named", f"How many {match['things']} are there?", f"how many {match['things']} there are")


def cause_forms(text: str, vocabulary: Collection[str]) -> Iterator[Ask]:
    """Yield the question for a reason, an effect that is wanted, or a means."""
    for pattern, word in ((CAUSE_FIRST, "Why"), (EFFECT, "Why"), (MEANS, "How")):
        match = pattern.fullmatch(text)
        if match is None or (pattern is MEANS and match["verb"] not in GERUNDS):
            continue
        clause = parse_clause(match["main"], vocabulary)
        if clause is None or clause.negative or clause.subject.lower() in POINTING_SUBJECTS:
            continue
        if (clause.kind == "command" and pattern is CAUSE_FIRST) or "," in clause.rest:
            continue
        ask = direct(word, clause, cut(clause.rest))
        if cut(clause.rest) == clause.rest and not HANGING.match(clause.rest):
            yield ask


def conditions(text: str) -> Iterator[Ask]:
    match = CONDITION.fullmatch(text) or CONDITION_LAST.fullmatch(text)
    if match is None or UNASKED.match(match["clause"]) or HANGING.match(match["clause"]):
        return
    if len(match["main"].split()) < 3:
        return
    main, clause = match["main"], match["clause"][0].lower() + match["clause"][1:]
    using = re.match(r"(if|when) (using|running|working) ", clause)
    has_verb = using and re.search(r"\b(?:is|are|was|were|has|have|can|will)\b", clause)
    if using:
        clause = f"{using[1]} you are {clause[len(using[1]) + 1 :]}"
    if (
        has_verb
        or re.match(r"(?:before|after|while) (?:\w+ing|the|a|an|\w+ \w+)$", clause)
        or clause.split()[1].endswith("ed")
    ):
        return
    if re.match(r"\w+ \w+ing\b", clause) and not re.match(
        r"(?:you|we|it is (?:important|recommended|best|a good)|please|make sure|do not|be )", main, re.I
    ):
        return
    far = len(main.split()) > 15 and not match[0].lower().startswith(match["clause"].lower())
    if (
        EMBEDDING.search(main)
        or not any(
            word in AUXILIARIES or word in THIRD or word in BASE for word in re.findall(r"[\w'’]+", main.lower())
        )
        or re.match(r"(?:(?:when|if|whenever) |\d{4}\b)", main, re.I)
        or (far and clause.startswith("when"))
    ):
        return
    if len(re.findall(r"\b(?:we|you|i)\b", clause.lower())) > 1 and clause.startswith("when"):
        return
    wish = re.search(r"\byou (?:want|would like|need|wish|have to|are looking)\b|\byou['’]d like\b", clause)
    to_do = wish or re.match(
        r"(?:you|we) (?:can|could|should|must|need|have|may|might|will need|['’]ll need)\b", main, re.I
    )
    command = first_word(OPENING.sub("", main)) in (*BASE, "be") or re.match(
        r"(?:please|do not|don['’]t|never) ", main, re.I
    )
    yield Ask("condition_do" if to_do or command else "condition", clause)


def purposes(text: str, vocabulary: Collection[str]) -> Iterator[Ask]:
    if (match := PURPOSE.fullmatch(text)) and match["verb"] in BASE and not HANGING.match(match["goal"]):
        yield Ask("purpose", match["goal"])
        return
    match = PURPOSE_LAST.fullmatch(text)
    if match is None or match["verb"] not in BASE:
        return
    main = match["main"]
    using = re.match(
        r"(?:(?P<who>We|You|They) )?(?:(?:also|mainly|can|should|must|may|could|will|recommend|suggest) )*"
        r"(?P<use>use|using|click|press|run|type|visit|consult)\b", main, re.I,
    )  # fmt: skip
    if using and re.fullmatch(r"(?:use|using)", using["use"], re.I):
        if (using["who"] or "you").lower() == "we":
            yield Ask("named", f"What do we use to {match['goal']}?", f"what we use to {match['goal']}")
        else:
            yield Ask("purpose", match["goal"])
    elif using:
        yield Ask("purpose", match["goal"])


def direct(word: str, clause: Clause, rest: str) -> Ask:
    """A question with its clause form: "How often do we meet?" and "how often we meet"."""
    question = join(word, clause.auxiliary, clause.subject, clause.verb, rest)
    surface = clause.surface
    return Ask("named", f"{question}?", join(word[0].lower() + word[1:], clause.subject, surface, rest))


def clause_forms(clause: Clause, where: str) -> Iterator[Ask]:
    rest = cut(clause.rest) if clause.kind != "be" else clause.rest
    if clause.verb in ("either", "both", "neither"):
        return
    if clause.subject.lower() in POINTING_SUBJECTS:
        return
    if clause.negative:
        if clause.auxiliary == "might":
            return
        if clause.kind in ("modal", "verb", "have") or clause.auxiliary in ("do", "does", "did"):
            verb, after = clause.verb, rest
            if not HANGING.match(after) and len(after.split()) > 1:
                after = re.sub(r"^no ", "any ", after)
                yield Ask("bare", f"{join(clause.auxiliary.capitalize(), clause.subject, verb, after, where)}?")
        elif clause.kind == "be" and (state := cut(clause.rest)) and len(state.split()) <= LONGEST_STATE:
            vague = UNCERTAIN.search(clause.rest) or VAGUE_SUBJECT.search(clause.subject)
            if not vague and content_words(clause.subject) and not clause.rest.startswith("longer"):
                yield Ask("bare", f"{join(clause.auxiliary.capitalize(), clause.subject, state, where)}?")
        return
    short = cut(clause.rest)
    for pattern, word in ((FREQUENCY, "How often"), (DURATION, "How long"), (POINT, "When")):
        if match := pattern.search(short):
            before = short[: match.start()].strip()
            if (clause.kind == "be" and not before) or (
                before.split()[-1:] and before.split()[-1].lower() in PREPOSITIONS
            ):
                continue
            yield direct(word, clause, join(before, where))
            return
    if clause.kind == "be":
        yield from be_forms(clause, short, where)
    else:
        yield from verb_forms(clause, rest, where)


def be_forms(clause: Clause, rest: str, where: str) -> Iterator[Ask]:
    """Yield the question for what a subject is, or for what is done to it."""
    words = rest.split()
    while len(words) > 1 and words[0].lower() in ADVERBS:
        words = words[1:]
    vague = clause.subject.lower() in PRONOUNS or not content_words(clause.subject)
    if not words or vague or re.match(r"(?:all|some|most|many|each|one) of |(?:\w+ly )?\w+ing ", clause.subject):
        return
    named = content_words(clause.subject)
    if named[-1].removesuffix("s") in VAGUE_HEADS and (len(named) == 1 or named[0] in POINTING_ADJECTIVES):
        return
    first = words[0].lower()
    if first in DETERMINERS or first.strip('`"“')[:1].isdigit() or words[0][0] in '`"“':
        yield direct("What", clause._replace(rest=""), where)
    elif (first in PARTICIPLES or first.endswith("ed")) and len(words) > 2:
        shown = Clause(clause.subject, clause.auxiliary, first, "", f"{clause.auxiliary} {first}", False, "be")
        yield from passive_forms(shown, first, words, where)


def verb_forms(clause: Clause, rest: str, where: str) -> Iterator[Ask]:
    """Yield the question for what a verb needs: an amount, an infinitive, a preposition or an object."""
    words = rest.split()
    if not words:
        return
    verb, first = clause.verb.lower(), words[0].lower().strip('`"“')
    if verb == "use" and (match := USE.fullmatch(clause.rest)) and not HANGING.match(match["thing"]):
        yield direct("What", clause, join(match["thing"], "for", where))
    elif verb in ("cost", "weigh") and re.match(r"[\d$€£]|EUR|USD|about|up|at", rest):
        yield direct("How much", clause, where)
    elif verb in ("last", "take") and clause.subject.lower() not in PRONOUNS and re.search(rf"{NUMBER} {UNITS}", rest):
        yield direct("How long", clause, where)
    elif verb in INTENDING_VERBS and clause.kind != "command" and first == "to" and len(words) > 2:
        yield from infinitive_forms(clause, words, where)
    elif clause.kind == "modal" and verb == "be":
        if len(words) > 1 and (first in PARTICIPLES or first.endswith("ed")):
            shown = Clause(
                clause.subject, clause.auxiliary, f"be {first}", "", f"{clause.surface} {first}", False, "be"
            )
            yield from passive_forms(shown, first, words, where)
        elif (first in DETERMINERS or first[:1].isdigit()) and clause.auxiliary in ("should", "must"):
            yield direct("What", clause, where)
    elif first in ("when", "whether", "how", "where", "which") and clause.kind != "command" and clause.verb != "be":
        if clause.subject.lower() not in PRONOUNS:
            yield direct("What", clause, where)
    elif first in ("on", "to", "with", "from", "of", "for") and len(words) > 1 and words[1].lower() not in BASE:
        plain = (first != "on" or verb in ON_VERBS) and " that " not in rest
        if plain and clause.kind != "command" and clause.subject not in PRONOUNS:
            yield direct("What", clause, join(first, where))
    elif first in ("in", "at", "into", "inside") and len(words) > 1:
        if verb in PLACED_VERBS:
            yield direct("Where", clause, where)
    else:
        yield from object_forms(clause, rest, where)


def infinitive_forms(clause: Clause, words: list[str], where: str) -> Iterator[Ask]:
    """Yield the question for "needs to open the lid"."""
    inner = words[1].lower()
    obj, tail = split_object(" ".join(words[2:]))
    if inner in BASE and obj and noun_start(obj):
        whole = Clause(
            clause.subject, clause.auxiliary, f"{clause.verb} to {inner}", "", f"{clause.surface} to {inner}", False,
            "verb",
        )  # fmt: skip
        yield direct("What", whole, join(tail, where))


def passive_forms(clause: Clause, participle: str, words: list[str], where: str) -> Iterator[Ask]:
    """Yield the question for "is made of …" or "is kept in …"; `words` begins with the participle."""
    follow = words[1].lower()
    third = words[2].lower() if len(words) > 2 else ""
    if follow in ("through", "via", "using") or (follow == "by" and third in GERUNDS):
        yield direct("How", clause, where)
        return
    if follow in ("to", "with", "from", "as", "on", "by", "for", "of", "against") and third:
        if third not in (*BASE, "be", "have", "do"):
            yield direct("What", clause, join(follow, where))
        elif follow == "to" and participle in DUTIES and clause.auxiliary in ("is", "are", "was", "were"):
            doing = clause._replace(verb=f"{participle} to do", surface=f"{clause.auxiliary} {participle} to do")
            yield direct("What", doing, where)
    elif follow in ("in", "at", "inside", "into", "under") and participle in PLACED_PARTICIPLES:
        yield direct("Where", clause, where)


def object_forms(clause: Clause, rest: str, where: str) -> Iterator[Ask]:
    """Yield the question for the object of a verb, with what follows the object as its context."""
    verb = clause.verb.lower()
    obj, tail = split_object(re.split(r",? so (?:you|we|that|it|they|the)\b", rest)[0])
    short = clause.kind == "command" and len(content_words(obj)) < 2 and not re.search(r"[`\dA-Z]", obj)
    if short or (first_word(clause.subject) in GERUNDS and verb == "use"):
        return
    if not obj or not noun_start(obj) or re.match(r"\w+ \d", obj) or verb in WEAK_VERBS or first_word(obj) in GERUNDS:
        return
    if (
        obj.split()[-1].lower() in (*PREPOSITIONS, "such")
        or first_word(obj) in (*PERSONS, "to")
        or (len(tail.split()) > 1 and tail.split()[1].lower() in RELATIVE)
    ):
        return
    kept_from = re.match(r"(?:from|to be|to have)\b", tail) and verb in (*TO_DO_VERBS, *KEEPING_VERBS)
    of_object = verb in STATE_VERBS and first_word(tail) in ("for", "of", "with")
    if kept_from or of_object or first_word(tail) == "over" or (tail and tail.split()[-1].lower() in PREPOSITIONS):
        return
    to_do = tail.startswith("to ") and verb in TO_DO_VERBS and len(obj.split()) <= 5
    if tail.startswith("to ") and not to_do:
        goal = first_word(tail[3:]) in BASE
        if (goal and verb in STATE_VERBS) or (not goal and verb not in MOTION_VERBS):
            tail = ""
    if HANGING.match(tail) or (tail and len(tail.split()) < 2):
        tail = ""
    if to_do:
        yield direct("What", clause, join(obj, "to do", where))
    elif tail or where or (clause.kind != "command" and clause.subject not in PRONOUNS):
        yield direct("What", clause, join(tail, where))
