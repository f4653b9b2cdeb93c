"""Prose to facts: a topic, its place, and a short answer in one sentence of the document.

Four rules, in order of worth: a heading and its first paragraph; a list item or table row `term: meaning`; a sentence
`X is …`; the document's title and its first paragraph. An answer has 5 to 60 words and is never cut inside a sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from trainyard.data.extractive import clauses, grammar, sentences, soundness
from trainyard.data.extractive.cleaning import only_refers, speakers_of, spoken, without_label
from trainyard.data.extractive.english_fronts import COMMANDS, instructs
from trainyard.data.extractive.grammar import BARE, COLONS, POINTERS
from trainyard.data.extractive.noun_phrases import is_finite
from trainyard.data.extractive.outline import Section, TextBlock
from trainyard.data.extractive.passages import ANNOUNCES
from trainyard.data.extractive.sentences import CLOSERS, ENOUGH_WORDS, num_words, short_answer
from trainyard.data.extractive.statements import (
    ABOVE,
    ASKERS,
    ELSEWHERE,
    REFERS,
    Reader,
    Statement,
    acceptable_part,
    commands,
    ended,
    labelled_value,
    place_of,
)
from trainyard.data.extractive.tagging import tag_sentence
from trainyard.data.language import ENGLISH, GERMAN, detect_language

LISTS = ("listing", "steps")
ALSO = re.compile(r"(?:\w+ ){1,3}(?:also|auch)\b")
"""A first sentence that adds something to the text above it."""
MOST_WHOLE_WORDS, MOST_SECTION_CODE = 220, 400
"""Words of a section with its lists that is one answer, and letters of each piece of its code."""
MOST_PIECES = 3
"""Pieces of code in such a section."""
LEAST_TASK = 10
"""Words of a section that says how to do what its heading names."""
LEAST_SHARE, MOST_SHARE = 0.6, 0.8
"""Of a section that its answer has, and that the answer to another question may have."""
READ_MORE = re.compile(r"(?:Read|Learn|See|Visit|Refer|Check out|Find out) ")
GENERAL = re.compile(
    r"(?:contacts?|notes?|examples?|sources?|licen[cs]e|links?|websites?|authors?|dates?|status|owners?|see|names?|questions?|"
    r"answers?|titles?|results?|e-?mails?|todo|fix|tip)$|about (?:this|the)\b",
    re.I,
)
"""A label or heading that names nothing alone."""
MOST_SECTION_WORDS = 200
"""Of a section that is one answer."""
EMPTY = re.compile(
    r"(?:click )?here|links?|downloads?|github|website|docs|n/?a|none|-+|—|tbd|tba|todo|see (?:above|below|notes?)|"
    r"hier|siehe (?:oben|unten)|k\. ?a\.",
    re.I,
)
"""Cells that say nothing without their link or their neighbours."""
TEASER = re.compile(r"(?:How|Why|What|When|Where|Learn|Read|Find|See|Discover)\b(?!.*\?)|\(")
"""How a meaning begins that only announces a page, or only adds to what was cut."""
EXPLAINED = re.compile(r"(?:[^\w]*)(?:How|Why|What (?:should|do|can|now))\b")
"""How a question begins whose answer is seldom the first sentence."""
QUESTION_SENTENCES = 3
"""Sentences that may answer a heading that asks."""
ALONE_WORDS = 20
"""Of an answer that may add something ("also") to the text before it."""
LEAST_FRESH = 2
CLOSED = re.compile(r"(?:Is|Are|Was|Were|Can|Could|Do|Does|Did|Has|Have|Must|Should|Will|May) ")
"""How a question begins that is answered with yes or no."""
LEAST_REASON = 4
"""Words that the answer to such a question adds: without them it only turns the question around."""
FRESH = {"statement": 4, "section": 3, "purpose": 3}
"""Words of an answer that its question does not have; more where the question only names a topic."""
MEASURE = re.compile(
    r"\d[\d.,:/–-]*(?: ?(?:%|min\w*|stund\w*|hours?|days?|tage?n?|sek\w*|sec\w*|weeks?|wochen?|months?|monate?n?|"
    r"years?|jahre?n?|uhr|am|pm|[A-Z]?[a-zä]{2,8}\.?(?: \d{4})?))?",
    re.I,
)
"""A number, a duration or a date."""
MOST_ABOVE = 40
"""Words above the first heading of a page of which it is the title."""
LAST_RESORT = 9
"""Worth of a question that asks what a page is about."""
TEMPLATE_TAG = re.compile(r"\{\{|\{%|<%")
"""Of a site builder, which fills in the title."""
REMARK = re.compile(
    r"(?:wichtig|hinweis|achtung|tipp|beachte|note|important|warning|caution|tip|hint|info|remember|"
    r"optional|recommended|required)\w*",
    re.I,
)
"""Words before a remark, which name nothing."""
LEAST_WITH_LINK = 25
"""Words of a section's answer that also refers to another page."""
LEAST_SECTION = 20
"""Words of a section's answer that leaves out the list or the code after it."""
TERM_WORDS = 6
MOST_NAME_WORDS = 9
"""Of a link's text or a title."""
DATED = re.compile(r"\b(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)\w* \d{1,2}(?:\w\w)?, \d{4}\W*$")
"""The title of an article with its date."""
NUMBERED = re.compile(r"(?:Step|Schritt|Part|Teil|Chapter|Kapitel) \d+\b|\d+(?:st|nd|rd|th)?$", re.I)
DEFINED_WORDS = 4
LABELLED = re.compile(r"^(?P<term>[^:：–—]{2,60}?)\s*(?::\s+|：\s*|\s[–—-]\s+|——\s*)(?P<meaning>\S.*)$", re.S)


