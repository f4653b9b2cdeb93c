"""Questions for English sentences: the question that a sentence answers, made of the sentence's own words.

No tagger and no model: a sentence is cut into subject, verb and rest by a list of common verbs (`lexicon.json`), and
left alone where that is not certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

LEXICON: dict[str, str] = json.loads(Path(__file__).with_name("lexicon.json").read_text(encoding="utf-8"))
BASE = frozenset(LEXICON["en_verbs"].split())
IRREGULAR = dict(entry.split(":") for entry in LEXICON["en_irregular"].split())
PARTICIPLES = frozenset(LEXICON["en_participles"].split())
BE = ("is", "are", "was", "were")
MODALS = ("can", "could", "may", "might", "must", "should", "shall", "will", "would")
HAVE = ("has", "have", "had")
AUXILIARIES = frozenset((*BE, *MODALS, *HAVE))
CONTRACTED = {
    "can't": "can", "cannot": "can", "won't": "will", "don't": "do", "doesn't": "does", "didn't": "did", "isn't": "is",
    "aren't": "are", "wasn't": "was", "weren't": "were", "shouldn't": "should", "couldn't": "could",
    "wouldn't": "would", "mustn't": "must", "hasn't": "has", "haven't": "have",
}  # fmt: skip
PRONOUNS = frozenset(("we", "you", "i"))
POINTING_SUBJECTS = frozenset(
    ["it", "they", "this", "these", "those", "that", "he", "she", "there", "here", "such", "one", "some", "others"]
)
DETERMINERS = frozenset(
    [
        "a",
        "an",
        "the",
        "my",
        "our",
        "your",
        "their",
        "his",
        "her",
        "its",
        "this",
        "that",
        "these",
        "those",
        "each",
        "every",
        "any",
        "some",
        "no",
        "all",
        "both",
        "many",
        "most",
        "several",
        "few",
        "either",
        "neither",
        "another",
        "other",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "more",
        "new",
        "old",
    ]
)
PREPOSITIONS = frozenset(
    [
        "about",
        "above",
        "across",
        "after",
        "against",
        "along",
        "among",
        "around",
        "as",
        "at",
        "before",
        "behind",
        "below",
        "beside",
        "between",
        "beyond",
        "by",
        "during",
        "except",
        "for",
        "from",
        "in",
        "inside",
        "into",
        "like",
        "near",
        "of",
        "off",
        "on",
        "onto",
        "over",
        "per",
        "since",
        "through",
        "throughout",
        "to",
        "toward",
        "towards",
        "under",
        "until",
        "up",
        "upon",
        "using",
        "via",
        "with",
        "within",
        "without",
    ]
)
TAILS = frozenset(
    [
        "about",
        "after",
        "against",
        "as",
        "at",
        "because",
        "before",
        "between",
        "by",
        "during",
        "for",
        "from",
        "if",
        "in",
        "inside",
        "instead",
        "into",
        "on",
        "onto",
        "over",
        "since",
        "through",
        "throughout",
        "to",
        "under",
        "unless",
        "until",
        "using",
        "via",
        "when",
        "whenever",
        "while",
        "with",
        "within",
        "without",
    ]
)
RELATIVE = frozenset(["that", "which", "who", "whom", "whose", "where", "what", "why", "how", "whether"])
ADVERBS = frozenset(
    [
        "also",
        "always",
        "often",
        "never",
        "only",
        "usually",
        "typically",
        "currently",
        "generally",
        "normally",
        "mainly",
        "mostly",
        "just",
        "still",
        "now",
        "already",
        "therefore",
        "then",
        "simply",
        "both",
        "even",
        "really",
        "automatically",
        "not",
        "please",
        "sometimes",
        "soon",
        "first",
    ]
)
UNITS = r"(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|business days?|working days?|cycles?)"
NUMBER = r"(?:\d[\d.,]*|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|several|a few)"
FREQUENCY = re.compile(
    rf"(?:,? )(?:(?:once|twice|{NUMBER} times) (?:a|an|per|every|each) \w+|every (?:{NUMBER} |second |third |other )?{UNITS}"
    rf"|(?:daily|weekly|monthly|quarterly|annually|yearly))$"
)
DURATION = re.compile(rf"(?: |^)for (?:up to |at least |at most |about |the first )?{NUMBER} {UNITS}$")
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
POINT = re.compile(
    rf"(?: |^)(?:within {NUMBER} {UNITS}\b.*|(?:after|before|in|by|until|since) (?:\d{{4}}|{NUMBER} {UNITS}\b.*)"
    rf"|(?:on|by|until|before|after) (?:{DAYS}|{MONTHS})\b.*|(?:at|by|before|after|until) \d{{1,2}}(?::\d\d)? ?(?:am|pm|o'clock)?\b.*"
    r"|(?:at|by|before|after) the (?:end|start|beginning) of .*)$"
)
CONDITION = re.compile(
    r"(?P<clause>(?:if|when|whenever|unless|once|in case|as soon as|as long as|even if|before|after) "
    r"[^,;:()]{6,110}), (?:then )?(?P<main>.+)",
    re.I,
)
CONDITION_LAST = re.compile(
    r"(?P<main>.{12,}?)(?<!as)(?<!or)(?<!and)(?<!only)(?<!that)(?<!even),? (?P<clause>(?:if|when|whenever|unless|in case|as soon as|as long as) "
    r"[^,;:()]{6,110})"
)
PURPOSE = re.compile(r"(?:In order to|To) (?P<goal>(?P<verb>[a-z]+) [^,;:]{3,100}), (?P<main>.+)")
PURPOSE_LAST = re.compile(r"(?P<main>.{8,}?),? (?:in order )?to (?P<goal>(?P<verb>[a-z]+) [^,;:()]{3,100})")
BECAUSE = re.compile(r"(?P<main>.{12,}?),? because (?P<why>.{6,})")
LEADING = re.compile(
    r"(?P<place>(?:With|In|On|At|For|During|Within|From|Under|Through|As an?|By|Since|Until|Without|Unlike) "
    r"[^,;:()]{2,60}), (?P<main>(?!and |or |which |but ).+)"
)
OPENING = re.compile(
    r"(?:Please(?: do)?|Note that|Please note that|Remember that|Remember to|Make sure to|Make sure that|Be sure to|"
    r"Also|In general|Generally|Usually|Typically|By default|Optionally|Currently|Instead|Finally|Next|Then|First|"
    r"For example|For instance|In fact|In other words|In particular|In addition|In short|In practice|In most cases|In some cases|In many cases|"
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
    r"\b(?:this|these|those|them|such|above|below|here|latter|former|following|it|they|its|their)\b", re.I
)
"""A question with such a word needs the text around it."""
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "and",
        "or",
        "but",
        "of",
        "to",
        "in",
        "on",
        "at",
        "for",
        "with",
        "by",
        "from",
        "as",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "being",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "you",
        "your",
        "we",
        "our",
        "us",
        "i",
        "my",
        "me",
        "they",
        "their",
        "them",
        "he",
        "she",
        "his",
        "her",
        "do",
        "does",
        "did",
        "can",
        "could",
        "may",
        "might",
        "must",
        "should",
        "shall",
        "will",
        "would",
        "has",
        "have",
        "had",
        "not",
        "no",
        "if",
        "when",
        "then",
        "than",
        "so",
        "such",
        "there",
        "here",
        "what",
        "which",
        "who",
        "how",
        "why",
        "where",
        "about",
        "into",
        "any",
        "all",
        "also",
        "only",
        "just",
        "more",
        "most",
        "some",
    ]
)


TWO_FACTS = 14
"""Words of a sentence that may answer two questions."""


class Ask(NamedTuple):
    """A question for a sentence. `topic` is what the rule's wordings need; `clause` is the question as a clause."""

    rule: str
    topic: str
    clause: str = ""


