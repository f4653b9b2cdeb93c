"""German main clauses cut at their finite verb by the tags of their words; None where that is not certain.

A German statement has one phrase before its finite verb and the rest of the verb at its end: "Über den Knopf | kann |
der Text | gespeichert werden". A question moves the phrase that answers it away and leaves all others as they are, so
no word has to be inflected: "Wie | kann | der Text | gespeichert werden?".
`accusative` gives a noun phrase as "über" and "für" want it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from trainyard.data.extractive import sentences
from trainyard.data.extractive.tagging import MEMORY, Token, base_form, load_tagger, tag_sentence
from trainyard.data.language import GERMAN

FINITE = ("VV(FIN)", "VA(FIN)", "VM(FIN)", "VV(IMP)", "VA(IMP)")
NOUNS = ("NN", "NE", "NNI", "NNA", "FM", "XY")
DETERMINERS = ("ART", "PIAT", "PPOSAT", "PDAT", "CARD")
PREPOSITIONS = ("APPR", "APPRART")
ENDS = ("PTKVZ", "VV(PP)", "VA(PP)", "VM(PP)", "VV(INF)", "VA(INF)", "VM(INF)", "VV(IZU)", "PTKZU")
"""Tags of the words that may end a clause as the rest of its verb."""
SUBORDINATE = ("KOUS", "PRELS", "PRELAT", "KOUI", "PWS", "PWAV", "PWAT")
QUOTES = "„“”\"'‚‘«»"
LONGEST_FRONT = 16
WEAK = re.compile(
    r"(?:[^i]e|ant|[^e]ist|(?:[Ss]tud|[Dd]oz|[Pp]ati|präsid|[Aa]bsolv|[Kk]onsum|[Aa]ssist|[Aa]g|[Aa]bonn)ent|Herr|Mensch)$"
)
"""Endings of masculine nouns that have "-n" or "-en" in the accusative."""
FIRST_PERSON = {
    "ist": "ist", "sind": "bin", "bist": "bin", "hast": "habe", "haben": "habe", "werden": "werde", "wirst": "werde",
    "können": "kann", "kannst": "kann", "könnt": "kann", "müssen": "muss", "musst": "muss", "müsst": "muss",
    "dürfen": "darf", "darfst": "darf", "sollen": "soll", "sollst": "soll", "sollten": "sollte", "solltest": "sollte",
    "wollen": "will", "willst": "will", "möchten": "möchte", "möchtest": "möchte", "könnten": "könnte",
    "könntest": "könnte", "wissen": "weiß", "weißt": "weiß", "müssten": "müsste", "müsstest": "müsste",
}  # fmt: skip
"""Finite verb of "Sie" or "du" -> that of "ich", where it is irregular."""
ASKERS_WORDS = {"sich": "mich", "dich": "mich", "Ihnen": "mir", "dir": "mir", "Sie": "ich", "du": "ich", "Du": "ich"}
POSSESSIVE = re.compile(r"(?:Ihr|[Dd]ein)(e|en|em|er|es)?")


class Constituent(NamedTuple):
    """A phrase of a clause. `kind` is NP, PP, ADV or PRON."""

    kind: str
    tokens: tuple[Token, ...]

    @property
    def head(self) -> Token | None:
        """Return the first noun."""
        return next((token for token in self.tokens if token.tag in NOUNS), None)


class MainClause(NamedTuple):
    """A main clause: `front`, `verb`, `middle`, `end` (rest of the verb) and `after` (all that follows)."""

    text: str
    front: tuple[Token, ...]
    verb: Token
    middle: tuple[Constituent, ...]
    end: tuple[Token, ...]
    after: tuple[Token, ...]

    @property
    def kind(self) -> str:
        """Return the kind of the front: NP, PP, ADV, PRON, CLAUSE, or an empty string for a command."""
        return kind_of_front(self.front)

    def words(self, tokens: Sequence[Token]) -> str:
        """Return the text of neighbouring tokens."""
        return self.text[tokens[0].start : tokens[-1].end] if tokens else ""

    @property
    def is_for_reader(self) -> bool:
        """Whether the reader does what the clause says: a command, "Sie" or "du"."""
        pronoun = self.pronoun
        if self.kind == "" or pronoun is None:
            return self.kind == ""
        if pronoun.text == "Sie" and self.kind == "PRON":  # may be a third person
            return self.verb.tag == "VM(FIN)" or base_form(self.verb.text, "VV(FIN)", GERMAN) in READERS_VERBS
        return pronoun.text in ("Sie", "du", "Du")

    @property
    def pronoun(self) -> Token | None:
        """Return the pronoun that is the subject."""
        if self.kind == "PRON":
            return self.front[0]
        first = self.middle[0] if self.middle else None
        if first and first.kind == "PRON" and first.tokens[0].text in SUBJECT_PRONOUNS:
            return first.tokens[0]
        return None


READERS_VERBS = (
    "finden", "erhalten", "sehen", "benötigen", "brauchen", "gelangen", "klicken", "öffnen", "geben", "wählen", "melden"
)  # fmt: skip
"""Verbs whose subject "Sie" at the start of a sentence is the reader."""
SUBJECT_PRONOUNS = ("Sie", "du", "man", "wir", "ich", "es", "er", "sie", "ihr", "dies", "das")


def kind_of_front(front: Sequence[Token]) -> str:
    if not front:
        return ""
    tag = front[0].tag
    if tag in ("KOUS", "KOUI", *FINITE) or any(token.tag in ("VV(IZU)", "PTKZU") for token in front):
        return "CLAUSE"
    if len(front) == 1 and tag in ("PPER", "PIS", "PDS"):
        return "PRON"
    if tag in PREPOSITIONS:
        return "PP"
    if tag in (*DETERMINERS, *NOUNS, "ADJ(A)", "$(") and any(token.tag in NOUNS for token in front):
        return "NP"
    return "ADV"


@lru_cache(maxsize=MEMORY)
def parse_clause(text: str) -> MainClause | None:
    """Cut a sentence without its final mark at the finite verb of its main clause."""
    tokens = tag_sentence(text, GERMAN)
    index = find_verb(tokens)
    if index is None or len(sentences.sentences(re.sub(r"[“”\"](?=[.!?] )", "", text))) > 1:
        return None
    front, verb = tokens[:index], tokens[index]
    while kind_of_front(front) == "CLAUSE" and front[-1].text in (",", "so", "dann"):
        front = front[:-1]
    if front and front[-1].text == ",":
        front = front[:-1]
    if not is_one_phrase(front):
        return None
    rest = with_participles(tokens[index + 1 :], verb)
    size = main_length(rest, verb)
    main, after = rest[:size], rest[size:]
    first, last = find_end(main, verb)
    if (verb.tag.startswith("VM") or verb.text.startswith("würd")) and first == last:
        return None
    middle = split_phrases(main[:first])
    if middle is None:
        return None
    clause = MainClause(text, front, verb, middle, main[first:last], main[last:] + after)
    return None if lacks_subject(clause) or is_instruction_phrase(clause) else clause


def is_instruction_phrase(clause: MainClause) -> bool:
    """Whether a singular noun without an article is before a plural verb: "Vorlage bearbeiten und starten"."""
    if clause.kind != "NP" or len(clause.front) != 1 or not clause.verb.text.endswith("en"):
        return False
    noun = clause.front[0]
    return noun.tag == "NN" and clause.verb.tag.startswith("VV") and base_form(noun.text, "NN", GERMAN) == noun.text


def with_participles(tokens: Sequence[Token], verb: Token) -> tuple[Token, ...]:
    """Return the tokens after a finite verb with participles that look like a finite verb: "wird … ergänzt"."""
    if not verb.tag.startswith(("VA", "VM")):
        return tuple(tokens)
    end = next((index for index, token in enumerate(tokens) if token.tag in ("KON", "$,", "$(")), len(tokens))
    return tuple(
        token._replace(tag="VV(PP)") if index < end and token.tag == "VV(FIN)" and token.text.endswith("t") else token
        for index, token in enumerate(tokens)
    )


def lacks_subject(clause: MainClause) -> bool:
    """Whether a verb in the second person has no "du"."""
    if clause.kind == "" or clause.pronoun or not clause.verb.tag.startswith("VV") or clause.verb.text[-2:] != "st":
        return False
    stem = base_form(clause.verb.text, "VV(FIN)", GERMAN).removesuffix("n").removesuffix("e")
    return clause.verb.text in (f"{stem}st", f"{stem}est") and not stem.endswith(("s", "ß", "z", "x"))


def find_verb(tokens: Sequence[Token]) -> int | None:
    """Return the place of the finite verb of the main clause."""
    external = sum(token.tag == "FM" for token in tokens)
    if not tokens or tokens[0].tag in ("KON", "PWS", "PWAV", "PWAT") or external * 2 > len(tokens):
        return None
    if is_command(tokens):
        return 0
    if tokens[0].tag in ("KOUS", "KOUI", *FINITE) or opens_infinitive(tokens):
        return find_after_clause(tokens)
    return find_second(tokens)


def find_after_clause(tokens: Sequence[Token]) -> int | None:
    """Return the place of the finite verb after a first clause: "Wenn …, (so) wird …"."""
    for comma, token in enumerate(tokens):
        index = comma + 1
        if token.text != ",":
            continue
        while index < len(tokens) and tokens[index].text in ("so", "dann"):
            index += 1
        if index < len(tokens) and (is_finite(tokens, index) or is_small_command(tokens, index)):
            return index
        if tokens[comma + 1 : comma + 2] and tokens[comma + 1].tag not in SUBORDINATE:
            return None
    return None


def find_second(tokens: Sequence[Token]) -> int | None:
    """Return the place of the finite verb after a first phrase."""
    index = 0
    while index < min(len(tokens), LONGEST_FRONT):
        token = tokens[index]
        if index and is_finite(tokens, index):
            return index
        following = tokens[index + 1 :]
        if token.text == "," and following[:1] and following[0].tag in (*SUBORDINATE, "APPR"):
            closing = next((here for here, later in enumerate(following) if later.text == ","), None)
            if closing is None or following[0].tag in ("KOUS", "KOUI"):
                return None
            index += closing + 1
        elif token.text in (":", ";", "–", "—") or token.tag in ("PTKVZ", "KOUS", "PRELS"):
            return None
        index += 1
    return None


def opens_infinitive(tokens: Sequence[Token]) -> bool:
    """Whether a sentence begins with "Um … zu …,"."""
    if tokens[0].text != "Um":
        return False
    comma = next((here for here, token in enumerate(tokens) if token.text == ","), 0)
    return any(token.tag in ("VV(IZU)", "PTKZU") for token in tokens[:comma])


def is_small_command(tokens: Sequence[Token], index: int) -> bool:
    """Whether a word with a small letter is an imperative that looks like a noun: "wende dich"."""
    token, following = tokens[index], tokens[index + 1 : index + 2]
    return token.tag == "NN" and token.text.islower() and bool(following) and following[0].tag in ("PPER", "PRF")


def is_finite(tokens: Sequence[Token], index: int) -> bool:
    tag = tokens[index].tag
    if tag in FINITE:
        return True
    # A plural form looks like an infinitive.
    following = tokens[index + 1 : index + 2]
    return tag in ("VV(INF)", "VA(INF)") and not any(token.tag in FINITE for token in tokens[index + 1 :]) and (
        bool(following) and following[0].tag not in ("$,", "$.", "KON")
    )  # fmt: skip


def is_command(tokens: Sequence[Token]) -> bool:
    """Whether a sentence begins with an imperative: "Klicken Sie", "Klicke auf"."""
    if len(tokens) < 3:
        return False
    first, second = tokens[0], tokens[1]
    if second.text == "Sie" and first.text.endswith("n"):
        return first.tag.startswith(("VV", "VA", "NN"))
    if first.tag in ("VV(IMP)", "VA(IMP)"):
        return True
    if first.tag == "VV(FIN)" and second.tag not in ("PPER", "PIS"):
        return not first.text.endswith(("t", "en"))
    bare_noun = first.tag in ("NN", "NE") and re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]{2,}e", first.text)
    if not bare_noun or second.tag not in (*PREPOSITIONS, "PRF", "PPER", "PROAV", "ADV", "ART", "PPOSAT"):
        return False
    comma = next((here for here, token in enumerate(tokens) if token.tag == "$,"), len(tokens))
    verbs = [here for here in range(1, comma) if tokens[here].tag in FINITE and tokens[here - 1].tag != "KON"]
    return not verbs and is_verb_form(first.text)


def is_verb_form(word: str) -> bool:
    tags = {str(tag) for tag, _ in load_tagger(GERMAN).tag_word(word.lower())}
    return bool(tags & {"VV(FIN)", "VV(IMP)"})


def is_one_phrase(front: Sequence[Token]) -> bool:
    """Whether what is before the verb can be a single phrase."""
    if any(token.text in (":", ";", "(", ")") for token in front):
        return False
    if kind_of_front(front) != "NP":
        return True
    seen_noun = False
    for index, token in enumerate(front):
        if token.tag in ("PPER", "PRF", "PTKVZ", "PTKNEG", "KOUS"):
            return False
        if seen_noun and token.tag == "ART" and token.text[:1].isupper():
            return False
        if seen_noun and token.tag in ("ADV", "ADJ(D)") and index + 1 == len(front):
            return False
        seen_noun = seen_noun or token.tag in NOUNS
    return True


def main_length(tokens: Sequence[Token], verb: Token) -> int:
    """Return the number of tokens after the verb that belong to its clause."""
    for index, token in enumerate(tokens):
        if token.text in (":", ";", "–", "—", "(", "-") or token.tag in ("KOUS", "KOUI"):
            return index
        if token.text == "," and not is_enumeration(tokens, index):
            return index
        if token.tag == "KON" and index:
            closed = tokens[index - 1].tag in ENDS and tokens[index - 1].tag != "VV(PP)"
            comma = next((here for here in range(index, len(tokens)) if tokens[here].text == ","), len(tokens))
            if closed or any(later.tag in FINITE for later in tokens[index + 1 : comma]):
                return index
    return len(tokens)


def is_enumeration(tokens: Sequence[Token], index: int) -> bool:
    """Whether a comma is between nouns or adjectives: "Namen, Orte und Zeiten"."""
    following = tokens[index + 1 : index + 3]
    if not following or following[0].tag in (*SUBORDINATE, "KON", *FINITE):
        return False
    if following[0].tag == "APPR" and following[1:] and following[1].tag in ("PRELS", "PRELAT"):
        return False
    ahead: list[Token] = []
    for token in tokens[index + 1 :]:
        if token.text in (",", ";", ":"):
            break
        ahead.append(token)
    if any(token.tag in ("VV(IZU)", "PTKZU", "VM(INF)", "VA(INF)", *FINITE) for token in ahead):
        return False
    return any(token.tag == "KON" for token in tokens[index + 1 :]) and following[0].tag in (
        *NOUNS, *DETERMINERS, "ADJ(A)", "ADJ(D)", *PREPOSITIONS, "TRUNC",
    )  # fmt: skip


def find_end(main: Sequence[Token], verb: Token) -> tuple[int, int]:
    """Return where the rest of the verb begins and ends in the tokens after the finite verb."""
    helps = verb.tag.startswith(("VM", "VA"))
    last = len(main)
    indices = [
        index
        for index, token in enumerate(main)
        if token.tag in ENDS or (helps and token.tag == "VV(FIN)" and index + 1 == last)
    ]
    if not indices:
        return last, last
    end = indices[-1] + 1
    begin = end - 1
    while begin and begin - 1 in indices:
        begin -= 1
    return begin, end


def split_phrases(tokens: Sequence[Token]) -> tuple[Constituent, ...] | None:
    """Cut the middle of a clause into phrases; None where a word does not fit."""
    phrases: list[Constituent] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.tag in FINITE:
            return None
        if token.tag in ("PPER", "PRF") or (token.tag in ("PIS", "PDS") and token.text in ("man", "dies", "das")):
            kind, end = "PRON", index + 1
        elif token.tag in PREPOSITIONS:
            double = tokens[index + 1 : index + 2] and tokens[index + 1].tag in PREPOSITIONS  # "innerhalb von"
            kind, end = "PP", end_of_noun_phrase(tokens, index + 2 if double else index + 1)
        elif token.tag in (*DETERMINERS, *NOUNS, "ADJ(A)", "TRUNC") or token.text in QUOTES:
            kind, end = "NP", end_of_noun_phrase(tokens, index)
        else:
            kind, end = "ADV", index + 1
        end = max(end, index + 1)
        while kind in ("NP", "PP") and (joined := end_of_joined(tokens, end)) > end:
            end = joined
        phrases.append(Constituent(kind, tuple(tokens[index:end])))
        index = end
    return tuple(phrases)


def end_of_joined(tokens: Sequence[Token], index: int) -> int:
    """Return where a phrase ends that "oder", "sowie" or "wie" joins to the one before: "per Mail oder am Telefon"."""
    if index + 2 > len(tokens) or (
        tokens[index].tag not in ("KON", "KOKOM") and tokens[index].text not in ("wie", ",")
    ):
        return index
    following = tokens[index + 1]
    if following.tag in PREPOSITIONS:
        end = end_of_noun_phrase(tokens, index + 2)
        return end if end > index + 2 else index
    if following.tag in (*DETERMINERS, *NOUNS, "ADJ(A)", "TRUNC"):
        end = end_of_noun_phrase(tokens, index + 1)
        return end if end > index + 1 else index
    return index


def end_of_noun_phrase(tokens: Sequence[Token], index: int) -> int:
    """Return where the noun phrase that begins at `index` ends, with its genitives, "von" and what "und" joins."""
    start = index
    while index < len(tokens) and tokens[index].tag not in NOUNS:
        inside = tokens[index].tag in (*DETERMINERS, "ADJ(A)", "ADJ(D)", "ADV", "TRUNC", "KON", "$,", *PREPOSITIONS)
        if not inside and tokens[index].text not in QUOTES:
            return index
        if tokens[index].tag in PREPOSITIONS and not is_participle_phrase(tokens, index):
            return index
        if tokens[index].tag in PREPOSITIONS:
            index = end_of_noun_phrase(tokens, index + 1)
            continue
        index += 1
    while index < len(tokens) and (tokens[index].tag in NOUNS or tokens[index].text in QUOTES):
        index += 1
    if index > start and tokens[index : index + 1] and tokens[index].tag == "CARD":  # a version
        following = tokens[index + 1 : index + 2]
        index += not (following and following[0].tag in (*NOUNS, "ADJ(A)"))
    if index == start or index >= len(tokens):
        return index
    token, following = tokens[index], tokens[index + 1 : index + 2]
    starts = following and following[0].tag in (*DETERMINERS, *NOUNS, "ADJ(A)", "TRUNC")
    genitive = (
        (token.tag == "ART" and token.text in ("der", "des", "eines", "einer"))
        or (token.tag in ("PPOSAT", "PDAT") and token.text.endswith(("er", "es")))
    )  # fmt: skip
    if (genitive and starts) or token.text in ("von", "vom"):
        return end_of_noun_phrase(tokens, index + (token.tag in PREPOSITIONS))
    if starts and (token.tag == "KON" or token.text == ",") and token.text not in ("aber", "sondern", "denn"):
        return end_of_noun_phrase(tokens, index + 1)
    return index


def is_participle_phrase(tokens: Sequence[Token], index: int) -> bool:
    """Whether a preposition is inside of a noun phrase: "den in Klammern angegebenen Namen"."""
    before = tokens[index - 1].tag if index else ""
    if before not in DETERMINERS:
        return False
    later = [token.tag for token in tokens[index + 1 : index + 8]]
    return any(first == "ADJ(A)" and second in ("NN", "NE") for first, second in pairwise(later))


def first_person(verb: Token) -> str:
    """Return the form of a finite verb that follows "ich"."""
    if verb.text.lower() in FIRST_PERSON:
        return FIRST_PERSON[verb.text.lower()]
    infinitive = base_form(verb.text.lower(), "VV(FIN)", GERMAN)
    if infinitive.endswith("eln"):
        return f"{infinitive[:-3]}le"
    return infinitive[:-1] if infinitive.endswith("en") else f"{infinitive[:-1]}e"


def for_asker(text: str, *, reflexive: bool = True) -> str:
    """Return a text with "mein" in place of "Ihr", as the reader asks; `reflexive` makes "mich" of "sich", too."""
    words = re.split(r"(`[^`]*`|\W+)", text)
    return "".join(
        word
        if word == "sich" and not reflexive
        else ASKERS_WORDS.get(word, f"mein{match[1] or ''}" if (match := POSSESSIVE.fullmatch(word)) else word)
        for word in words
    )


def core_of(tokens: Sequence[Token], *, whole: bool = False) -> tuple[Token, ...]:
    """Return a noun phrase without its preposition, determiner and, unless `whole`, what follows its genitive."""
    start = 0
    for tags in (("ADV", "ADJ(D)", "KOKOM", "PTKA"), ("APPR", "APPRART"), DETERMINERS):
        while start < len(tokens) and tokens[start].tag in tags:
            start += 1
    end = start
    seen = False
    if whole:
        return tuple(tokens[start:])
    while end < len(tokens):
        token = tokens[end]
        genitive = token.tag == "ART" and token.text in ("der", "des", "eines", "einer")
        genitive = genitive or (token.tag == "ADJ(A)" and (tokens[end - 1].tag == "ART" or token.text.endswith("er")))
        if seen and not (token.tag in NOUNS or genitive):
            break
        if not seen and token.tag not in (*NOUNS, "ADJ(A)", "TRUNC", "ADV", "ADJ(D)") and token.text not in '„“"':
            break
        seen = seen or token.tag in NOUNS
        end += 1
    return tuple(tokens[start:end]) if seen else ()


def accusative(before: Sequence[Token], core: Sequence[Token], clause: MainClause, *, nominative: bool) -> str:
    """Return "den neuen Pfad" for "der neue Pfad"; empty where the gender or the case is not certain.

    `before` has the preposition and article, `core` the adjectives, the noun and what follows it.
    """
    head = next(index for index, token in enumerate(core) if token.tag in NOUNS)
    words = [token.text for token in core[:head]]
    if core[0].tag == "ADJ(A)":
        words[0] = words[0][0].lower() + words[0][1:]
    noun = clause.words(core[head:])
    if not before or before[-1].tag in ("PIAT", "CARD", "ADV", "ADJ(D)", "PTKA"):
        return without_article(before, words, core[head], noun, clause, nominative=nominative)
    article = before[-1].text.lower() if before[-1].tag == "ART" else ""
    if article in ("die", "das") or (article == "den" and not nominative):
        return " ".join([article, *words, noun])
    if article == "der" and nominative:
        tags = [token.tag for token in core[:head]]
        words = [
            f"{word}n" if tag == "ADJ(A)" and word[-2:] != "en" else word for word, tag in zip(words, tags, strict=True)
        ]
        if WEAK.search(core[head].text) and core[head].tag == "NN":
            noun = f"{core[head].text}{'n' if core[head].text.endswith('e') else 'en'}{noun[len(core[head].text) :]}"
        return " ".join(["den", *words, noun])
    return ""  # a dative or genitive, or "ein", which would ask for any of them


def without_article(
    before: Sequence[Token], words: list[str], head: Token, noun: str, clause: MainClause, *, nominative: bool
) -> str:
    """Return the accusative of "agile Teams" or "moderner Unterricht"."""
    endings = {word[-2:] for word in words}
    if before and before[-1].text.lower() == "jeder":
        return ""
    if head.tag == "NE" and not words and not before:
        return noun  # a name
    if endings == {"er"} and nominative and not before and not clause.verb.text.endswith("en"):
        return " ".join([*(f"{word[:-1]}n" for word in words), noun])
    finite = clause.verb.text
    plural = (
        finite == "sind" or (finite[-1] == "n" and finite != "kann")
        if nominative
        else base_form(head.text, "NN", GERMAN) != head.text
    )
    return " ".join([*words, noun]) if plural and not endings & {"er", "em", "en", "es"} else ""