@dataclass(frozen=True)
class Fact:
    """One thing that a document says. `rule` names the question's wordings (`questions.WORDINGS`)."""

    rule: str
    topic: str
    title: str
    answer: str
    worth: int
    """0 is taken first when not all facts are wanted."""
    language: str = ENGLISH
    clause: str = ""
    """The question of the rule `named` as a clause."""
    placed: bool = False
    """Whether each wording names the page."""


def title_of(sections: list[Section], title: str, file_name: str) -> str:
    """Return the only top heading, if the document begins with it; else its title, or the name of its file where the
    title is only the first of several headings of the same level.
    """
    headings = [section for section in sections if section.heading]
    if not headings:
        return title or file_name
    first, above = headings[0], sections[0]
    if not above.heading and (above.rows or sum(num_words(block.text) for block in above.blocks) > MOST_ABOVE):
        return title if title and title != first.heading else file_name or title
    alone = [section.level for section in headings].count(1) == 1
    if alone and first.level == 1 and not TEMPLATE_TAG.search(first.heading):
        return first.heading
    is_first_of_some = title == first.heading and sum(section.level <= first.level for section in headings) > 1
    return file_name if not title or (is_first_of_some and file_name) else title


def language_of(sections: list[Section]) -> str:
    """Return the language of the sections' prose; code spans count for nothing."""
    texts: list[str] = []
    for section in sections:
        texts += [section.heading, *section.paragraphs, *(item.text for item in section.items)]
        texts += [cell for row in section.rows for cell in row]
    return detect_language(sentences.outside_code(" ".join(texts), ""))


