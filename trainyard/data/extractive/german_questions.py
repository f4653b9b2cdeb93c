"""German questions that leave a phrase of a clause out: what, where, how, when, what for.

The phrase that answers is taken away and a question word comes to the front; the subject follows the verb.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainyard.data.extractive.clauses import join
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.german_clauses import (
    NOUNS,
    SUBORDINATE,
    Constituent,
    MainClause,
    accusative,
    core_of,
    first_person,
    for_asker,
)
from trainyard.data.extractive.grammar import word_set
from trainyard.data.extractive.tagging import Token, base_form
from trainyard.data.language import GERMAN

IDIOM = re.compile(
    r"(?:Zur Zeit|Am (?:besten|Ende|Anfang)|Im (?:Folgenden|Allgemeinen|Grunde|Moment|Prinzip|Beispiel|Ernstfall|"
    r"Gegensatz|Unterschied|Zweifel\w*|Idealfall|Normalfall|Laufe|Übrigen|Vergleich|Zuge|Anschluss|Rahmen)|In der Regel"
    r"|In Zukunft|In der Praxis|In (?:\w+ )?\w+ (?:Fällen|Hinsicht|Bibliotheken)|Nach wie vor|Vor allem|"
    r"Zum (?:Beispiel|Schluss|einen|anderen|Teil|Glück)|"
    r"Mit Hilfe|Mit Blick|Mit der Zeit|I[mn] (?:\w+ )?(?:Kapitel|Abschnitt)|Unter anderem|Auf (?:diese|jeden|keinen)|"
    r"Im Blick|Im (?:Gegenteil|Auge)|Zur Ausführung|Zu Beginn|Aus (?:diesem|\w+ Gr[uü]nde?n?)|"
    r"Bei Bedarf|Bei Fragen|In \w+ (?:Schritt|Fall|Beispiel|Phase)\b|"
    r"Durch Klick(?:en)? (?:auf|hier)|Von (?:hier|dort)|Ohne (?:weiteres|Zweifel)|Im \w+ Schritt|Unter Umständen)\b"
)
"""Beginnings that say nothing of what a sentence is about."""
UNITS = r"(?:Sekunden?|Minuten?|Stunden?|Tage?n?|Werktage?n?|Arbeitstage?n?|Wochen?|Monate?n?|Jahre?n?|Kalendertage?n?)"
NUMBER = r"(?:\d[\d.,]*|ein(?:e[rmns]?)?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|zwölf|vierzehn|dreißig)"
TIMES = (
    (re.compile(rf"(?:jede[nrs]? (?:{UNITS}|\w+tag)|(?:einmal|zweimal|dreimal|{NUMBER}-?mal) "
                r"(?:pro|im|am|in der|je) \w+|"
                r"täglich|wöchentlich|monatlich|jährlich|vierteljährlich)(?!\w)"), "Wie oft"),
    (re.compile(rf"(?:innerhalb (?:von )?|binnen ){NUMBER} {UNITS}"), "In welcher Frist"),
    (re.compile(rf"(?:seit|ab|bis|spätestens|am|vor|nach) (?:zum |dem |de[rmn] )?"
                rf"(?:\d{{1,2}}\. ?\w+(?: \d{{4}})?|\d{{1,2}}(?:[.:]\d\d)? Uhr|"
                rf"(?:Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember) \d{{4}}|"
                rf"{NUMBER} {UNITS})"), "Wann"),
    (re.compile(rf"{NUMBER} {UNITS} lang"), "Wie lange"),
)  # fmt: skip
POINTING = re.compile(
    r"\b(?:dies\w*|jene\w*|solche\w*|hier\w*|dort|dabei|dafür|damit|dazu|daher|dadurch|davon|daran|darauf|darin|daraus|"
    r"folgende\w*|obige\w*|nachfolgend\w*|oben|unten|er|sie|ihn|ihm|ihr\w*|sein(?:e[mnrs]?)?|deren|dessen|so|beide\w*|wir|unser\w*|uns|"
    r"letzte\w*|andere\w*|erste[rnms]?|zweite\w*|nächste\w*|jeweilig\w*|genannt\w*|entsprechend\w*|"
    r"zugehörig\w*|derartig\w*|vorherig\w*|bisherig\w*|alternativ\w*|nebenstehend\w*|Alternative|Möglichkeit\w*|Beispiel|Grund|Vorteil|"
    r"Nachteil|Problem|Ziel|Screenshot|Abbildung|Grafik|Video|Fazit)\b"
)
"""Words that make a question depend on the text around its sentence."""
PERSON = re.compile(
    r"innen\b|\b(?:[Pp]erson\w*|Mensch\w*|Leute|Eltern|Kind(?:er\w*)?|\w*(?:[Nn]utzer|[Aa]nwender|[Ll]eiter|[Mm]itglied|"
    r"[Kk]und|[Ss]chüler|[Ll]ehrer|[Mm]itarbeit|[Kk]raft|[Kk]räft|[Tt]eam|[Aa]dministrator|[Ee]ntwickler|[Ll]eitung|[Dd]ienstleister|[Aa]nbieter|[Hh]ersteller|"
    r"[Vv]orstand|[Kk]oll?eg)\w*)"
)
"""Nouns that "was" and "womit" do not ask for."""
CASES = ("bei", "beim", "für", "im", "in", "nach", "ohne", "vor", "während", "innerhalb", "außerhalb", "zum", "zur")
"""Prepositions of a phrase that "was gilt" can ask for."""
PERSON_NAME = re.compile(
    r"(?:innen|[Nn]utzer|[Aa]nwender|[Ll]eiter|[Mm]itglied|[Kk]und|[Ss]chüler|[Ll]ehrer|[Mm]itarbeit|[Kk]raft|[Kk]räft|"
    r"[Aa]dministrator|[Ee]ntwickler|[Ss]char(?:|[Vv]er\w+)[Ll]eitung|[Vv]orstand|[Kk]oll?eg|Eltern|Kind)"
    r"(?:er|ern|e|en|n|s|es|in|ende|enden|ung)?$"
)
"""Nouns that "wer" asks for."""
BY_MEANS = ("über", "durch", "per", "via", "mithilfe", "mittels", "anhand", "mit")
IN_PLACE = ("in", "im", "unter", "auf", "am", "an", "bei", "beim", "unterhalb", "neben", "oberhalb", "links", "rechts")
PLACED = re.compile(
    r"(?:be?find|steh|lieg|seh|gespeicher|abgeleg|angezeig|hinterleg|erreich|einstell|eingestell|aufgelist|"
    r"aufgeführ|angegeb|angeb|eingeb|eingegeb|eintrag|eingetrag|auswähl|ausgewähl|festleg|festgeleg|definier|konfigurier|"
    r"verwalt|änder|geänder|bearbeit|abruf|abgeruf|sichtbar|verfügbar|vermerk|dokumentier|beschrieben|einseh|eingeseh|"
    r"erfass|find|gefund|herunterlad|heruntergelad|speicher|aktivier|deaktivier|anleg|angeleg)"
)
"""Beginnings of verbs whose "in", "unter" or "auf" answers "wo"."""
PLACE = re.compile(
    r"[`„\"“]|\w*(?:[Mm]enü|[Rr]eiter|[Tt]ab|[Dd]ialog\w*|[Ff]enster|[Ss]eite|[Bb]ereich|[Ee]instellung\w*|[Dd]atei|"
    r"[Oo]rdner|[Vv]erzeichnis|[Tt]abelle|[Ll]iste|[Ff]eld|[Pp]unkt|[Rr]ubrik|[Kk]onto|[Pp]rofil|[Pp]ortal|[Aa]pp|"
    r"[Aa]nsicht|[Oo]berfläche|[Kk]onfiguration|[Dd]atenbank|[Ss]erver|[Ll]eiste|[Ss]palte|[Zz]eile|[Kk]atalog\w*|"
    r"[Dd]okumentation|[Rr]epository|[Kk]arte|[Hh]andbuch|[Rr]egister\w*|[Ww]ebsite|[Ff]ormular|[Ss]chema|[Ee]cke|Rand)n?\b"
)
JUDGING = re.compile(
    r"ein\w* (?:\w+ )?(?:wichtig|zentral|groß|gut|wesentlich|entscheidend|interessant|nützlich|hilfreich)\w*"
)
"""A predicate that says nothing of what a thing is."""
CORRELATES = {
    "dazu": "Wozu", "darin": "Worin", "darauf": "Worauf", "dafür": "Wofür", "davon": "Wovon", "daran": "Woran",
    "damit": "Womit", "dadurch": "Wodurch", "darum": "Worum", "davor": "Wovor", "darüber": "Worüber",
}  # fmt: skip
"""Word that replaces a clause with "dass" -> the question word that asks for it."""
FIXED = re.compile(
    r"(?:auf|nach|von|aus|mit|um|an) (?:Grund\w*|Basis|Wunsch|Hause|Anfang|Bedarf|\w*[Ww]eise|\w* Art|\d\w*|Stelle)\b"
)
"""Phrases that do not answer a question for what belongs to a verb."""
GOVERNED = {
    "basieren": ("auf",), "beruhen": ("auf",), "bestehen": ("aus", "in"), "dienen": ("zu", "zur", "zum", "als"),
    "führen": ("zu", "zur", "zum"), "abhängen": ("von", "vom"), "sorgen": ("für",), "verwenden": ("für", "zur", "zum"),
    "nutzen": ("für", "zur", "zum"), "benutzen": ("für", "zur", "zum"), "benötigen": ("für", "zur", "zum"),
    "einsetzen": ("für", "zur", "zum"), "eignen": ("für", "zu", "zur", "zum"), "beitragen": ("zu", "zur", "zum"),
    "zuständig": ("für",), "verantwortlich": ("für",), "geeignet": ("für", "zu", "zur", "zum"), "gehören": ("zu", "zur",
    "zum"), "abhängig": ("von", "vom"), "hinweisen": ("auf",), "helfen": ("bei", "beim"), "befassen": ("mit",),
    "beschäftigen": ("mit",), "entsprechen": (), "stammen": ("aus",), "schützen": ("vor",), "wichtig": ("für",),
    "notwendig": ("für",), "erforderlich": ("für",), "zielen": ("auf",), "beziehen": ("auf",), "richten": ("nach",),
    "unterscheiden": ("durch", "in"), "gedacht": ("für",), "vorgesehen": ("für",),
}  # fmt: skip
"""Verb or adjective -> prepositions that belong to it."""
GENERIC = word_set("de_generic")
"""Nouns that say nothing without their context."""
REMARKS = word_set("de_remarks")
"""Adverbs that join a sentence to the one before, which a question leaves out."""
FOCUS = ("nur", "lediglich", "ausschließlich", "auch", "erst", "maximal", "mindestens", "bereits", "direkt")
"""Adverbs that belong to the phrase after them."""
LIGHT_VERBS = word_set("de_light_verbs")
"""Verbs with an object that "was" does not ask for."""
SINGULAR = {"werden": "wird", "können": "kann", "müssen": "muss", "sind": "ist", "sollten": "sollte", "sollen": "soll",
            "dürfen": "darf", "befinden": "befindet", "stehen": "steht", "finden": "findet"}  # fmt: skip
"""Plural of a verb -> the form after "was"."""


def invert(
    clause: MainClause, word: str, without: Constituent | None = None, *, rest: bool = True, attached: bool = True
) -> str | None:
    """Return the question that begins with `word` and lacks a phrase of the clause.

    `rest` says whether what follows the phrase stays, up to the rest of the verb, `attached` whether phrases with a
    preposition right after it belong to it. None where the order is not certain.
    """
    phrases = list(clause.middle)
    if without is not None and without in phrases:
        index = after = phrases.index(without)
        while attached and after + 1 < len(phrases) and phrases[after + 1].kind == "PP":  # it may belong to the phrase
            after += 1
        index -= bool(index) and phrases[index - 1].tokens[0].text in FOCUS
        phrases = phrases[:index] + (phrases[after + 1 :] if rest else [])
    phrases = [phrase for phrase in phrases if phrase.tokens[0].text not in REMARKS or phrase.kind != "ADV"]
    fronted = without is not None and without.tokens == clause.front
    pronoun = clause.pronoun
    reader = clause.is_for_reader
    if pronoun and pronoun.text.lower() in ("sie", "er", "es", "dies", "das") and not reader:
        return None
    parts = [clause.words(phrase.tokens) for phrase in phrases if pronoun is None or phrase.tokens[0] is not pronoun]
    end = clause.words(clause.end)
    front = "" if fronted or clause.kind in ("", "PRON", "CLAUSE") else small(clause.front, clause)
    if clause.kind == "":
        prefix = clause.end[-1].text if clause.end and clause.end[-1].tag == "PTKVZ" else ""
        if clause.end and not prefix:
            return None
        verb, subject = "muss", "ich"
        end = f"{prefix}{base_form(clause.verb.text.lower(), 'VV(FIN)', GERMAN)}"
        parts = ["mich" if text in ("sich", "dich") else text for text in parts if text != "Sie"]
    elif reader:
        verb, subject = first_person(clause.verb), "ich"
    else:
        verb, subject = clause.verb.text, pronoun.text.lower() if pronoun else ""
        if not pronoun and clause.kind == "NP" and not fronted and not is_subject(clause.front):
            return None
    if not subject and front and clause.kind != "NP":
        # The subject is in the middle: it comes before the phrase that was in front.
        if without is not None and without.kind == "NP" and not any(phrase.kind == "NP" for phrase in phrases):
            return f"{join(word, verb, front, *parts, end)}?"
        if not phrases or phrases[0].kind not in ("NP", "PRON"):
            return None
        size = 2 if phrases[0].kind == "PRON" and len(parts) > 1 else 1
        parts = [*parts[:size], front, *parts[size:]]
        front = ""
    elif parts and parts[0] in ("mich", "sich", "dich", "mir", "dir"):
        subject = join(subject, parts.pop(0))
    if any(token.tag in SUBORDINATE for token in clause.front):
        front = f"{front}," if front else ""
    text = join(word, verb, subject, front, *parts, end)
    return f"{for_asker(text) if reader else text}?"


def is_subject(tokens: Sequence[Token]) -> bool:
    """Whether a noun phrase can be in the nominative."""
    return tokens[0].text.lower() not in ("den", "dem", "des", "einen", "einem", "eines", "keinen", "diesen", "jeden")


def small(tokens: Sequence[Token], clause: MainClause) -> str:
    """Return a phrase with a small first letter, unless it begins with a noun or a name."""
    text = clause.words(tokens)
    if tokens[0].tag in (*NOUNS, "TRUNC") or re.match(r"[A-ZÄÖÜ]{2}|Ihr", text):
        return text
    return text[:1].lower() + text[1:]


def front_phrase(clause: MainClause) -> Constituent:
    return Constituent(clause.kind, clause.front)


def ask_definition(clause: MainClause) -> Iterator[Ask]:
    """Yield "Was ist X?" and "Wie heißt X?"."""
    if clause.front[:1] and clause.front[0].text == "Als" and main_verb(clause) == "bezeichnen":
        name = clause.words(clause.front[1:])
        yield Ask("bare", f"Was bezeichnet man als {name}?")
        return
    if clause.kind != "NP" or not clause.middle or clause.end or not is_subject(clause.front):
        return
    first = next((phrase for phrase in clause.middle if phrase.kind != "ADV"), clause.middle[0])
    subject = small(clause.front, clause)
    lemma = base_form(clause.verb.text, clause.verb.tag, GERMAN)
    named = clause.front[0].tag in ("ART", "NE", "FM", "XY") or is_plural_subject(clause)
    named = named or (len(clause.front) <= 3 and clause.verb.text == "ist" and first.tokens[0].text in ("ein", "eine"))
    named = named and clause.front[0].tag not in ("PIAT", "CARD") and not lacks_context(clause.front)
    named = named and not JUDGING.match(clause.words(first.tokens))
    if clause.verb.text in ("ist", "sind") and first.kind == "NP" and named and len(clause.front) <= 7:
        if (
            first.tokens[0].tag in ("ART", "PIAT", "CARD", "NE", "FM", "XY")
            or clause.verb.text == "sind"
            or first.tokens[0].tag == "ADJ(A)"
        ):
            yield Ask("bare", f"Was {clause.verb.text} {subject}?")
    elif lemma == "bezeichnen":
        yield Ask("bare", f"Was {'sind' if clause.verb.text.endswith('n') else 'ist'} {subject}?")
    elif lemma in ("bedeuten", "heißen", "lauten"):
        yield Ask("bare", f"{'Was' if lemma == 'bedeuten' else 'Wie'} {clause.verb.text} {subject}?")


def is_plural_subject(clause: MainClause) -> bool:
    """Whether the subject in front is a plural without an article: "Reguläre Ausdrücke", "Wireframes und Mock-Ups"."""
    if clause.verb.text != "sind":
        return False
    heads = [token for token in clause.front if token.tag in NOUNS]
    joined = any(token.tag == "KON" for token in clause.front)
    return (
        joined or base_form(heads[0].text, "NN", GERMAN) != heads[0].text or heads[0].text.endswith(("en", "er", "s"))
    )


def ask_measure(clause: MainClause) -> Iterator[Ask]:
    """Yield questions for a price, an amount, a duration or a time."""
    lemma = base_form(clause.verb.text, clause.verb.tag, GERMAN)
    if clause.kind == "NP" and is_subject(clause.front) and len(clause.front) <= 8:
        subject, verb = small(clause.front, clause), clause.verb.text
        if lemma in ("kosten", "dauern"):
            yield Ask("bare", f"Wie {'viel' if lemma == 'kosten' else 'lange'} {verb} {subject}?")
        elif lemma == "betragen":
            yield Ask("bare", f"Wie hoch {'ist' if verb == 'beträgt' else 'sind'} {subject}?")
    if clause.end and base_form(clause.end[-1].text, clause.end[-1].tag, GERMAN) == "dauern":
        long = next((p for p in clause.middle if re.search(rf"{UNITS}$", clause.words(p.tokens))), None)
        if long and (question := invert(clause, "Wie lange", long)):
            yield Ask("bare", re.sub(r"\b(?:maximal|mindestens|höchstens|etwa|ca) ", "", question))
    for phrase in (*clause.middle, front_phrase(clause)):
        text = clause.words(phrase.tokens)
        for pattern, word in TIMES:
            if pattern.fullmatch(text[:1].lower() + text[1:]) and (question := invert(clause, word, phrase)):
                yield Ask("bare", question)


def ask_person(clause: MainClause) -> Iterator[Ask]:
    """Yield "Wer darf …?" and "Von wem wird X geprüft?"."""
    things = [phrase for phrase in clause.middle if phrase.kind in ("NP", "PP")]
    verb = SINGULAR.get(clause.verb.text, clause.verb.text)
    head = next((token.text for token in core_of(clause.front) if token.tag in NOUNS), "")
    certain = clause.verb.tag == "VM(FIN)" or (clause.verb.text in ("ist", "sind", "wird", "werden") and clause.end)
    certain = certain or any(phrase.tokens[0].text in ("zuständig", "verantwortlich") for phrase in clause.middle)
    is_person = clause.kind == "NP" and PERSON_NAME.search(head) and is_subject(clause.front) and not clause.pronoun
    if is_person and things and certain and not verb.endswith("n"):
        phrases = [clause.words(phrase.tokens) for phrase in clause.middle if phrase.tokens[0].text not in REMARKS]
        yield Ask("bare", f"{join('Wer', verb, *phrases, clause.words(clause.end))}?")
    if not (clause.kind == "NP" and clause.end and is_subject(clause.front)):
        return
    for phrase in things:
        by_person = phrase.tokens[0].text in ("von", "vom") and PERSON.search(clause.words(phrase.tokens))
        if by_person and clause.verb.tag != "VV(FIN)" and (question := invert(clause, "Von wem", phrase)):
            yield Ask("bare", question)


def ask_governed(clause: MainClause) -> Iterator[Ask]:
    """Yield "Wofür ist X zuständig?", "Worauf basiert X?", "Wozu dient X?"."""
    if clause.kind != "NP" or not is_subject(clause.front):
        return
    words = {base_form(token.text, token.tag, GERMAN) for token in (clause.verb, *clause.end)}
    words |= {phrase.tokens[0].text for phrase in clause.middle if phrase.kind == "ADV"}
    governed = {preposition for word in words for preposition in GOVERNED.get(word, ())}
    things = [phrase for phrase in clause.middle if phrase.kind in ("NP", "PP")]
    if len(things) == 1 and clause.pronoun is None and main_verb(clause) not in LIGHT_VERBS:
        if clause.verb.tag == "VV(FIN)":
            governed |= {"auf", "aus", "für", "nach", "gegen", "um", "mit", "an", "am"}  # its only phrase
        elif clause.verb.text in ("ist", "sind"):
            governed |= {"für", "von", "vom"}
    if clause.verb.text in ("wird", "werden") and not clause.end:
        return
    if main_verb(clause) == "dienen" and things and things[0].kind == "NP":
        yield Ask("bare", f"Wozu {clause.verb.text} {small(clause.front, clause)}?")
        return
    for phrase in clause.middle:
        preposition = phrase.tokens[0].text.lower()
        if preposition not in governed or (phrase.kind != "PP" and preposition != "als"):
            continue
        if PERSON.search(clause.words(phrase.tokens)) or not phrase.head:
            continue
        if FIXED.match(clause.words(phrase.tokens)):
            continue
        word = question_word(preposition, words)
        if question := invert(clause, word, phrase, rest=True):
            yield Ask("bare", question)


def question_word(preposition: str, words: set[str]) -> str:
    """Return "worauf" for "auf", "wozu" for "zum"."""
    plain = {"zum": "zu", "zur": "zu", "vom": "von", "im": "in", "beim": "bei", "als": "zu"}.get(
        preposition, preposition
    )
    if plain == "zu" and words & {"verwenden", "nutzen", "benutzen", "benötigen", "einsetzen"}:
        plain = "für"
    return f"Wo{'r' if plain[0] in 'aeiouäöü' else ''}{plain}"


def ask_means_and_place(clause: MainClause) -> Iterator[Ask]:
    """Yield "Wie kann ich …?" and "Wo finde ich …?" for a phrase that says how or where."""
    verbs = " ".join([*(token.text.lower() for token in (clause.verb, *clause.end)), main_verb(clause)])
    verbs += " " + " ".join(phrase.tokens[0].text for phrase in clause.middle if phrase.kind == "ADV")
    possible = clause.verb.text.lower().startswith(("kann", "könn", "lässt", "lass"))
    reader = clause.is_for_reader or (clause.pronoun and clause.pronoun.text.lower() == "man")
    for phrase in (*clause.middle, front_phrase(clause)):
        if phrase.kind != "PP" or not phrase.head:
            continue
        text = clause.words(phrase.tokens)
        preposition = phrase.tokens[0].text.lower()
        if IDIOM.match(text[:1].upper() + text[1:]) or POINTING.search(re.sub(r"`[^`]*`", "x", text)):
            continue
        if not (subject_or_object(clause, phrase)):
            continue
        passive = is_passive(clause) and preposition != "über"
        if preposition in BY_MEANS and (possible or reader or passive) and not PERSON.search(text):
            if preposition == "mit" and clause.kind != "PP" and not possible and not is_passive(clause):
                continue
            word = f"Wo{preposition}" if is_passive(clause) and preposition in ("mit", "durch") else "Wie"
        elif preposition in IN_PLACE and PLACE.search(text) and any(map(PLACED.match, verbs.split())):
            if clause.verb.text in ("ist", "sind", "wäre") and not clause.end and clause.middle[-1].kind != "ADV":
                continue
            word = "Wo"
        else:
            continue
        if question := invert(clause, word, phrase):
            yield Ask("bare", question)


def main_verb(clause: MainClause) -> str:
    """Return the infinitive of what is done: "anlegen" for "Legen Sie … an"."""
    last = clause.end[-1] if clause.end else clause.verb
    if last.text == "werden" and len(clause.end) > 1:
        last = clause.end[-2]
    if last.tag == "PTKVZ":
        return f"{last.text}{base_form(clause.verb.text.lower(), 'VV(FIN)', GERMAN)}"
    return base_form(last.text.lower(), last.tag, GERMAN)


def is_passive(clause: MainClause) -> bool:
    """Whether something is done: "wird gespeichert"."""
    return clause.verb.text in ("wird", "werden") and bool(clause.end) and clause.end[-1].tag == "VV(PP)"


def subject_or_object(clause: MainClause, without: Constituent) -> bool:
    """Whether a clause names a thing besides a phrase."""
    phrases = [phrase for phrase in (*clause.middle, front_phrase(clause)) if phrase is not without]
    return any(phrase.kind == "NP" and phrase.head for phrase in phrases)


def ask_complement(clause: MainClause) -> Iterator[Ask]:
    """Yield the question of a main clause that "dass", "ob" or an infinitive completes: "Worin besteht X?"."""
    correlate = next((phrase for phrase in clause.middle if phrase.tokens[0].text in CORRELATES), None)
    plain = clause.kind == "NP" and is_subject(clause.front) and len(clause.front) <= 8
    if correlate and (plain or clause.is_for_reader):
        if question := invert(clause, CORRELATES[correlate.tokens[0].text], correlate):
            yield Ask("bare", question)
    elif plain and clause.verb.text == "ist" and not clause.middle and not lacks_context(clause.front):
        yield Ask("bare", f"Was ist {small(clause.front, clause)}?")
    elif (
        plain
        and clause.verb.tag == "VV(FIN)"
        and main_verb(clause) not in LIGHT_VERBS
        and clause.after[1].text != "wie"
    ):
        only = all(phrase.kind == "ADV" or phrase.tokens[0].text == "es" for phrase in clause.middle)
        bare = clause._replace(middle=())
        if only and (question := invert(bare, "Was")):
            yield Ask("bare", question)


def lacks_context(front: Sequence[Token]) -> bool:
    """Whether a subject is a noun such as "Voraussetzung" without what it belongs to."""
    core = core_of(front, whole=True)
    return len(core) == 1 and is_vague(Constituent("NP", core))


def ask_object(clause: MainClause) -> Iterator[Ask]:
    """Yield "Was unterstützt X?" and "Was finde ich unter X?"."""
    lemma = main_verb(clause)
    if clause.kind == "PP":
        yield from ask_content(clause)
    elif clause.kind == "" and lemma not in LIGHT_VERBS:
        yield from ask_command(clause)
    elif clause.kind == "NP" and lemma not in LIGHT_VERBS:
        if not is_subject(clause.front) or clause.verb.tag.startswith("VA") or len(clause.front) > 8:
            return
        first = next((phrase for phrase in clause.middle if phrase.kind != "ADV"), None)
        if first is None or first.kind != "NP" or not is_object(first, clause):
            return
        if question := invert(clause, "Was", first, rest=False):
            yield Ask("bare", question)


def ask_command(clause: MainClause) -> Iterator[Ask]:
    """Yield "Was muss ich beim Einbinden beachten?"."""
    things = [phrase for phrase in clause.middle if phrase.kind == "NP"]
    contexts = [clause.words(phrase.tokens) for phrase in clause.middle if phrase.kind == "PP" and phrase.head]
    if len(things) != 1 or len(contexts) != 1 or IDIOM.match(contexts[0][0].upper() + contexts[0][1:]):
        return
    certain = is_object(things[0], clause) and not is_vague(things[0])
    if certain and (question := invert(clause, "Was", things[0], attached=False)):
        yield Ask("bare", question)


def ask_content(clause: MainClause) -> Iterator[Ask]:
    """Yield "Was finde ich unter X?", "Was gibt es in X?" and "Was wird in X gespeichert?"."""
    text = clause.words(clause.front)
    preposition = clause.front[0].text.lower()
    if IDIOM.match(text) or preposition not in (*IN_PLACE, "für", "zum", "zur") or len(clause.front) > 8:
        return
    front, end = small(clause.front, clause), clause.words(clause.end)
    things = [phrase for phrase in clause.middle if phrase.kind == "NP"]
    if any(clause.words(phrase.tokens) == "zur Verfügung" for phrase in clause.middle):
        end = f"zur Verfügung {end}".strip()
    if len(things) != 1 or PERSON.search(clause.words(things[0].tokens)):
        return
    pronoun = clause.pronoun.text.lower() if clause.pronoun else ""
    if clause.is_for_reader:
        yield Ask("bare", for_asker(f"{join('Was', first_person(clause.verb), 'ich', front, end)}?"))
    elif pronoun == "man" or (pronoun == "es" and clause.verb.text == "gibt"):
        yield Ask("bare", f"{join('Was', clause.verb.text, pronoun, front, end)}?")
    elif not pronoun and is_subject(things[0].tokens) and main_verb(clause) not in ("machen", "nehmen", "treffen"):
        done = bool(clause.end) and (
            clause.verb.text in ("wird", "werden", "ist", "sind") or clause.end[-1].text == "werden"
        )
        reflexive = any(phrase.tokens[0].text == "sich" for phrase in clause.middle)
        verb = SINGULAR.get(clause.verb.text, clause.verb.text)
        is_intransitive = verb in ("steht", "erscheint", "öffnet", "befindet", "findet")
        if done or ((reflexive or is_intransitive) and not verb.endswith("n")):
            yield Ask("bare", f"{join('Was', verb, 'sich' if reflexive else '', front, end)}?")


def is_vague(phrase: Constituent) -> bool:
    """Whether a noun phrase says nothing of a page: "die Informationen"."""
    head = phrase.head
    return head is None or head.text in GENERIC or base_form(head.text, "NN", GERMAN) in GENERIC


def is_object(phrase: Constituent, clause: MainClause) -> bool:
    """Whether a noun phrase is a thing in the accusative."""
    first = phrase.tokens[0].text.lower()
    if first in ("dem", "einem", "des", "eines", "der", "einer", "ihrem", "seinem") or re.match(r"\w+em$", first):
        return False
    return bool(phrase.head) and not PERSON.search(clause.words(phrase.tokens))


def ask_subject(clause: MainClause) -> Iterator[Ask]:
    """Yield "Was gilt für X?", "Wie kann X geändert werden?", "Wie wird X genannt?" for the subject."""
    text = clause.words(clause.front)
    if clause.kind != "NP" or clause.pronoun or len(clause.front) > 8 or "," in text or not clause.end:
        return
    core = core_of(clause.front, whole=True)
    heads = [token for token in core if token.tag in NOUNS]
    if not heads or is_vague(Constituent("NP", core)):
        return
    bare = clause._replace(middle=())
    if clause.verb.text.startswith(("muss", "müss", "darf", "dürf", "soll")):
        abstract = len(core) == 1 and re.search(r"(?:ung|heit|keit)$", core[0].text)
        before = clause.front[: clause.front.index(core[0])]
        if not abstract and (name := accusative(before, core, clause, nominative=True)):
            yield Ask("bare", f"Was gilt für {name}?")
    elif clause.verb.text in ("lässt", "lassen") or (
        clause.verb.text.startswith(("kann", "könn")) and clause.end[-1].text == "werden"
    ):
        bare = clause._replace(middle=tuple(phrase for phrase in clause.middle if phrase.tokens[0].tag == "PRF"))
        says_how = any(phrase.kind == "PP" or phrase.tokens[0].tag == "ADJ(D)" for phrase in clause.middle)
        if says_how and (question := invert(bare, "Wie")):
            yield Ask("bare", question)
    elif is_passive(clause) and main_verb(clause) in ("bezeichnen", "nennen") and (question := invert(bare, "Wie")):
        yield Ask("bare", question)
