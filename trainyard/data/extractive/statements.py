"""Statements of a section, each with the question that it answers.

A statement is a sentence (with those after it that point back to it), a list item, a labelled value, a step, or a whole
short list. Its question is made of its own words (`english`, `german`); where that is not certain, the question names
what the statement is about. Languages without rules of their own give none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from trainyard.data.extractive import clauses, english, german, german_topics, lexicon, sentences, soundness
from trainyard.data.extractive.cleaning import only_refers
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.grammar import BARE, POINTERS
from trainyard.data.extractive.leads import ask_lead
from trainyard.data.extractive.lexicon import word_set
from trainyard.data.extractive.outline import Section, TextBlock
from trainyard.data.extractive.sentences import num_words
from trainyard.data.language import ENGLISH, GERMAN

MOST_CODE_LINES, MOST_CODE_CHARS = 12, 500
LEAST_LETTERS, LEAST_NAME = 6, 5
NAME = re.compile(r"`[^`]+`|[A-Z][A-Z0-9.]+|[A-Z][a-z]+[A-Z]\w*")
"""A short phrase that is a name all the same."""
SHORT_COMMAND, MOST_VAGUE = 6, 10
ITEM_WORDS = 8
"""Of a list item that says something without a verb."""
FOLLOWING_WORDS = 8
"""Of a sentence that points back and still has a question of its own."""
MOST_ANSWER_WORDS = 60
MOST_LIST_WORDS = 120
LABELLED = re.compile(r"^(?P<term>[^:：–—]{2,60}?)\s*(?::\s+|：\s*|\s[–—-]\s+|——\s*)(?P<meaning>\S.*)$", re.S)
ASKERS: dict[str, Callable[[str, Collection[str], str], list[Ask]]] = {
    ENGLISH: english.ask_english,
    GERMAN: german.ask_german,
}
CONTENT: dict[str, Callable[[str], list[str]]] = {ENGLISH: english.content_words, GERMAN: german.content_words}
FOLLOWS = {
    ENGLISH: re.compile(
        r"(?:it|its|they|their|this|these|that|those|such|then|so|therefore|however|otherwise|instead|also|but|and|"
        r"moreover|furthermore|unfortunately|fortunately|additionally|similarly|likewise|still|thus|hence|"
        r"he|she|in (?:this|that) case|for example|for instance|in addition|as a result|there|here|most|both|"
        r"other)\b", re.I
    ),
    GERMAN: re.compile(
        r"(?:er|sie|es|dies\w*|solche\w*|dort|dabei|dafür|damit|dazu|daher|dadurch|danach|dann|so|jedoch|außerdem|"
        r"zudem|aber|und|andernfalls|sonst|hier\w*|deshalb|beide|dessen|deren)\b", re.I,
    ),
}  # fmt: skip
"""How a sentence begins that continues the one before."""
DEICTIC = {
    ENGLISH: re.compile(r"^[^,;]*\b(?:this|these|those|above|previous)\b", re.I),
    GERMAN: re.compile(
        r"^[^,;]*\b(?:dies\w*|oben\w*|obige\w*|hierüber|hierbei|hierzu|ebenso|da(?:für|bei|mit|her|nach|raus|zu))\b",
        re.I,
    ),
}
"""What makes a sentence too dependent on its neighbours for a question that only names its subject."""
ABOVE = re.compile(r"\boben genannt|\bobige|\b[Ww]eitere(?:s|n)? (?:findest|finden|gibt)|\babove-mentioned")
POINTS_ONLY = re.compile(
    r"(?:This|That|It|Das|Dies) (?:is|was|ist|war) (?:not|an example|because|why|where|how|what|nicht|kein)\b"
)
ELSEWHERE = re.compile(
    r"\bhere\W*$|^(?:Welcome|Willkommen)\b|\b(?:refer to|see|consult|check out) (?:this|our) \w+"
    r"|\bsiehe auch\b|\bsee also\b|\bavailable here\b|\(see [^()]*\)\W*$|\bweiter unten\b"
    r"|\[\s*\]|\\(?:ref|label)\{",
    re.I,
)
"""What makes a sentence point to another place."""
LATEX = re.compile(r"\\(?:ref|label|cite)\{|\[\s*\]")
CONNECTIVE = re.compile(
    r"(?:However|Moreover|Furthermore|In addition|Additionally|Also|Therefore|Thus|Unfortunately|Fortunately|Similarly|"
    r"Außerdem|Zudem|Allerdings|Daher|Deshalb)(?:,)? (?=\w)"
)
ORDER = {ENGLISH: "step {number}", GERMAN: "Schritt {number}"}
PHRASE_EN = re.compile(r"(?<=[a-z,] )(?:[A-Z][\w.-]+)(?: [A-Z][\w.-]+)*(?: and (?:[A-Z][\w-]+)(?: [A-Z][\w-]+)*)?")
TIME_OR_PATH = re.compile(rf"^(?:{english.DAYS}|{english.MONTHS}|I)\b|[>→/]")
GERUND_OF = {verb: gerund for gerund, verb in lexicon.GERUNDS.items()}
LONGEST_OBJECT = 6
TWO_TOPICS = 10
"""Words of a sentence that two questions may name a topic of."""
ADJECTIVES = ("al", "ive", "able", "ible", "ful", "less", "ous", "ic")

GENERIC = word_set("en_generic")
"""Nouns that a question cannot be about."""
QUANTITIES = ("lot", "number", "variety", "couple", "range", "bit", "set", "series", "list", "group")
OPTION = re.compile(r"`[^`]*[-_.{}()$<=/][^`]*`")
CONTINUES = re.compile(r"(?:and|or|the|in|on|to|with|from|is|are)\b|[,(;/]")
"""What follows a code span that is not the name of what an item explains."""
PLACE_WORDS = 9
"""Longest page and section that a question names."""
IN_SECTION = 3
"""Times as many sentences of a page may have a topic whose section is named."""
SUBJECT_SENTENCES, NAME_SENTENCES = 4, 2
"""Sentences of a page that may have the topic of a question: the subject of its sentence, or a name in it."""


@dataclass(frozen=True)
class Statement:
    """A question rule with its topic, and the answer of the page. `worth` is that of a fact."""

    rule: str
    topic: str
    answer: str
    worth: int
    clause: str = ""
    placed: bool = False
    context: str = ""
    """What the title is to end with: the label of a list item above, for example."""
    sentences: int = 1


class Reader:
    """Reads the statements of a document, section by section."""

    def __init__(self, language: str, title: str, sections: Collection[Section]) -> None:
        self.language, self.title = language, title
        texts = [block.text for section in sections for block in section.blocks]
        self.vocabulary = frozenset(re.findall(r"(?<![\w-])[a-zäöüß][\w'’-]*", " ".join(texts)))
        self.used_phrases: set[tuple[str, str]] = set()
        self.text = plain_text(" ".join(texts))
        self.counts = Counter(self.text.split())
        self.sentences = [plain_text(sentence) for text in texts for sentence in sentences.sentences(text)]
        self.section_sentences: list[str] = []

    def read(self, section: Section, topic: str) -> Iterator[Statement]:
        """Yield the statements of a section in page order."""
        if self.language not in ASKERS:
            return
        texts = [block.text for block in section.blocks]
        self.section_sentences = [plain_text(sentence) for text in texts for sentence in sentences.sentences(text)]
        codes: dict[str, list[str]] = {}
        for before, code in section.code:
            if before.rstrip().endswith((":", "：")):
                codes.setdefault(before, []).append(code)
        for list_id, group in groupby(section.blocks, key=lambda block: block.list_id):
            blocks = list(group)
            if list_id:
                yield from self.read_list(blocks, topic)
                continue
            for block in blocks:
                for code in codes.get(block.text, ())[:1]:
                    yield from self.read_code(block, code, topic)
                if not only_refers(block.text) and not block.label:
                    yield from self.read_paragraph(block.text, topic)
                elif block.label and not only_refers(block.text):
                    yield from self.read_note(block, topic)

    def read_note(self, block: TextBlock, topic: str) -> Iterator[Statement]:
        """A further paragraph of a labelled list item."""
        label = block.label.strip("`")
        if value := labelled_value(block.text):
            term, _ = value
            yield Statement(
                "value", f"{term} ({label})" if self.language == ENGLISH else f"{label}: {term}", ended(block.text), 1
            )
            return
        for statement in self.read_paragraph(block.text, topic):
            yield replace(statement, placed=True, context=label)

    def read_paragraph(self, text: str, topic: str) -> Iterator[Statement]:
        for first, answer, count in self.units(text):
            head, *others = sentences.sentences(answer) if count > 1 else [first]
            yield from self.ask(head, answer, topic, count)
            subject = self.subject_of(head)
            for other in others:
                if num_words(other) >= FOLLOWING_WORDS and not POINTS_ONLY.match(other):
                    yield from self.ask(other, answer, topic, count, subject)

    def subject_of(self, sentence: str) -> str:
        """Return what a pronoun after an English sentence means; empty where that is not certain."""
        if self.language != ENGLISH:
            return ""
        clause = clauses.parse_clause(sentence.rstrip(".!"), self.vocabulary)
        if clause is None or clause.subject.lower() in clauses.PRONOUNS or clause.kind == "command":
            return ""
        return clause.subject if len(clause.subject.split()) <= 5 else ""

    def read_code(self, block: TextBlock, code: str, topic: str) -> Iterator[Statement]:
        """Yield the statement of a paragraph that announces a short piece of code."""
        lead = sentences.sentences(block.text)[-1].strip()
        if num_words(lead) < 4 or FOLLOWS[self.language].match(lead) or not acceptable_part(lead.rstrip(":")):
            return
        lines = code.strip("\n").split("\n")
        if not 1 <= len(lines) <= MOST_CODE_LINES or len(code) > MOST_CODE_CHARS:
            return
        answer = f"{lead}\n\n```\n{code.strip(chr(10))}\n```"
        others = []
        for statement in self.ask(lead.rstrip(" :："), answer, topic):
            if statement.rule in ("condition_do", "condition", "purpose"):
                yield statement
                return
            if statement.rule != "statement":
                others.append(statement)
        if (command := clauses.parse_clause(lead.rstrip(" :"), self.vocabulary)) and command.kind == "command":
            goal = f"{command.verb} {clauses.cut(command.rest)}"
            if not english.DANGLING.search(goal) and len(goal.split()) > 2 and self.language == ENGLISH:
                yield Statement("purpose", goal, answer, 0, "", True)
                return
        yield from others[:1]

    def units(self, text: str, *, items: bool = False) -> list[tuple[str, str, int]]:
        """(sentence, the answer that it begins, sentences of the answer).

        A sentence that points back continues the answer before it; it begins one of its own, too, with all of them.
        """
        found: list[tuple[str, str, int]] = []
        parts = sentences.sentences(text)
        taken: list[str] = []
        for part in parts:
            points = bool(FOLLOWS[self.language].match(part.lstrip(sentences.OPENERS)))
            points = points or soundness.leans(part, self.language)
            whole = " ".join([*taken, part])
            bare = part.rstrip(sentences.CLOSERS + " ")
            if items or bare[-1:] in ".!…":
                pass
            else:
                taken = []  # a lead-in or a caption
                continue
            if points and taken and num_words(whole) <= MOST_ANSWER_WORDS and acceptable_part(part):
                if sentences.INCOMPLETE.search(part) or soundness.EXAMPLE.search(part):
                    taken = []
                    continue
                taken.append(part)
                first, _, _ = found[-1]
                found[-1] = (first, ended(whole), len(taken))
                continue
            if soundness.leans(part, self.language):
                taken = []
            elif (sound := sentences.short_answer(part)) and acceptable_part(part):
                taken = [part]
                found.append((part, sound, 1))
            elif CONNECTIVE.match(part) and acceptable_part(part) and sentences.short_answer(without_opening(part)):
                taken = [part]
                found.append((part, ended(part), 1))
            else:
                taken = []
        return found

    def ask(self, sentence: str, answer: str, topic: str, count: int = 1, subject: str = "") -> Iterator[Statement]:
        """Yield the statements of a sentence, with questions of its own or one about its subject."""
        if sentence[:1] == "(" and (inner := re.fullmatch(r"\(([^()]+[.!])\)", sentence.strip())):
            answer = inner[1] if answer == sentence.strip() else answer
            sentence = inner[1]
        if sentence.rstrip()[-1:] in "?？" or sentence[:1] in "([" or ELSEWHERE.search(sentence):
            return
        asks = [ask for ask in ASKERS[self.language](sentence, self.vocabulary, subject) if ask.rule != "weak"]
        for ask in asks:
            yield Statement(ask.rule, ask.topic, answer, 0, ask.clause, self.is_vague(ask), "", count)
        if (
            not asks
            and re.match(r"(?:There|It) (?:is|are|was)\b|Es gibt\b", sentence)
            and (num_words(sentence) < MOST_VAGUE or sentence.split()[2] in ("also", "auch"))
        ):
            return
        if not asks and len(sentence.split()) < SHORT_COMMAND and clauses.first_word(sentence) in lexicon.BASE:
            return
        if (count == 1 and "://" in sentence) or ABOVE.search(sentence):
            return
        if count == 1 and DEICTIC[self.language].search(sentence):
            return
        length = len(sentence.split())
        besides = " ".join(ask.topic for ask in asks)
        if sentence[:1].islower() or (asks and length < english.TWO_FACTS):
            return
        for _ in range(2 if length >= TWO_TOPICS else 1):
            if phrase := self.phrase_of(sentence, topic, besides=besides or None):
                shown = german_topics.in_question(phrase, sentence) if self.language == GERMAN else phrase
                yield Statement("statement", shown, answer, 2, sentences=count)
                besides = f"{besides} {phrase}"

    def is_vague(self, ask: Ask) -> bool:
        """Whether a question needs the name of its page."""
        words = CONTENT[self.language](ask.topic)
        title_words = {word[:5] for word in CONTENT[self.language](self.title)}
        names = re.search(r"`|(?<=[a-z] )[A-Z]", ask.topic) if self.language == ENGLISH else "`" in ask.topic
        return not (any(word[:5] in title_words for word in words) or len(words) >= 5 or (names and len(words) >= 3))

    def phrase_of(self, sentence: str, topic: str, *, besides: str | None = None) -> str | None:
        """Return what a sentence is about, in words that few sentences of the page have.

        With `besides`, a question of the same sentence, the phrase has other words than it.
        """
        taken = set(CONTENT[self.language](besides or ""))
        known = soundness.stems(f"{self.title} {topic}")
        pointer = POINTERS.get(self.language)
        for phrase, most in self.phrases(sentence):
            plain = phrase.lower()
            content = CONTENT[self.language](phrase)
            if not content or taken & set(content) or (topic, plain) in self.used_phrases or len(phrase.split()) > 7:
                continue
            bare = phrase
            if self.language == ENGLISH and len(content) > 1 and content[0] not in english.POINTING_ADJECTIVES:
                bare = re.sub(r"\b(?:the|all|each) ", "", phrase)
            if self.language == GERMAN:
                bare = re.sub(r"(?<=\w )(?:de[rsmn]|die|das) ", "", phrase)
            if pointer and pointer.search(re.sub(r"`[^`]*`", "", bare)):
                continue
            if re.search(r"[\"“”„()\[\]<>|={}]", phrase.strip("`")) or phrase.count("`") % 2 or only_refers(phrase):
                continue
            words = phrase.split()
            if any(
                word in clauses.DETERMINERS
                and words[place] not in clauses.PREPOSITIONS
                and words[place] not in (*lexicon.GERUNDS, "of")
                for place, word in enumerate(words[1:])
            ):
                continue
            if self.language == ENGLISH and len(content) < 3 and content[0] in english.POINTING_ADJECTIVES:
                continue
            shown = plain_text(phrase)
            texts = sum(f" {shown} " in f" {text} " for text in self.sentences)
            if topic and num_words(f"{self.title} {topic}") <= PLACE_WORDS and texts <= most * IN_SECTION:
                texts = sum(f" {shown} " in f" {text} " for text in self.section_sentences)
                most -= 1
            if not shown or texts > most or not soundness.stems(phrase) - known:
                continue
            self.used_phrases.add((topic, plain))
            return phrase
        return None

    def phrases(self, sentence: str) -> Iterator[tuple[str, int]]:
        """Yield what a sentence may be about with the sentences of the page that may have it, the surest first."""
        yield from german_topics.topics(sentence) if self.language == GERMAN else self.english_phrases(sentence)

    def english_phrases(self, sentence: str) -> Iterator[tuple[str, int]]:
        clause = clauses.parse_clause(re.sub(english.OPENING, "", sentence.rstrip(".!")), self.vocabulary)
        if clause and clause.subject.lower() not in clauses.PRONOUNS and clause.kind != "command":
            words = clause.subject.split()
            vague = english.VAGUE_SUBJECT.search(clause.subject) or not re.match(r"[\w`]", clause.subject)
            content = english.content_words(clause.subject)
            is_topic = NAME.fullmatch(clause.subject) or (
                len(content) > 1 or (content and len(content[0]) >= LEAST_LETTERS)
            )
            vague = vague or (len(content) == 1 and words[-1].lower() in english.PERSON_NOUNS)
            vague = vague or (len(words) == 1 and words[0].lower() in lexicon.BASE)
            if not vague and is_topic and words[-1].lower().removesuffix("s") not in GENERIC:
                yield clause.subject, SUBJECT_SENTENCES
        if clause and (doing := doing_of(clause)):
            yield doing, SUBJECT_SENTENCES
        yield from ((part, NAME_SENTENCES) for part in code_spans(sentence))
        for match in PHRASE_EN.finditer(sentence):
            name = match[0].rstrip(".")
            if TIME_OR_PATH.search(f"{name}{sentence[match.end() : match.end() + 3]}"):
                continue
            known = " " in name or (re.search(r"\w[A-Z\d]", name) and len(name) >= LEAST_NAME)
            if re.search(r"(?:,|\b(?:and|or)) $", sentence[: match.start()]) or name.endswith("ed"):
                continue
            if known and self.is_whole_name(match, sentence) and " and " not in name:
                yield name, NAME_SENTENCES
        if clause and clause.kind != "be" and clause.verb != "be":
            obj, _ = clauses.split_object(clauses.cut(clause.rest))
            obj = re.sub(r"^(?:any|some|more|every|each) ", "", obj)
            words = obj.split()
            whole = (
                obj
                and not obj.endswith("ed")
                and clauses.noun_start(obj)
                and 2 <= len(english.content_words(obj)) <= 4
                and words[0] not in lexicon.BASE
                and words[0] not in ("a", "an")
                and (words[0] in ("the", "your") or words[-1].endswith("s"))
                and not re.search(r"\b(?:and|or)\b", obj)
            )
            if whole and not (
                obj.endswith(ADJECTIVES) or words[-1].removesuffix("s") in GENERIC or words[0] in QUANTITIES
            ):
                yield obj, 1

    def is_whole_name(self, match: re.Match[str], sentence: str) -> bool:
        """Whether a name in capitals is not part of a longer name or of a compound such as "the DC fridge"."""
        before = sentence[: match.start()].split()[-1:]
        after = re.match(r" ([a-z][\w-]+)", sentence[match.end() :])
        if before and before[0].lstrip("\"'“(")[:1].isupper() and before[0].lower() not in clauses.DETERMINERS:
            return False
        word = after[1] if after else ""
        verbal = (
            word in english.STOP_WORDS or word in clauses.PREPOSITIONS or word in lexicon.THIRD or word in lexicon.BASE
        )
        return " " in match[0] or not word or verbal or word.endswith("ed")

    def has_verb(self, sentence: str) -> bool:
        """Whether a list item is a sentence, and not only a name."""
        if self.language == GERMAN:
            return german.is_sentence(sentence)
        return clauses.parse_clause(sentence.rstrip(".!"), self.vocabulary) is not None

    def read_list(self, blocks: list[TextBlock], topic: str) -> Iterator[Statement]:
        """Items one by one, and a short list as a whole."""
        lead = blocks[0].lead
        shown = [block for block in blocks if num_words(block.text)]
        texts = [block.text.rstrip(" ;,:.") for block in shown]
        covered: set[str] = set()
        for place, block in enumerate(shown):
            for statement in self.read_item(block, topic):
                covered.add(block.text)
                yield statement
            if place + 1 < len(shown) and shown[place + 1].depth != block.depth:
                continue
        words = sum(num_words(text) for text in texts)
        name = topic if topic and not BARE.fullmatch(topic) and topic.lower() != self.title.lower() else ""
        labelled = sum(labelled_value(text) is not None for text in texts)
        if labelled * 2 > len(texts):
            return
        if len(texts) < 2 or words > MOST_LIST_WORDS or words < 4 or len(texts) == len(covered):
            return
        if any(block.text.rstrip().endswith((":", "：")) for block in shown):
            return  # a list of this list is missing in it
        ordered = bool(shown[0].number)
        is_lead = bool(lead) and lead.rstrip().endswith((":", "："))
        joined = "; ".join(texts)
        answer = ended(
            f"{lead.rstrip()} {joined}" if is_lead and num_words(lead) + words <= MOST_LIST_WORDS + 10 else joined
        )
        if is_lead and (ask := ask_lead(lead, self.language, self.vocabulary)):
            yield Statement(ask.rule, ask.topic, answer, 1, ask.clause, True, "", len(texts))
        elif name and (ordered or commands(texts, self.language)):
            yield Statement("steps", name, answer, 1, "", True, "", len(texts))
        elif name:
            yield Statement("listing", name, answer, 1, sentences=len(texts))

    def read_item(self, block: TextBlock, topic: str) -> Iterator[Statement]:
        """A list item: a sentence like any other, a labelled one, or a step of a numbered list."""
        text = block.text
        value = labelled_value(text)
        if value is not None:
            term, meaning = value
            if not POINTERS[self.language].fullmatch(term) and not BARE.fullmatch(term):
                code = bool(re.fullmatch(r"`[^`]+`.*", term))
                rule = "option" if code else "value" if num_words(meaning) < 5 else ""
                if rule and num_words(meaning):
                    yield Statement(rule, term.strip("`"), ended(text), 1)
                    return
                if rule == "" and num_words(text) <= MOST_ANSWER_WORDS:
                    return  # a term with its meaning, which `item_facts` has
        label = block.label if OPTION.fullmatch(block.label) else ""
        rest = text[len(label) :].strip()
        explains = label and text.startswith(label) and num_words(rest) > 2 and not CONTINUES.match(rest)
        whole = acceptable_part(text) and num_words(text) <= MOST_ANSWER_WORDS and not text.rstrip().endswith(":")
        if explains and whole and value is None:
            yield Statement("option", label.strip("`"), ended(text), 1)
            return
        if num_words(text) < 3 or text.rstrip().endswith((":", "：")) or not acceptable_part(text):
            return
        units = self.units(text, items=True) or (
            [(text, ended(text), 1)] if num_words(text) <= MOST_ANSWER_WORDS else []
        )
        first, answer, count = units[0] if units else ("", "", 0)
        continues = block.lead.rstrip().endswith((":", "：")) and first[:1].islower()
        if continues and num_words(f"{block.lead} {answer}") <= MOST_ANSWER_WORDS:
            answer = f"{block.lead.strip()} {answer}"
        for statement in self.ask(first, answer, topic, count) if units else ():
            says = self.has_verb(first) or (topic and num_words(first) >= ITEM_WORDS and not first[0].islower())
            if statement.rule == "statement" and ((block.number and topic) or not says):
                break
            yield statement
            for other, its_answer, its_count in units[1:]:
                yield from self.ask(other, its_answer, topic, its_count)
            return
        name = self.language == ENGLISH and not (self.has_verb(first) or clauses.first_word(first) in lexicon.BASE)
        if block.number and topic and not BARE.fullmatch(topic) and units and not name:
            step = ORDER[self.language].format(number=block.number)
            if num_words(text) <= MOST_ANSWER_WORDS:
                yield Statement("step", step, ended(text), 1, context="")


def doing_of(clause: clauses.Clause) -> str:
    """Return "using a proxy" of "You can use a proxy …"; empty where there is no such phrase."""
    advises = clause.kind == "command" or (clause.subject.lower() in ("you", "we") and clause.kind in ("modal", "verb"))
    verb = clause.verb.lower()
    if not advises or clause.negative or verb not in GERUND_OF or verb in english.WEAK_VERBS:
        return ""
    obj, _ = clauses.split_object(clauses.cut(clause.rest))
    words = obj.split()
    if not 1 <= len(words) <= LONGEST_OBJECT or not clauses.noun_start(obj) or words[0].lower() in english.PERSONS:
        return ""
    if len(english.content_words(obj)) < 2 and not re.search(r"[`A-Z]", obj):
        return ""
    if words[-1].lower() in (*clauses.PREPOSITIONS, *clauses.DETERMINERS, "and", "or", "to") or "to" in words:
        return ""
    return f"{GERUND_OF[verb]} {obj}"


def code_spans(sentence: str) -> list[str]:
    """Return the code spans of a sentence that may be a topic."""
    return [part for part in re.split(r"(`[^`]*`)", sentence)[1::2] if 4 < len(part) < 42]


def without_opening(text: str) -> str:
    rest = CONNECTIVE.sub("", text)
    return rest[:1].upper() + rest[1:]


def plain_text(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def labelled_value(text: str) -> tuple[str, str] | None:
    """("Default", "`200`") of "Default: `200`"."""
    match = LABELLED.match(text)
    if match is None or num_words(match["term"]) > 6 or match["term"].count("`") % 2 or ". " in match["term"]:
        return None
    return match["term"].strip(), match["meaning"].strip()


def acceptable_part(text: str) -> bool:
    """Whether a text has no remains of markup and no open bracket."""
    bare = sentences.outside_code(text)
    if LATEX.search(bare):
        return False
    return not sentences.REMAINS.search(bare) and not text.count("`") % 2 and bare.count("(") == bare.count(")")


def ended(text: str) -> str:
    """The text with a full stop at its end."""
    text = text.rstrip(" ;,:")
    return text if text[-1:] in ".!?。" else f"{text}."


def commands(texts: Collection[str], language: str) -> bool:
    """Whether most items of a list are instructions."""
    if language != ENGLISH:
        return language == GERMAN and sum(map(german.is_instruction, texts)) * 2 > len(texts)
    return sum(clauses.first_word(text) in lexicon.BASE for text in texts) * 2 > len(texts)