def prose_facts(sections: list[Section], title: str) -> list[Fact]:
    """Facts of an outline, in document order.

    A heading that occurs twice is named with the one above it; a question that would still have two answers is left
    out, and so is an answer that an earlier fact has. What a page is about is asked only where there is nothing else.
    """
    language = language_of(sections)
    speakers = speakers_of(paragraph for section in sections for paragraph in section.paragraphs)
    headings = Counter(section.heading.lower() for section in sections)
    reader = Reader(language, title, sections)
    by_topic: dict[tuple[str, str, bool], list[Fact]] = {}
    answers: set[str] = set()
    for section in sections:
        if grammar.REFERENCES.fullmatch(section.heading.rstrip(" :：.")):
            continue
        topic = section.heading.rstrip(" #:：.。")
        repeated = headings[section.heading.lower()] > 1
        if (
            (repeated or BARE.fullmatch(topic))
            and section.parent
            and section.parent != title
            and not TEMPLATE_TAG.search(section.parent)
        ):
            topic = f"{topic} ({section.parent})"
        # What persons say in it and references to other pages are left out.
        paragraphs = [text for text in section.paragraphs if not (spoken(text, speakers) or only_refers(text))]
        items = [item for item in section.items if not (spoken(item.text, speakers) or only_refers(item.text))]
        blocks = [block for block in section.blocks if block.list_id or not spoken(block.text, speakers)]
        plain = replace(section, paragraphs=[without_label(text) for text in paragraphs], items=items, blocks=blocks)
        for fact in section_facts(plain, topic, title, language, reader):
            if language in ASKERS and not is_sound(fact, language):
                continue
            whole = fact.worth <= 1 or fact.rule in ("statement", "section")  # a long answer has several facts
            key = f"{fact.topic.lower()}\0{fact.answer}" if whole else fact.answer
            if key not in answers and (whole or fact.answer not in answers):
                answers |= {key, fact.answer}
                by_topic.setdefault((fact.topic.lower(), fact.title, fact.rule in LISTS), []).append(fact)
    facts = [facts[0] for facts in by_topic.values() if len({fact.answer for fact in facts}) == 1]
    specific = [fact for fact in facts if fact.rule != "about"]
    return [replace(fact, language=language) for fact in specific or facts]


def is_sound(fact: Fact, language: str) -> bool:
    """Whether an answer is complete without its neighbours and says something that its question does not."""
    if soundness.MARKUP.search(sentences.outside_code(f"{fact.topic} {fact.title}")):
        return False
    if fact.rule == "about":
        return True
    if fact.rule in ("cell", "value", "option", *LISTS):
        return is_sound_part(fact, language)
    if not soundness.is_whole(fact.answer, language):
        return False
    first = sentences.sentences(fact.answer)[0]
    additions = fact.rule in ("statement", "section") and not soundness.NOT_ONLY.search(first)
    adds = additions and soundness.ADDS.search(first) and num_words(fact.answer) < ALONE_WORDS
    if adds or (language == ENGLISH and soundness.AS_WELL.search(first)):
        return False
    question = f"{fact.topic} {fact.title}" if fact.rule != "step" else fact.title
    least = FRESH.get(fact.rule, LEAST_FRESH)
    if CLOSED.match(fact.topic) and fact.rule != "question":
        least = 1 if language == GERMAN else LEAST_REASON
    return fact.rule in ("condition_do", "avoid") or soundness.is_fresh(fact.answer, question, least)


def is_sound_part(fact: Fact, language: str) -> bool:
    """Whether a list, a cell or a value is whole and says something."""
    if fact.rule in LISTS:
        asks = [part for part in fact.answer.split("; ") if part.rstrip(". ").endswith("?")]
        if len(asks) * 2 > fact.answer.count(";"):
            return False  # a list of questions answers none
    elif fact.rule != "cell" and language == ENGLISH and is_circular(fact):
        return False
    return not (soundness.CUT.search(fact.answer) or soundness.EARLIER.search(fact.answer))


def is_circular(fact: Fact) -> bool:
    """Whether a labelled value only repeats its label and its page: "Past years: memories of past years"."""
    label, _, meaning = re.sub(r" [–—-] ", ":", fact.answer, count=1).partition(":")
    if label.strip("` ").lower() == meaning.strip(" .`").lower():
        return True
    return bool(meaning) and num_words(meaning) > 1 and not soundness.is_fresh(meaning, f"{fact.topic} {fact.title}", 1)