class Clause(NamedTuple):
    """Subject, verb and rest of a sentence. `auxiliary` is what a question begins with; `verb` follows the subject."""

    subject: str
    auxiliary: str
    verb: str
    rest: str
    surface: str
    """The verb as it stands in the sentence, the auxiliary included."""
    negative: bool
    kind: str
    """be, modal, have, verb or command."""


def content_words(text: str) -> list[str]:
    """The words of a text in small letters that are no stop words."""
    return [word for word in re.findall(r"[\w'’-]+", text.lower()) if word not in STOP_WORDS]


def third_forms() -> dict[str, str]:
    forms = {}
    for verb in BASE:
        if re.search(r"(?:s|x|z|ch|sh|o)$", verb):
            forms[f"{verb}es"] = verb
        elif re.search(r"[^aeiou]y$", verb):
            forms[f"{verb[:-1]}ies"] = verb
        else:
            forms[f"{verb}s"] = verb
    return forms | {"has": "have"}


THIRD = third_forms()
PAST = {
    (f"{verb}d" if verb.endswith("e") else f"{verb[:-1]}ied" if re.search(r"[^aeiou]y$", verb) else f"{verb}ed"): verb
    for verb in BASE
} | IRREGULAR


GERUNDS = {
    (f"{verb[:-1]}ing" if re.search(r"[^eo]e$", verb) else f"{verb}ing"): verb for verb in BASE
} | {"running": "run", "getting": "get", "setting": "set", "putting": "put", "stopping": "stop", "adding": "add"}
NOUN_PREPOSITIONS = {
    "to": frozenset("access change changes approach answer answers response responses link links limit addition right "
                    "rights reference references connection path key solution alternative guide similar update updates "
                    "adherence attention introduction relation".split()),
    "for": frozenset("support need request requests option options reason standard standards responsibility default "
                     "template templates place room rules tool tools limit format value values name".split()),
    "on": frozenset("guidance information advice impact focus policy policies limit details work".split()),
    "in": frozenset("change changes increase interest experience expertise role".split()),
    "with": frozenset("problem problems issue issues relationship conversation".split()),
    "from": frozenset("feedback help".split()),
}  # fmt: skip
"""Preposition -> nouns after which it belongs to the object."""
TO_DO_VERBS = frozenset("require allow enable ask tell want need help encourage cause force expect instruct remind".split())
WEAK_VERBS = frozenset("meet make get take give have do let keep put go come see be become seem try look work start".split())
HOLDING_VERBS = frozenset("contain include offer list hold mean show".split())
MOVING_VERBS = frozenset(
    "send add move copy upload push submit write connect apply assign attach post link migrate convert change set limit "
    "map bind deliver ship return report forward redirect save pass export import append pay transfer".split()
)
PLACED_VERBS = frozenset("live reside appear run happen work meet sit find occur store start end stay gather".split())
PLACED_PARTICIPLES = frozenset(
    "stored located found saved kept placed defined listed documented described installed published held shown "
    "displayed configured created deployed hosted recorded carried put set stated".split()
)


