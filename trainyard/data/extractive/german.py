"""Questions for German sentences, made of the sentence's own words.

A sentence is cut at its finite verb (`german_clauses`). The phrase that answers the question is left out, and a
question word takes its place at the front; a subordinate clause keeps its word order ("Was gilt, wenn …?"), and a
phrase with a preposition its case ("Was gilt bei …?"). The reader asks for themselves: "können Sie" becomes "kann ich".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from trainyard.data.extractive.clauses import join
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.german_clauses import (
    FINITE,
    SUBORDINATE,
    Constituent,
    MainClause,
    first_person,
    for_asker,
    parse_clause,
)
from trainyard.data.extractive.german_questions import (
    LIGHT_VERBS,
    POINTING,
    ask_complement,
    ask_definition,
    ask_governed,
    ask_means_and_place,
    ask_measure,
    ask_object,
    ask_person,
    ask_subject,
    front_phrase,
    invert,
    main_verb,
)
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.tagging import Token

STOP_WORDS = word_set("de_stop_words")
CONDITIONS = ("wenn", "falls", "sofern", "sobald", "bevor", "solange", "nachdem")
REASONS = ("weil", "da")
JOINING = re.compile(r"\b(?:jedoch|also|aber|nun|jetzt|natürlich|beispielsweise|zum Beispiel) ")
"""Words that join a condition to the sentence before."""
UNFINISHED = re.compile(r"\b(?:und|oder|sowie|B\.|der|die|das|ein|eine|von|mit|zu|bzw\.?)\W*\?$")
TWO_FORMS, THREE_FORMS = 9, 18
"""Words of a sentence that two and three questions are asked of."""
LONGEST_QUESTION = 24


def content_words(text: str) -> list[str]:
    """Return the words of a text in small letters without stop words."""
    return [word for word in re.findall(r"[\w’-]+", text.lower()) if word not in STOP_WORDS]


def plain_sentence(sentence: str) -> str:
    """Return a sentence without its final mark, remarks in brackets and words of address."""
    text = re.sub(r"^[^\w`„\"“'(]+", "", sentence.strip()).rstrip(".!").strip()
    text = "".join(
        part if index % 2 else re.sub(r"\s*[(\[][^()\[\]]*[)\]]", "", part)
        for index, part in enumerate(re.split(r"(`[^`]*`)", text))
    )
    text = re.sub(r"^[^:,.`]{2,50}: (?=[A-ZÄÖÜ])", "", text.strip())
    text = re.sub(r"^Bitte (?:(?:beachten Sie|beachte), dass )?(?=\w)", "", text)
    return text[:1].upper() + text[1:]


def ask_german(sentence: str, vocabulary: Collection[str] = frozenset(), subject: str = "") -> list[Ask]:
    """Return the questions that a sentence answers, the surest first; three at most."""
    clause = parse_clause(plain_sentence(sentence))
    if clause is None:
        return []
    length = len(sentence.split())
    most = 3 if length >= THREE_FORMS else 2 if length >= TWO_FORMS else 1
    asks: list[Ask] = []
    for ask in forms_of(clause):
        if is_clear(ask, sentence) and not any(is_near(ask, other) for other in asks):
            asks.append(ask)
        if len(asks) == most:
            break
    return asks


WITHOUT_VERB = re.compile(r"(?:Was|Wer|Wann|Warum|Wo\w*) [A-ZÄÖÜ]")
"""A question whose verb is a noun: "Was Bearbeiten Adressen?"."""
CUT_PARTICIPLE = re.compile(r"\b(?:der|die|das|dem|den|des) (?:sich|mich|mir|dich)\b")
"""What remains of "der sich öffnenden Seite"."""
ADJECTIVE_IN_CAPITALS = r"[A-ZÄÖÜ][\w-]+ (?:Verschieden|Neu|Ander|Weiter|Einzeln|Bestimmt|Einfach)e[nrsm]? [A-ZÄÖÜ]"
"""A label that runs into the sentence after it."""


def is_near(ask: Ask, other: Ask) -> bool:
    """Whether two questions ask for the same in other words."""
    words, other_words = set(content_words(ask.topic)), set(content_words(other.topic))
    return ask.rule == other.rule and len(words & other_words) * 2 > len(words | other_words)


def is_clear(ask: Ask, sentence: str) -> bool:
    """Whether a question can be read alone and leaves something to answer."""
    topic_words = set(content_words(ask.topic))
    fresh = [word for word in content_words(sentence) if word not in topic_words]
    topic = re.sub(r"`[^`]*`", "x", ask.topic)
    short = ask.rule.startswith("condition") and len(topic_words) < 2 and "`" not in ask.topic
    if (
        short
        or WITHOUT_VERB.match(topic)
        or CUT_PARTICIPLE.search(topic)
        or re.search(rf" {ADJECTIVE_IN_CAPITALS}", topic)
    ):
        return False
    if POINTING.search(topic) or UNFINISHED.search(ask.topic) or re.search(r"[,;:]\?$|\b(\w+) \1\b", topic):
        return False
    if re.search(r"(?:^|\s)[\"“](?=\s)|„\s|\bwie folgt\b|\"\"|„“|@| ,| \. ", topic):
        return False
    if " / " in ask.topic and " / " not in sentence:
        return False
    if any(ask.topic.count(mark) % 2 for mark in '`"') or ask.topic.count("„") != ask.topic.count("“"):
        return False
    least = 1 if ask.rule == "bare" else 2
    fewest = 1 if ask.rule == "bare" else 2
    return len(topic_words) >= least and len(fresh) >= fewest and len(ask.topic.split()) <= LONGEST_QUESTION


def forms_of(clause: MainClause) -> Iterator[Ask]:
    """Yield the questions of a clause, the surest first."""
    yield from ask_relations(clause)
    if clause.kind == "CLAUSE" or is_negative(clause):
        return
    complement = needs_complement(clause.after)
    if complement:
        yield from ask_complement(clause)
    else:
        yield from ask_definition(clause)
        yield from ask_measure(clause)
        yield from ask_person(clause)
        yield from ask_governed(clause)
        yield from ask_means_and_place(clause)
        yield from ask_object(clause)
        yield from ask_subject(clause)


def is_negative(clause: MainClause) -> bool:
    tokens = [*clause.front, *(token for phrase in clause.middle for token in phrase.tokens)]
    return any(token.tag == "PTKNEG" or re.match(r"[Kk]ein", token.text) or token.text == "weder" for token in tokens)


def needs_complement(after: Sequence[Token]) -> bool:
    """Whether a clause continues with "dass", "ob", "wie" or an infinitive, without which it is not complete."""
    tags = [token.tag for token in after]
    if len(after) < 2 or after[0].text not in (",", ":"):
        return False
    if after[1].tag in ("PWS", "PWAV", "PWAT"):
        return True
    if after[1].text in ("dass", "ob", "als", "was", "wie", "wo", "wer", "welche", "das", "statt", "ohne"):
        return after[1].tag not in ("PRELS",)
    comma = next((index for index, token in enumerate(after[1:], 1) if token.text == ","), len(after))
    return after[1].tag != "KOUI" and after[1].text != "um" and any(tag in ("VV(IZU)", "PTKZU") for tag in tags[:comma])


def ask_relations(clause: MainClause) -> Iterator[Ask]:
    """Yield questions for a condition, a purpose or a reason next to the main clause."""
    for tokens, first in ((clause.front, True), (subordinate_after(clause), False)):
        if not tokens or (first and clause.kind != "CLAUSE"):
            continue
        word = "wenn" if tokens[0].tag in FINITE else tokens[0].text.lower()
        text = as_asked(tokens, clause)
        if text is None or len(tokens) > LONGEST_QUESTION:
            continue
        only = next((phrase for phrase in clause.middle if phrase.tokens[0].text in ("nur", "erst")), None)
        if word in CONDITIONS and not first and only and clause.kind == "NP":
            if question := invert(clause, "Wann", only):
                yield Ask("bare", question)
        elif word in CONDITIONS and not first and clause.kind == "NP":
            also = any(phrase.tokens[0].text == "auch" for phrase in clause.middle)
            if not also and not is_negative(clause) and (question := invert(clause, "Wann")):
                yield Ask("bare", question)
            yield Ask("condition", text)
        elif word in CONDITIONS and clause.kind != "ADV":
            if not first and clause.pronoun and clause.pronoun.text.lower() in ("dies", "das", "es"):
                continue
            if tokens[1:] and tokens[1].text in ("möglich", "nötig", "nicht", "überhaupt", "auch", "es", "das"):
                continue
            yield Ask("condition_do" if advises(clause) else "condition", text)
        elif word in ("um", "damit") and len(tokens) > 3:
            if is_negative(clause):
                continue
            reader = clause.is_for_reader or (clause.pronoun and clause.pronoun.text.lower() == "man")
            if reader or clause.verb.text.startswith(("muss", "müss", "soll", "sollt")):
                yield Ask("purpose", text)
            elif first:
                yield Ask("bare", f"Was ist nötig, {text}?")
            elif not first and clause.kind == "NP" and (question := invert(clause, "Wozu")):
                yield Ask("bare", question)
        elif word in REASONS:
            if question := invert(clause, "Warum"):
                yield Ask("bare", question)
        elif word == "indem" and not first and (question := invert(clause, "Wie")):
            yield Ask("bare", question)


def subordinate_after(clause: MainClause) -> tuple[Token, ...]:
    """Return the subordinate clause that ends the sentence, right after the main clause."""
    after = clause.after
    if len(after) < 4 or after[0].text != "," or after[1].tag not in ("KOUS", "KOUI", "APPR"):
        return ()
    if any(token.text in (",", ":", ";", "–", "(") for token in after[1:]):
        return ()
    if after[1].text == "um" and not any(token.tag in ("VV(IZU)", "PTKZU") for token in after):
        return ()
    return after[1:]


def as_asked(tokens: Sequence[Token], clause: MainClause) -> str | None:
    """Return a subordinate clause as the reader asks it: "wenn ich unsicher bin" for "wenn du unsicher bist"."""
    inner = any(token.tag in SUBORDINATE for token in tokens[1:])
    if len(tokens) < 4 or (inner and any(token.text in (",", ":", ";", "(") for token in tokens)):
        return None
    if tokens[0].tag in FINITE:
        return conditional(tokens, clause)
    text, verb = clause.words(tokens), tokens[-1]
    reader = tokens[0].tag == "KOUS" and any(token.text in ("Sie", "du", "Du") for token in tokens[1:5])
    if reader:
        if verb.tag not in (*FINITE, "VV(INF)", "VA(INF)", "VM(INF)"):
            return None
        text = f"{text[: verb.start - tokens[0].start]}{first_person(verb)}"
    text = for_asker(text, reflexive=reader)
    return JOINING.sub("", text[0].lower() + text[1:])


def conditional(tokens: Sequence[Token], clause: MainClause) -> str | None:
    """Return "wenn der Akku leer ist" for "Ist der Akku leer"."""
    first, last = tokens[0], tokens[-1]
    reader = tokens[1].text in ("Sie", "du", "Du")
    if first.text in ("War", "Waren", "Hatte", "Hatten") or (
        first.text.startswith("Sollt") and last.tag[:2] in ("VM", "VA")
    ):
        return None
    verb = first_person(first) if reader else first.text[0].lower() + first.text[1:]
    rest = tokens[1:]
    if last.tag == "PTKVZ":
        rest, verb = tokens[1:-1], f"{last.text}{verb}"
    return JOINING.sub("", for_asker(f"wenn {clause.words(rest)} {verb}", reflexive=reader))


def advises(clause: MainClause) -> bool:
    """Whether a clause asks the reader to act."""
    if clause.is_for_reader or (clause.pronoun and clause.pronoun.text.lower() == "man"):
        return True
    if clause.kind == "CLAUSE" and clause.verb.text.endswith("e") and clause.verb.tag[:2] not in ("VA", "VM"):
        return True
    modal = clause.verb.tag.startswith("VM") and not clause.verb.text.startswith(("will", "woll"))
    passive = bool(clause.end) and clause.end[-1].text == "werden"
    return modal and passive


def ask_lead(text: str) -> Ask | None:
    """Return the question of a list's lead-in: "Bei der Prüfung sind folgende Punkte wichtig", "Das Tool bietet"."""
    how = re.search(r" (?:wie folgt|folgendermaßen)\b", text)
    clause = parse_clause(plain_sentence(text.replace(how[0], "") if how else text))
    if clause is None or clause.after or clause.kind in ("", "CLAUSE", "ADV") or is_negative(clause):
        return None
    if how:
        question = invert(clause, "Wie")
        return Ask("bare", question) if question else None
    phrases = [*clause.middle, front_phrase(clause)]
    for phrase in phrases:
        words = [token.text.lower() for token in phrase.tokens]
        number = next((index for index, word in enumerate(words) if word.startswith("folgend")), None)
        if number is not None:
            return ask_following(clause, phrase, number)
    things = [phrase for phrase in clause.middle if phrase.kind == "NP" and phrase.tokens != clause.front]
    if things or clause.verb.tag.startswith("VA") or main_verb(clause) in LIGHT_VERBS:
        return None
    question = invert(clause, "Was") if clause.kind in ("NP", "PRON") else None
    ask = Ask("bare", question) if question else None
    return ask if ask and is_clear(ask, f"{text} x y z") else None


def ask_following(clause: MainClause, phrase: Constituent, number: int) -> Ask | None:
    """Return "Welche Punkte sind …?" for a lead-in with "folgende Punkte"."""
    words = [token.text for token in phrase.tokens]
    noun = " ".join(words[number + 1 :]) if phrase.head else ""
    ending = re.fullmatch(r"folgende([nrms]?)", words[number].lower())
    if ending is None or (not noun and ending[1] != "s"):
        return None
    before = [word for word in words[:number] if word.lower() not in ("die", "den", "der", "das", "z.b.", "u.a.")]
    lead = join(*before, f"welche{ending[1]}", noun) if noun else "was"
    question = invert(clause, lead[0].upper() + lead[1:], phrase)
    ask = Ask("bare", question) if question else None
    return ask if ask and is_clear(ask, f"{question} x y z") else None


def is_sentence(text: str) -> bool:
    """Whether a text has a main clause."""
    return parse_clause(plain_sentence(text)) is not None


def is_instruction(text: str) -> bool:
    """Whether a text asks the reader to act: "Klicken Sie auf …"."""
    clause = parse_clause(plain_sentence(text))
    return clause is not None and clause.kind == ""