def section_answer(section: Section, opening: str, reader: Reader, language: str) -> str:
    """Return a whole section that is short, or its first paragraphs; the opening where neither can be read alone."""
    plain = [without_label(block.text) for block in section.blocks if not block.list_id]
    if not section.code and not section.rows and len(plain) == len(section.blocks):
        whole = " ".join(plain)
        announces = ANNOUNCES.match(sentences.sentences(whole)[-1]) if whole else None
        good = all(map(reader.is_usable, sentences.sentences(whole)))
        if good and not announces and num_words(whole) <= MOST_SECTION_WORDS and whole.startswith(opening[:20]):
            return whole
    everything = whole_section(section, reader) if language == ENGLISH else None
    if everything and everything.startswith(opening[:20]):
        return everything
    first = next(reader.passages(section), None)
    return first.text if first and first.text.startswith(opening[:20]) else opening


def is_most_of(answer: str, section: Section) -> bool:
    """Whether an answer says most of what a section says; a list that nothing announces is another matter."""
    words = num_words(answer)
    texts = [block.text for block in section.blocks if not block.list_id or block.lead.rstrip().endswith(":")]
    return words >= LEAST_SHARE * sum(map(num_words, texts)) and not section.blocks[0].list_id


def whole_section(section: Section, reader: Reader) -> str | None:
    """Return the paragraphs, lists and the code of a section of up to 150 words; None where it needs other text."""
    if section.rows or len(section.code) > MOST_PIECES or not section.blocks or reader.follows(section.blocks[0].text):
        return None
    if any(block.depth > 2 or (block.text.rstrip().endswith(":") and block.list_id) for block in section.blocks):
        return None
    items = [block for block in section.blocks if block.list_id]
    announced = all(block.lead.rstrip().endswith(":") for block in items)
    if not (announced or commands([block.text for block in items], ENGLISH)):
        return None
    parts: list[str] = []
    for list_id, group in groupby(section.blocks, key=lambda block: block.list_id):
        texts = [without_label(block.text) if not list_id else block.text for block in group]
        parts += ["; ".join(text.rstrip(" ;,.") for text in texts) + "."] if list_id else texts
    plain = [sentence for part in parts for sentence in sentences.sentences(part)]
    for before, lines in section.code:
        if before not in parts or "\n\n" in lines or len(lines) > MOST_SECTION_CODE or "{%" in lines:
            return None
        parts.insert(parts.index(before) + 1, f"\n\n```\n{lines}\n```\n\n")
    answer = re.sub(r" *\n\n+ *", "\n\n", " ".join(parts)).strip()
    sound = all(map(is_here, plain)) and not (ANNOUNCES.match(plain[-1]) or ANNOUNCES.match(plain[0]))
    return answer if sound and answer[-1:] in ".!`" and num_words(answer) <= MOST_WHOLE_WORDS else None


def is_labelled(item: TextBlock) -> bool:
    """Whether a list item is a term with its meaning, which has a question of its own."""
    return labelled_value(item.text) is not None


def is_here(sentence: str) -> bool:
    """Whether a sentence has no remains of markup and does not send its reader to another place."""
    refers = ELSEWHERE.search(sentence) or ABOVE.search(sentence) or READ_MORE.match(sentence)
    return acceptable_part(sentence) and not refers


def task_of(section: Section, topic: str, language: str, reader: Reader) -> tuple[str, str] | None:
    """Return the question of an English heading that names a task, with its whole section that says how."""
    question = grammar.as_task(topic) if language == ENGLISH else None
    answer = whole_section(section, reader) if question else None
    if question is None or answer is None or num_words(answer) < LEAST_TASK:
        return None
    texts = [sentence for block in section.blocks for sentence in sentences.sentences(block.text)]
    is_task = any(instructs(re.sub(r"^[^,]{3,60}, ", "", text)) or instructs(text) for text in texts)
    return (question, answer) if is_task else None


def shares_word(topic: str, sentence: str) -> bool:
    """Whether a sentence has a word of its heading, whatever its ending."""
    words = {word[:5] for word in re.findall(r"\w{4,}", sentence.lower())}
    return any(word[:5] in words for word in re.findall(r"\w{4,}", topic.lower()))