def ask_english(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers: none, one, or two of a long sentence.

    `vocabulary` has the words that the document writes in small letters; `subject` stands for a pronoun at the start.
    """
    text = sentence.strip().rstrip(".!。").strip()
    text = re.sub(r"\s*\([^()]*\)$", "", re.sub(r",? for (?:example|instance)\b,?", "", text))
    while match := OPENING.match(text):
        text = text[match.end() :]
        text = text[:1].upper() + text[1:]
    if subject and (pronoun := re.match(r"(?:It|They|This|These|He|She) (?=[a-z])", text)):
        text = f"{subject[:1].upper()}{subject[1:]} {text[pronoun.end() :]}"
    found: list[Ask] = []
    most = 2 if len(sentence.split()) >= TWO_FACTS else 1
    for ask in forms_of(text, vocabulary):
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
    if ask.topic.count("`") % 2 or ask.topic.count('"') % 2 or ask.topic.count("“") != ask.topic.count("”"):
        return False
    asked = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in asked]
    least = 1 if re.match(r"What (?:is|are) ", ask.topic) and max(map(len, asked), default=0) > 3 else 2
    return len(asked) >= least and (ask.rule in ("avoid", "bare") or len(fresh) >= 2)


def forms_of(text: str, vocabulary: Collection[str]) -> Iterator[Ask]:
    yield from negative_forms(text)
    yield from conditions(text)
    yield from purposes(text, vocabulary)
    place, main = "", text
    if match := LEADING.fullmatch(text):
        place, main = match["place"], match["main"]
    clause = parse_clause(main, vocabulary)
    if clause is None:
        return
    if match := BECAUSE.fullmatch(main):
        short = parse_clause(match["main"], vocabulary)
        if short and not short.negative and short.kind != "command":
            yield direct("Why", short, join(short.rest), "why")
    where = decapitalise(place, vocabulary) if place else ""
    yield from clause_forms(clause, where)


def negative_forms(text: str) -> Iterator[Ask]:
    if (match := NEGATIVE.fullmatch(text)) and not HANGING.match(match["rest"]):
        rest = cut(match["rest"])
        if text.lower().startswith("avoid") and (verb := GERUNDS.get(first_word(rest))):
            rest = f"{verb} {rest.partition(' ')[2]}"
        if rest.split()[0].lower() in BASE and len(rest.split()) > 2:
            yield Ask("avoid", rest)


def conditions(text: str) -> Iterator[Ask]:
    match = CONDITION.fullmatch(text) or CONDITION_LAST.fullmatch(text)
    if match and re.match(r"\w+ (?:and|or|so|not|possible|necessary|needed)\b", match["clause"]):
        return
    if match is None or HANGING.match(match["clause"]) or len(match["main"].split()) < 3:
        return
    clause = match["clause"][0].lower() + match["clause"][1:]
    if re.match(r"(?:before|after|while) (?:\w+ing|the|a|an|\w+ \w+)$", clause) or clause.split()[1].endswith("ed"):
        return
    main = match["main"]
    if re.match(r"\w+ \w+ing\b", clause) and not re.match(
        r"(?:you|we|it is (?:important|recommended|best|a good)|please|make sure|do not|be )", main, re.I
    ):
        return
    far = len(main.split()) > 15 and not match[0].lower().startswith(match["clause"].lower())
    if re.match(r"(?:when|if|whenever) ", main, re.I) or (far and clause.startswith("when")):
        return
    if len(re.findall(r"\b(?:we|you|i)\b", clause.lower())) > 1 and clause.startswith("when"):
        return
    wish = re.search(r"\byou (?:want|would like|need|wish|have to|are looking)\b|\byou['’]d like\b", clause)
    to_do = wish or re.match(r"(?:you|we) (?:can|could|should|must|need|have|may|might|will need|['’]ll need)\b", main, re.I)
    command = first_word(OPENING.sub("", main)) in (*BASE, "be") or re.match(r"(?:please|do not|don['’]t|never) ", main, re.I)
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


def parse_clause(text: str, vocabulary: Collection[str]) -> Clause | None:
    """Cut a sentence at its verb; None where that is not certain."""
    words = text.split()
    if not words or "not only" in text:
        return None
    first = words[0].lower()
    if first in BASE and len(words) > 2 and words[1].lower() not in AUXILIARIES and second_of_command(words):
        return Clause("you", "should", first, " ".join(words[1:]), f"should {first}", False, "command")
    if first in BASE and f"{first}s" not in AMBIGUOUS:
        return None
    for place, word in enumerate(words[1:13], 1):
        plain = word.lower().replace("’", "'")
        before, after = words[place - 1], words[place + 1 :]
        if before[-1:] in ",;:" or before.lower() in RELATIVE or plain in RELATIVE:
            return None
        subject = strip_adverbs(words[:place])
        if not subject or not noun_like(subject):
            continue
        if plain in CONTRACTED or plain in AUXILIARIES:
            return with_auxiliary(subject, plain, after, vocabulary)
        if plain in ("do", "does", "did") and after[:1] == ["not"]:
            return with_auxiliary(subject, plain, after, vocabulary)
        found = finite_verb(plain, subject, after)
        if found:
            auxiliary, verb = found
            return Clause(
                decapitalise(" ".join(subject), vocabulary), auxiliary, verb, " ".join(after), word, False, "verb"
            )
    return None


def second_of_command(words: list[str]) -> bool:
    """Whether a sentence that begins with a verb's base form is a command: "Open the lid", not "Access rights are"."""
    second = words[1].lower().strip("\"'`“,")
    if second in DETERMINERS or second in PREPOSITIONS or words[1][0] in '`"“' or second in ("sure", "out", "up"):
        return True
    verbs = [word for word in words[2:8] if word.lower() in AUXILIARIES or word.lower() in THIRD]
    return not verbs


def noun_like(subject: list[str]) -> bool:
    last = subject[-1].lower().strip("`\"”'")
    if any(word.lower() in PRONOUNS for word in subject[1:]):
        return False
    if len(subject) == 1 and last in PRONOUNS:
        return True
    if subject[0].lower() in POINTING_SUBJECTS and len(subject) == 1:
        return False
    if subject[0].lower() in (
        "if",
        "when",
        "while",
        "because",
        "although",
        "though",
        "and",
        "but",
        "or",
        "so",
        "to",
        "as",
        "with",
        "in",
        "for",
        "on",
        "at",
        "by",
        "from",
        "once",
        "after",
        "before",
        "there",
        "here",
        "how",
        "what",
        "why",
        "where",
        "unless",
        "until",
        "not",
        "since",
    ):
        return False
    return last not in DETERMINERS and last not in PREPOSITIONS and last not in ("and", "or", "to")


def strip_adverbs(words: list[str]) -> list[str]:
    while words and (words[-1].lower() in ADVERBS or (words[-1].endswith("ly") and len(words) > 1)):
        words = words[:-1]
    return words


def is_plural(subject: list[str]) -> bool:
    last = subject[-1].lower()
    head = [word for word in subject if word.lower() not in DETERMINERS][:1]
    if last in PRONOUNS or "and" in [word.lower() for word in subject]:
        return True
    for place, word in enumerate(subject):
        if word.lower() in PREPOSITIONS and place:
            last = subject[place - 1].lower()
            break
    return bool(head) and (last in ("people", "children", "data", "others") or bool(re.search(r"[^su]s$", last)))


AMBIGUOUS = frozenset(
    "access addresses answers backs bases blocks books builds calls causes changes charges checks claims clicks "
    "comments commits contacts controls copies costs covers deals defaults designs displays documents downloads drops "
    "edits emails ends exits exports extracts fields files fills filters fixes flags focuses forms formats groups hands "
    "helps hosts imports indexes inserts issues joins keys labels lasts launches leads limits links lists loads locks "
    "logs looks maps marks matches matters means measures moves names needs notes notices offers opens orders packages "
    "parses passes places plans points posts practices presents processes produces projects pulls queries ranges raises "
    "reads records releases replies reports requests resets restarts results returns reuses reviews rides runs scales "
    "schedules searches sections sees sends sets shares ships shows signs skips sorts speaks splits starts states stays "
    "steps stops stores streams supports switches talks targets tests tracks transfers tries turns types updates "
    "uploads uses values views visits waits watches works".split()
)
"""Forms that may be plural nouns."""


def is_followed_by_object(following: str, word: str) -> bool:
    """Whether the word after an ambiguous form shows that the form is a verb."""
    return following in DETERMINERS or following in ("that", "you", "us", "how", "what") or (
        word[:1] in "`\"“$€£" or word[:1].isdigit() or word[:1].isupper()
    )


def finite_verb(word: str, subject: list[str], after: list[str]) -> tuple[str, str] | None:
    """(auxiliary of the question, base form) of a word that is the verb of this subject; None if it is none."""
    following = after[0].lower().strip(',.`"') if after else ""
    if following in AUXILIARIES or (following in THIRD and following not in BASE):
        return None
    plural, pronoun = is_plural(subject), subject[-1].lower() in PRONOUNS
    sure = is_followed_by_object(following, after[0] if after else "")
    if word in THIRD and not plural and (sure or word not in AMBIGUOUS):
        return "does", THIRD[word]
    if word in BASE and (pronoun or plural) and following not in ("and", "or"):
        adverb = following in ADVERBS or following in PREPOSITIONS or following.endswith("-time")
        return ("do", word) if pronoun or sure or adverb or f"{word}s" not in AMBIGUOUS else None
    if word in PAST and following in DETERMINERS and word not in PARTICIPLES:
        return "did", PAST[word]
    return None


def with_auxiliary(subject: list[str], word: str, after: list[str], vocabulary: Collection[str]) -> Clause | None:
    negative = word in CONTRACTED or bool(after and after[0].lower() in ("not", "never", "no"))
    auxiliary = CONTRACTED.get(word, word)
    if after and after[0].lower() in ("not", "never"):
        after = after[1:]
    while len(after) > 1 and (after[0].lower() in ADVERBS or after[0].endswith("ly")) and auxiliary not in BE:
        after = after[1:]
    if not after:
        return None
    name = decapitalise(" ".join(subject), vocabulary)
    if auxiliary in BE:
        return Clause(name, auxiliary, "", " ".join(after), auxiliary, negative, "be")
    following = after[0].lower()
    participle = following in PARTICIPLES or following.endswith("ed")
    if auxiliary in HAVE and participle and len(after) > 1:
        second = after[1].lower()
        if following != "been" and second not in DETERMINERS and second not in PREPOSITIONS and second != "to":
            return None
    if auxiliary in HAVE and not participle:
        helper = {"has": "does", "have": "do", "had": "did"}[auxiliary]
        return Clause(name, helper, "have", " ".join(after), auxiliary, negative, "verb")
    kind = "have" if auxiliary in HAVE else "modal"
    return Clause(name, auxiliary, after[0], " ".join(after[1:]), f"{auxiliary} {after[0]}", negative, kind)


def cut(text: str) -> str:
    """A phrase up to its first comma, dash, colon or bracket outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    for place, part in enumerate(parts):
        if place % 2 == 0 and (match := re.search(r"[,;:(]|\s[–—-]\s|\.\s", part)):
            return "".join([*parts[:place], part[: match.start()]]).strip()
    return text.strip()


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def split_object(rest: str) -> tuple[str, str]:
    """(object, what follows it from its first preposition or conjunction on)."""
    rest = until_verb(rest)
    words = rest.split()
    for place, word in enumerate(words):
        plain = word.lower()
        if words[place - 1][-1:] in ",;:" and place:
            return " ".join(words[:place]), ""
        if plain in RELATIVE and place:
            return " ".join(words[:place]), ""
        if place and words[place - 1].lower() in NOUN_PREPOSITIONS.get(plain, ()) and place + 1 < len(words):
            if plain != "to" or words[place + 1].lower() not in BASE:
                continue
        if plain in TAILS:
            return " ".join(words[:place]), until_verb(cut(" ".join(words[place:])))
    return until_verb(rest), ""


def until_verb(text: str) -> str:
    """The text before an "and" or "or" that a further verb follows."""
    for match in re.finditer(r" (?:and|or) ([\w-]+)", text):
        if match[1].lower() in BASE or match[1].lower() in THIRD:
            return text[: match.start()]
    return text


def direct(word: str, clause: Clause, rest: str, form: str) -> Ask:
    """A question with its clause form: "How often do we meet?" and "how often we meet"."""
    question = join(word, clause.auxiliary, clause.subject, clause.verb, rest)
    surface = clause.surface
    return Ask("named", f"{question}?", join(word[0].lower() + word[1:], clause.subject, surface, rest))


def clause_forms(clause: Clause, where: str) -> Iterator[Ask]:
    rest = cut(clause.rest) if clause.kind != "be" else clause.rest
    if clause.subject.lower() in POINTING_SUBJECTS:
        return
    if clause.negative:
        if clause.kind in ("modal", "verb", "have") or clause.auxiliary in ("do", "does", "did"):
            verb, after = clause.verb, rest
            if not HANGING.match(after) and len(after.split()) > 1:
                after = re.sub(r"^no ", "any ", after)
                yield Ask("bare", f"{join(clause.auxiliary.capitalize(), clause.subject, verb, after, where)}?")
        return
    short = cut(clause.rest)
    for pattern, word in ((FREQUENCY, "How often"), (DURATION, "How long"), (POINT, "When")):
        if match := pattern.search(short):
            before = short[: match.start()].strip()
            if (clause.kind == "be" and not before) or before.split()[-1:] and before.split()[-1].lower() in PREPOSITIONS:
                continue
            yield direct(word, clause, join(before, where), "time")
            return
    if clause.kind == "be":
        yield from be_forms(clause, short, where)
    else:
        yield from verb_forms(clause, rest, where)


def be_forms(clause: Clause, rest: str, where: str) -> Iterator[Ask]:
    words = rest.split()
    if not words:
        return
    while len(words) > 1 and words[0].lower() in ADVERBS:
        words = words[1:]
    first = words[0].lower()
    subject_words = len(content_words(clause.subject))
    if clause.subject.lower() in PRONOUNS or not subject_words or re.match(r"(?:\w+ly )?\w+ing ", clause.subject):
        return
    if first in DETERMINERS or first.strip('`"“')[:1].isdigit() or words[0][0] in '`"“':
        yield direct("What", Clause(*clause[:3], "", *clause[4:]), where, "what")
    elif (first in PARTICIPLES or first.endswith("ed")) and len(words) > 2:
        follow = words[1].lower()
        if follow in ("to", "with", "from", "as", "on", "by", "for", "of", "against") and (
            words[2].lower() not in (*BASE, "be", "have", "do")
        ):
            shown = Clause(clause.subject, clause.auxiliary, first, "", f"{clause.auxiliary} {first}", False, "be")
            yield direct("What", shown, join(where, follow) if not where else join(follow, where), "what")
        elif follow in ("in", "at", "inside", "under", "into") and first in PLACED_PARTICIPLES:
            shown = Clause(clause.subject, clause.auxiliary, first, "", f"{clause.auxiliary} {first}", False, "be")
            yield direct("Where", shown, where, "where")
        elif follow == "to" and words[2].lower() in BASE:
            shown = Clause(
                clause.subject, clause.auxiliary, f"{first} to do", "", f"{clause.auxiliary} {first} to do", False, "be"
            )
            yield direct("What", shown, where, "what")


def verb_forms(clause: Clause, rest: str, where: str) -> Iterator[Ask]:
    words = rest.split()
    verb = clause.verb.lower()
    if not words:
        return
    first = words[0].lower().strip('`"“')
    if verb in ("cost", "weigh") and re.match(r"[\d$€£]|EUR|USD|about|up|at", rest):
        yield direct("How much", clause, where, "amount")
        return
    if verb in ("last", "take") and re.search(rf"{NUMBER} {UNITS}", rest):
        yield direct("How long", clause, where, "time")
        return
    if (
        verb in ("need", "want", "try", "have", "plan", "choose", "intend", "agree", "get", "wish")
        and first == "to"
        and len(words) > 2
    ):
        inner = words[1].lower()
        obj, tail = split_object(" ".join(words[2:]))
        if inner in BASE and obj and noun_start(obj):
            surface = f"{clause.surface} to {inner}"
            yield direct(
                "What",
                Clause(clause.subject, clause.auxiliary, f"{clause.verb} to {inner}", "", surface, False, "verb"),
                join(tail, where),
                "what",
            )
        return
    if clause.kind == "modal" and verb == "be":
        if len(words) > 1 and (first in PARTICIPLES or first.endswith("ed")):
            shown = Clause(
                clause.subject, clause.auxiliary, f"be {first}", "", f"{clause.surface} {first}", False, "be"
            )
            follow = words[1].lower()
            if (
                follow in ("to", "with", "from", "as", "on", "by", "for")
                and len(words) > 2
                and words[2].lower() not in BASE
            ):
                yield direct("What", shown, join(follow, where), "what")
            elif follow in ("in", "at", "inside", "into", "under") and first in PLACED_PARTICIPLES:
                yield direct("Where", shown, where, "where")
        return
    if first in ("on", "to", "with", "from", "of", "for") and len(words) > 1 and words[1].lower() not in BASE:
        if clause.kind == "command" or clause.subject in PRONOUNS:
            return
        yield direct("What", clause, join(first, where), "what")
        return
    if first in ("in", "at", "into", "inside") and len(words) > 1:
        if verb in PLACED_VERBS:
            yield direct("Where", clause, where, "where")
        return
    obj, tail = split_object(rest)
    if not obj or not noun_start(obj):
        return
    if len(tail.split()) > 1 and tail.split()[1].lower() in RELATIVE:
        return
    if first_word(obj) in ("ourselves", "yourself", "itself", "themselves"):
        return
    if tail.startswith("to "):
        goal = first_word(tail[3:]) in BASE
        if (goal and verb in HOLDING_VERBS) or (not goal and verb not in MOVING_VERBS):
            tail = ""
    if HANGING.match(tail) or (tail and len(tail.split()) < 2):
        tail = ""
    if not tail and not where and (clause.kind == "command" or clause.subject in PRONOUNS):
        yield Ask("weak", f"{join('What', clause.auxiliary, clause.subject, clause.verb)}?")
        return
    if re.match(r"(?:from|to be|to have)\b", tail) and verb in (*TO_DO_VERBS, "prevent", "stop", "keep", "protect"):
        return
    if tail.startswith("to ") and verb in TO_DO_VERBS and len(obj.split()) <= 5:
        yield direct("What", clause, join(obj, "to do", where), "what")
        return
    if obj.split()[0].lower() in ("you", "us", "me", "them", "users", "people", "one") or first_word(obj) in GERUNDS:
        return
    if verb in WEAK_VERBS:
        return
    yield direct("What", clause, join(tail, where), "what")


def noun_start(text: str) -> bool:
    """Whether a phrase begins like a thing and not like an adverb or a clause."""
    first = text.split(maxsplit=1)[0].lower().strip(",")
    if (
        first
        in (
            "it",
            "them",
            "so",
            "up",
            "out",
            "in",
            "off",
            "down",
            "away",
            "back",
            "more",
            "well",
            "not",
            "too",
            "how",
            "that",
            "what",
            "sure",
            "care",
            "place",
            "together",
            "better",
            "similar",
            "different",
        )
        or first in ADVERBS
    ):
        return False
    return not first.endswith("ly") and first not in PREPOSITIONS


def first_word(text: str) -> str:
    return text.split(maxsplit=1)[0].lower().strip(",") if text.split() else ""


def decapitalise(text: str, vocabulary: Collection[str]) -> str:
    """The text with a small first letter, unless its first word is a name."""
    first = text.split(maxsplit=1)[0] if text.split() else ""
    lower = first.lower()
    known = lower.removesuffix("s") in vocabulary or lower in GERUNDS or lower in DETERMINERS or lower in PREPOSITIONS or lower in ("we", "you", "everyone", "nobody", "anyone")
    if first != "I" and first[1:].islower() | (len(first) == 1) and (known or lower in vocabulary):
        return text[0].lower() + text[1:]
    return text
