"""German questions that leave a phrase of a clause out: what, where, how, when, what for.

The phrase that answers is taken away and a question word comes to the front; the subject follows the verb.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from trainyard.data.extractive.clauses import join
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.german_cases import accusative, core_of
from trainyard.data.extractive.german_clauses import NOUNS, Clause, Phrase, first_person, for_asker
from trainyard.data.extractive.lexicon import word_set
from trainyard.data.extractive.tagging import Token, base_form
from trainyard.data.language import GERMAN

IDIOM = re.compile(
    r"(?:Zur Zeit|Am (?:besten|Ende|Anfang)|Im (?:Folgenden|Allgemeinen|Grunde|Moment|Prinzip|Beispiel|Ernstfall|"
    r"Gegensatz|Unterschied|Zweifel\w*|Idealfall|Normalfall|Laufe|Übrigen|Vergleich|Zuge|Anschluss|Rahmen)|In der Regel"
    r"|In Zukunft|In (?:\w+ )?\w+ (?:Fällen|Hinsicht|Bibliotheken)|Nach wie vor|Vor allem|"
    r"Zum (?:Beispiel|Schluss|einen|anderen|Teil|Glück)|"
    r"Mit Hilfe|Mit Blick|Mit der Zeit|I[mn] (?:\w+ )?(?:Kapitel|Abschnitt)|Unter anderem|Auf (?:diese|jeden|keinen)|"
    r"Aus (?:diesem|\w+ Gr[uü]nde?n?)|Bei Bedarf|Bei Fragen|In \w+ (?:Schritt|Fall|Beispiel|Phase)\b|"
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
    r"zugehörig\w*|vorherig\w*|bisherig\w*|alternativ\w*|nebenstehend\w*|Alternative|Möglichkeit\w*|Beispiel|Grund|Vorteil|"
    r"Nachteil|Problem|Ziel|Screenshot|Abbildung|Grafik|Video|Fazit)\b"
)
"""Words that make a question depend on the text around its sentence."""
PERSON = re.compile(
    r"innen\b|\b(?:[Pp]erson\w*|Mensch\w*|Leute|Eltern|Kind(?:er\w*)?|\w*(?:[Nn]utzer|[Aa]nwender|[Ll]eiter|[Mm]itglied|"
    r"[Kk]und|[Ss]chüler|[Ll]ehrer|[Mm]itarbeit|[Kk]raft|[Kk]räft|[Tt]eam|[Aa]dministrator|[Ee]ntwickler|[Ll]eitung|"
    r"[Vv]orstand|[Kk]oll?eg)\w*)"
)
"""Nouns that "was" and "womit" do not ask for."""
CASES = ("bei", "beim", "für", "im", "in", "nach", "ohne", "vor", "während", "innerhalb", "außerhalb", "zum", "zur")
"""Prepositions of a phrase that "was gilt" can ask for."""
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
REMARKS = word_set("de_remarks")
"""Adverbs that join a sentence to the one before, which a question leaves out."""
LIGHT_VERBS = word_set("de_light_verbs")
"""Verbs whose object is no thing that "was" can ask for."""
SINGULAR = {"werden": "wird", "können": "kann", "müssen": "muss", "sind": "ist", "sollten": "sollte", "sollen": "soll",
            "dürfen": "darf", "befinden": "befindet", "stehen": "steht", "finden": "findet"}  # fmt: skip
"""Plural of a verb -> the form after "was"."""


def invert(clause: Clause, word: str, without: Phrase | None = None, *, rest: bool = True) -> str | None:
    """Return the question that begins with `word` and lacks a phrase of the clause.

    `rest` says whether what follows the phrase stays, up to the rest of the verb. None where the order is not certain.
    """
    phrases = list(clause.middle)
    if without is not None and without in phrases:
        place = after = phrases.index(without)
        while after + 1 < len(phrases) and phrases[after + 1].kind == "PP":  # it may belong to the phrase
            after += 1
        phrases = phrases[:place] + (phrases[after + 1 :] if rest else [])
    phrases = [phrase for phrase in phrases if phrase.tokens[0].text not in REMARKS or phrase.kind != "ADV"]
    fronted = without is not None and without.tokens == clause.front
    pronoun = clause.pronoun
    reader = clause.is_for_reader
    if pronoun and pronoun.text.lower() in ("sie", "er", "es", "dies", "das") and not reader:
        return None
    shown = [clause.words(phrase.tokens) for phrase in phrases if pronoun is None or phrase.tokens[0] is not pronoun]
    end = clause.words(clause.end)
    front = "" if fronted or clause.kind in ("", "PRON", "CLAUSE") else small(clause.front, clause)
    if clause.kind == "":
        prefix = clause.end[-1].text if clause.end and clause.end[-1].tag == "PTKVZ" else ""
        if clause.end and not prefix:
            return None
        verb, subject = "muss", "ich"
        end = f"{prefix}{base_form(clause.verb.text.lower(), 'VV(FIN)', GERMAN)}"
        shown = ["mich" if text in ("sich", "dich") else text for text in shown if text != "Sie"]
    elif reader:
        verb, subject = first_person(clause.verb), "ich"
    else:
        verb, subject = clause.verb.text, pronoun.text.lower() if pronoun else ""
        if not pronoun and clause.kind == "NP" and not fronted and not is_subject(clause.front):
            return None
    if not subject and front and clause.kind != "NP":
        # The subject is in the middle: it comes before the phrase that was in front.
        if without is not None and without.kind == "NP" and not any(phrase.kind == "NP" for phrase in phrases):
            return f"{join(word, verb, front, *shown, end)}?"
        if not phrases or phrases[0].kind not in ("NP", "PRON"):
            return None
        size = 2 if phrases[0].kind == "PRON" and len(shown) > 1 else 1
        shown = [*shown[:size], front, *shown[size:]]
        front = ""
    elif shown and shown[0] in ("mich", "sich", "dich", "mir", "dir"):
        subject = join(subject, shown.pop(0))
    if "," in front:
        front = f"{front},"
    text = join(word, verb, subject, front, *shown, end)
    return f"{for_asker(text) if reader else text}?"


def is_subject(tokens: Sequence[Token]) -> bool:
    """Whether a noun phrase can be in the nominative."""
    return tokens[0].text.lower() not in ("den", "dem", "des", "einen", "einem", "eines", "keinen", "diesen", "jeden")


def small(tokens: Sequence[Token], clause: Clause) -> str:
    """Return a phrase with a small first letter, unless it begins with a noun or a name."""
    text = clause.words(tokens)
    if tokens[0].tag in (*NOUNS, "TRUNC") or re.match(r"[A-ZÄÖÜ]{2}|Ihr", text):
        return text
    return text[:1].lower() + text[1:]


def front_phrase(clause: Clause) -> Phrase:
    return Phrase(clause.kind, clause.front)


def ask_definition(clause: Clause) -> Iterator[Ask]:
    """Yield "Was ist X?" and "Wie heißt X?"."""
    if clause.kind != "NP" or not clause.middle or clause.end or not is_subject(clause.front):
        return
    first, subject = clause.middle[0], small(clause.front, clause)
    lemma = base_form(clause.verb.text, clause.verb.tag, GERMAN)
    named = clause.front[0].tag in ("ART", "NE", "FM", "XY") or clause.verb.text == "sind"
    if clause.verb.text in ("ist", "sind") and first.kind == "NP" and named and len(clause.front) <= 7:
        if (
            first.tokens[0].tag in ("ART", "PIAT", "CARD", "NE", "FM", "XY")
            or clause.verb.text == "sind"
            or first.tokens[0].tag == "ADJ(A)"
        ):
            yield Ask("bare", f"Was {clause.verb.text} {subject}?")
    elif lemma == "bezeichnen":
        yield Ask("bare", f"Was {'sind' if clause.verb.text.endswith('n') else 'ist'} {subject}?")
    elif lemma in ("bedeuten", "heißen"):
        yield Ask("bare", f"{'Wie' if lemma == 'heißen' else 'Was'} {clause.verb.text} {subject}?")


def ask_measure(clause: Clause) -> Iterator[Ask]:
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


def ask_governed(clause: Clause) -> Iterator[Ask]:
    """Yield "Wofür ist X zuständig?", "Worauf basiert X?", "Wozu dient X?"."""
    if clause.kind != "NP" or not is_subject(clause.front):
        return
    words = {base_form(token.text, token.tag, GERMAN) for token in (clause.verb, *clause.end)}
    words |= {phrase.tokens[0].text for phrase in clause.middle if phrase.kind == "ADV"}
    governed = {preposition for word in words for preposition in GOVERNED.get(word, ())}
    for phrase in clause.middle:
        preposition = phrase.tokens[0].text.lower()
        if preposition not in governed or (phrase.kind != "PP" and preposition != "als"):
            continue
        if PERSON.search(clause.words(phrase.tokens)) or not phrase.head:
            continue
        word = question_word(preposition, words)
        if question := invert(clause, word, phrase, rest=True):
            yield Ask("bare", question)


def question_word(preposition: str, words: Collection[str]) -> str:
    """Return "worauf" for "auf", "wozu" for "zum"."""
    plain = {"zum": "zu", "zur": "zu", "vom": "von", "im": "in", "beim": "bei", "als": "zu"}.get(
        preposition, preposition
    )
    if plain == "zu" and words & {"verwenden", "nutzen", "benutzen", "benötigen", "einsetzen"}:
        plain = "für"
    return f"Wo{'r' if plain[0] in 'aeiouäöü' else ''}{plain}"


def ask_means_and_place(clause: Clause) -> Iterator[Ask]:
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
        if preposition in BY_MEANS and (possible or reader or is_passive(clause)) and not PERSON.search(text):
            if preposition == "mit" and clause.kind != "PP" and not possible and not is_passive(clause):
                continue
            word = f"Wo{preposition}" if is_passive(clause) and preposition in ("mit", "durch") else "Wie"
        elif preposition in IN_PLACE and PLACE.search(text) and any(map(PLACED.match, verbs.split())):
            word = "Wo"
        else:
            continue
        if question := invert(clause, word, phrase):
            yield Ask("bare", question)


def main_verb(clause: Clause) -> str:
    """Return the infinitive of what is done: "anlegen" for "Legen Sie … an"."""
    last = clause.end[-1] if clause.end else clause.verb
    if last.text == "werden" and len(clause.end) > 1:
        last = clause.end[-2]
    if last.tag == "PTKVZ":
        return f"{last.text}{base_form(clause.verb.text.lower(), 'VV(FIN)', GERMAN)}"
    return base_form(last.text.lower(), last.tag, GERMAN)


def is_passive(clause: Clause) -> bool:
    """Whether something is done: "wird gespeichert"."""
    return clause.verb.text in ("wird", "werden") and bool(clause.end) and clause.end[-1].tag == "VV(PP)"


def subject_or_object(clause: Clause, without: Phrase) -> bool:
    """Whether a clause names a thing besides a phrase."""
    others = [phrase for phrase in (*clause.middle, front_phrase(clause)) if phrase is not without]
    return any(phrase.kind == "NP" and phrase.head for phrase in others)


def ask_object(clause: Clause, *, complement: bool) -> Iterator[Ask]:
    """Yield "Was unterstützt X?" and "Was finde ich unter X?"."""
    lemma = main_verb(clause)
    if lemma in LIGHT_VERBS and not (lemma == "finden" and clause.kind == "PP"):
        return
    if clause.kind == "NP":
        if not is_subject(clause.front) or clause.verb.tag.startswith("VA") or len(clause.front) > 8:
            return
        if any(token.tag in ("PTKVZ",) for token in clause.end) and not clause.middle:
            return
        phrases = [phrase for phrase in clause.middle if phrase.kind != "ADV"]
        if complement and (not phrases or phrases[0].tokens[0].text == "es"):
            if lemma in ("ermöglichen", "erlauben", "bedeuten", "verlangen", "fordern", "verhindern"):
                yield Ask("bare", f"Was {clause.verb.text} {small(clause.front, clause)}?")
            return
        first = phrases[0] if phrases else None
        if complement or first is None or first.kind != "NP" or not is_object(first, clause):
            return
        if question := invert(clause, "Was", first, rest=False):
            yield Ask("bare", question)
    elif clause.kind == "PP" and not complement:
        yield from ask_content(clause, lemma)


def ask_content(clause: Clause, lemma: str) -> Iterator[Ask]:
    """Yield "Was finde ich unter X?" and "Was wird in X gespeichert?"."""
    text = clause.words(clause.front)
    if (
        IDIOM.match(text)
        or clause.front[0].text.lower() not in (*IN_PLACE, "für", "zum", "zur")
        or len(clause.front) > 8
    ):
        return
    things = [phrase for phrase in clause.middle if phrase.kind == "NP"]
    if not things or PERSON.search(clause.words(things[0].tokens)):
        return
    front, end = small(clause.front, clause), clause.words(clause.end)
    reader = clause.is_for_reader or (clause.pronoun and clause.pronoun.text == "man")
    if reader and clause.pronoun and len(things) == 1:
        own = clause.pronoun.text != "man"
        verb = first_person(clause.verb) if own else clause.verb.text
        question = join("Was", verb, "ich" if own else "man", front, end)
        yield Ask("bare", f"{for_asker(question) if own else question}?")
    elif not clause.pronoun and len(things) == 1 and is_subject(things[0].tokens):
        passive = bool(clause.end) and (clause.verb.text in ("wird", "werden") or clause.end[-1].text == "werden")
        reflexive = clause.verb.text in ("befindet", "befinden") and any(
            p.tokens[0].text == "sich" for p in clause.middle
        )
        if passive or reflexive:
            verb = SINGULAR.get(clause.verb.text, clause.verb.text)
            yield Ask("bare", f"{join('Was', verb, 'sich' if reflexive else '', front, end)}?")


def is_object(phrase: Phrase, clause: Clause) -> bool:
    """Whether a noun phrase is a thing in the accusative."""
    first = phrase.tokens[0].text.lower()
    if first in ("dem", "einem", "des", "eines", "der", "einer", "ihrem", "seinem") or re.match(r"\w+em$", first):
        return False
    return bool(phrase.head) and not PERSON.search(clause.words(phrase.tokens))


def ask_case(clause: Clause) -> Iterator[Ask]:
    """Yield "Was gilt bei X?" or "Was passiert beim X?" for a sentence that begins with a phrase with a preposition."""
    if (
        clause.kind == "NP"
        and clause.pronoun is None
        and len(clause.front) <= 8
        and "," not in clause.words(clause.front)
    ):
        strict = clause.verb.text.startswith(("muss", "müss", "darf", "dürf", "soll"))
        if strict and (name := with_article(clause)):
            yield Ask("bare", f"Was gilt für {name}?")
        return
    text = clause.words(clause.front)
    if clause.kind != "PP" or IDIOM.match(text) or "," in text or len(clause.front) > 12:
        return
    first = clause.front[0].text.lower()
    if first not in CASES:
        return
    head = front_phrase(clause).head
    if head is None or (len(clause.front) <= 3 and len(head.text) < 6 and head.tag == "NN"):
        return
    phrase = for_asker(text[0].lower() + text[1:])
    if clause.is_for_reader:
        verb = "kann" if clause.verb.text.startswith(("kann", "könn")) else "muss"
        yield Ask("bare", f"Was {verb} ich {phrase} tun?")
    elif first in ("zum", "zur"):
        return
    elif first in ("nach", "beim") and clause.pronoun is None and not clause.verb.tag.startswith("VM"):
        yield Ask("bare", f"Was passiert {phrase}?")
    else:
        yield Ask("case", phrase)


def with_article(clause: Clause) -> str:
    """Return the subject in front in the accusative; empty where that is not certain."""
    core = core_of(clause.front, whole=True)
    if not core or not any(token.tag in NOUNS for token in core):
        return ""
    before = clause.front[: clause.front.index(core[0])]
    return accusative(before, core, clause, nominative=True)