def section_facts(section: Section, topic: str, title: str, language: str, reader: Reader) -> Iterator[Fact]:
    # A long place would be most of the question, and questions about neighbours would pass for copies of each other.
    named = topic and topic != title and not BARE.fullmatch(topic)
    colon = COLONS.get(language, ": ")
    asks = language == ENGLISH and topic.endswith("?")  # a question does not name a place
    where = place_of(title, topic, colon) if named and not asks else title
    question = grammar.as_question(re.sub(r"^Q: ?", "", topic), language) if named else None
    opening = short_answer(section.paragraphs[0]) if section.paragraphs else None
    if opening and language in ASKERS and section.paragraphs[0].rstrip(CLOSERS + " ")[-1:] not in ".!?…":
        opening = None  # a caption, a name
    if opening and language in ASKERS and ELSEWHERE.search(opening):
        opening = None
    task = task_of(section, topic, language, reader) if named and not question else None
    if task:
        opening = None
        yield Fact("question", task[0], title, task[1], 0)
    if question and opening and re.search(r",? and (?:why|how|what|when|where|who)\b", question):
        opening = None  # two questions, of which it answers one
    if question and opening:
        whole = short_answer(section.paragraphs[0], QUESTION_SENTENCES) if language in ASKERS else None
        listed = language == ENGLISH and any(block.list_id for block in section.blocks)
        everything = whole_section(section, reader) if listed else None
        if everything or not (listed and EXPLAINED.match(question)):
            yield Fact("question", question, title, everything or whole or opening, 0)
    if opening and ALSO.match(opening):
        opening = None
    statements = list(reader.read(section, topic))
    specific = {statement.answer for statement in statements if statement.rule != "statement"}
    if opening:
        if not topic or topic.lower() == title.lower():
            subject = grammar.definition_subject(opening, title) if language == ENGLISH else None
            if subject:
                yield Fact("definition", subject, title, opening, 0)
        elif named and not question:
            whole = section_answer(section, opening, reader, language) if language in ASKERS else opening
            longest = max((len(answer) for answer in specific if answer.startswith(opening)), default=0)
            related = language in ASKERS and shares_word(topic, opening)
            partial = language == ENGLISH and not is_most_of(whole, section)
            partial = partial or (bool(REFERS.search(whole)) and num_words(whole) < LEAST_WITH_LINK)
            general = language == ENGLISH and (GENERAL.match(topic) or ANNOUNCES.match(whole))
            if not (partial or general or is_opening(section, whole, language)) and (
                not longest or len(whole) > longest or related
            ):
                yield Fact("section", topic, title, whole, 1)
    elif language == ENGLISH and named and not (question or task or GENERAL.match(topic)):
        everything = whole_section(section, reader)
        if everything and num_words(everything) >= LEAST_SECTION and not has_answer(everything, statements):
            yield Fact("section", topic, title, everything, 1)
    yield from item_facts(section, where, language)
    yield from row_facts(section, where, language)
    defined = bool(opening) and language == ENGLISH and grammar.definition_subject(opening or "", title) is not None
    for entry in statements:
        if defined and re.match(r"What (?:is|are) ", entry.topic) and entry.answer.startswith(opening or ""):
            continue  # the definition asks for it
        location = f"{where}{colon}{entry.context}" if entry.context else where
        if entry.rule in LISTS and task and entry.topic == topic:
            continue
        if entry.rule in LISTS and question and entry.topic == topic:
            if not opening and (language != ENGLISH or is_most_of(entry.answer, section)):
                yield Fact("question", question, title, entry.answer, 1)
            continue
        if (entry.rule in LISTS and entry.topic == topic) or entry.topic.lower() == topic.lower():
            location = title
        yield Fact(
            entry.rule, entry.topic, location, entry.answer, entry.worth + 1, clause=entry.clause, placed=entry.placed
        )
    answers = [statement.answer for statement in statements]
    for paragraph in section.paragraphs:
        for fact in sentence_facts(paragraph, title, topic, language):
            if not any(answer.startswith(fact.answer) for answer in answers):
                yield fact
    named_page = language not in ASKERS or not (BARE.fullmatch(title) or "/" in title)
    if opening and named_page and (not topic or topic.lower() == title.lower()):
        yield Fact("about", title, title, opening, LAST_RESORT)


def has_answer(answer: str, statements: Collection[Statement]) -> bool:
    """Whether a list of the section is nearly all that an answer says."""
    return any(len(entry.answer) > MOST_SHARE * len(answer) for entry in statements)


def is_opening(section: Section, answer: str, language: str) -> bool:
    """Whether an answer only opens what the list of its section says."""
    short = num_words(answer) < LEAST_SECTION and len(sentences.sentences(answer)) == 1
    return language in ASKERS and short and any(block.list_id for block in section.blocks)


def only_names(meaning: str, language: str) -> bool:
    """Whether a meaning is the name of a thing or the title of a page: "Pi-Hole List Editor (Source Code)"."""
    tokens = tag_sentence(meaning, language)
    words = [token for token in tokens if token.text[0].isalpha()]
    if len(words) > MOST_NAME_WORDS or any(token.tag.startswith("V") for token in tokens):
        return False
    named = sum(token.text[0].isupper() for token in words)
    return ":" in meaning or (language == ENGLISH and len(words) > 2 and named * 2 > len(words))


def is_term(term: str, meaning: str, language: str) -> bool:
    """Whether a label names something that its meaning explains."""
    if NUMBERED.match(term) or REMARK.fullmatch(term) or only_names(meaning, language) or DATED.search(meaning):
        return False
    if language == ENGLISH and (GENERAL.match(term) or term.lower() in COMMANDS or re.search(r"\w \w+ to \w", term)):
        return False
    tokens = tag_sentence(term, language)
    if language == ENGLISH and any(
        is_finite(token, ENGLISH) and token.tag not in ("VVB", "VVD") for token in tokens[1:]
    ):
        return False  # "The centre has six teams" names nothing
    last = tokens[-1].tag
    return last not in ("APPR", "APPRART", "ART", "PRP", "AT0", "KON", "CJC")


def item_facts(section: Section, where: str, language: str) -> Iterator[Fact]:
    """`**term**: meaning`, `` `term` — meaning`` and `term: meaning`. The answer keeps its term."""
    pointer = POINTERS.get(language)
    for item in section.items:
        match = LABELLED.match(item.text)
        term = match["term"].strip() if match else ""
        if not match or (item.label and item.label != term) or num_words(term) > TERM_WORDS or BARE.fullmatch(term):
            continue
        if pointer and pointer.fullmatch(term):
            continue
        if language in ASKERS and not is_term(term, match["meaning"], language):
            continue
        if language == ENGLISH and clauses.begins_with_preposition(term):
            continue
        if language == ENGLISH and TEASER.match(match["meaning"]):
            continue
        most = QUESTION_SENTENCES if language == ENGLISH else 1
        meaning = short_answer(match["meaning"], most)
        answer = meaning if not meaning or begins_with(term, meaning) else short_answer(item.text, most)
        if answer:
            yield Fact("term", unquoted(term), where, answer, 1)


def row_facts(section: Section, where: str, language: str) -> Iterator[Fact]:
    """`| term | meaning | … |`: a row's first cell against the next one, or against each that has a whole phrase."""
    header: list[str] = []
    fresh = False
    for row in section.rows:
        if not row:
            fresh = True
        elif fresh:
            header, fresh = row, False
        elif len(row) >= 2 and row[0] and 1 <= num_words(row[0]) <= TERM_WORDS:
            yield from cell_facts(header, row, where, language)


def cell_facts(header: list[str], row: list[str], where: str, language: str) -> Iterator[Fact]:
    named = enumerate(zip(header, row, strict=False))
    filled = [(number, head, cell) for number, (head, cell) in named if number and cell]
    plain = [entry for entry in filled if grammar.PLAIN_HEAD.fullmatch(entry[1].lower())]
    two_columns = len(filled) == 1 and not (language in ASKERS and filled[0][1] and not plain)
    if plain or two_columns:
        number, _, cell = (plain or filled)[0]
        near = number == 1 and not begins_with(row[0], cell)
        text = f"{row[0]}{COLONS.get(language, ': ')}{cell}"
        answer = short_answer(text if near else cell, QUESTION_SENTENCES if language == ENGLISH else 1)
        if not answer and near and language in ASKERS and num_words(cell) > 1 and acceptable_part(text):
            answer = ended(text) if num_words(text) <= sentences.MOST_WORDS else None
        if answer:
            yield Fact("term", unquoted(row[0]), where, answer, 1)
        filled = [entry for entry in filled if entry[0] != number]
        if not answer or language != ENGLISH:
            return
    for number, head, cell in filled:
        if language in ASKERS:
            if (
                head
                and num_words(cell)
                and says_something(cell, row[0], language)
                and acceptable_part(cell)
                and is_name(row[0])
                and cell.lower() != row[0].lower()
            ):
                quoted = f"„{row[0]}“ unter „{head}“" if language == GERMAN else f'"{row[0]}" under "{head}"'
                yield Fact("cell", quoted, where, ended(f"{row[0]}, {head}: {cell}"), 1)
            continue
        least = sentences.LEAST_WORDS if number == 1 else ENOUGH_WORDS
        text = f"{row[0]}{COLONS.get(language, ': ')}{cell}" if number == 1 else cell
        if head and num_words(cell) >= least and (answer := short_answer(text)):
            yield Fact("cell", f"{unquoted(row[0])} – {head}", where, answer, 1)


def says_something(cell: str, key: str, language: str) -> bool:
    """Whether a table cell or a value says more than its key, and not only a mark, a link or a reference."""
    bare = cell.strip(" .()[]")
    if EMPTY.fullmatch(bare) or (language == ENGLISH and REFERS.search(cell)) or soundness.CUT.search(ended(cell)):
        return False
    if language == ENGLISH and re.search(r"(?:^| )(?:for|of|with|to|from)$", bare):
        return False
    return num_words(cell) < 2 or bool(soundness.stems(cell) - soundness.stems(key)) or not soundness.stems(cell)


def is_name(key: str) -> bool:
    """Whether the first cell of a row names something: no number, date or duration, no damaged key."""
    if not re.match(r"[`\"“„]?[\w$.@-]", key) or soundness.MARKUP.search(key) or MEASURE.fullmatch(key):
        return False
    return bool(re.search(r"[^\W\d_]{2}", re.sub(r"\w*\d\w*", "", key)))


def unquoted(term: str) -> str:
    """Return a term that is wholly code or quotation, without its marks."""
    return term[1:-1] if len(term) > 2 and term[0] == term[-1] in '`"' and term.count(term[0]) == 2 else term


def begins_with(term: str, meaning: str) -> bool:
    """Whether a definition can be read alone, because it begins with its term."""
    return bool(re.match(rf"(an? |the )?`?{re.escape(unquoted(term))}(?!\w)", meaning, re.I))


def sentence_facts(paragraph: str, title: str, topic: str, language: str) -> Iterator[Fact]:
    """`X is a …` inside a paragraph."""
    definition, pointer = grammar.DEFINITIONS.get(language), POINTERS.get(language)
    if definition is None or pointer is None:
        return
    for sentence in sentences.sentences(paragraph):
        match, length = definition.match(sentence), num_words(sentence)
        if not match or not ENOUGH_WORDS <= length <= sentences.WANTED_WORDS or sentence[-1] not in ".。":
            continue
        term = unquoted(match["term"].strip())
        is_title = term.lower() in (topic.lower(), title.lower())
        if language == ENGLISH and (clauses.begins_with_preposition(term) or term.lower() in ("below", "above")):
            continue
        if num_words(term) > DEFINED_WORDS or pointer.search(term) or is_title or only_refers(sentence):
            continue
        if answer := short_answer(sentence):
            yield Fact("term", term, title, answer, 3)
