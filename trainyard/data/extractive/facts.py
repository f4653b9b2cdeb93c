"""Prose to facts: a topic, where it stands, and a short answer in whole sentences of the document.

Four rules, in order of worth: a heading and its first paragraph; a list item or table row `term: meaning`; a sentence
`X is …`; the document's title and its first paragraph. An answer has 5 to 60 words, aims at 8 to 40, and is never
cut inside a sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.data.extractive.outline import Section

LEAST_WORDS, ENOUGH_WORDS, WANTED_WORDS, MOST_WORDS = 5, 8, 40, 60
PLACE_WORDS = 9
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[`]?[A-Z0-9`])")
ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|resp|no|fig|sec|dr|mr|mrs|st|prof|inc|ca|al)|\b[A-Z])\.$", re.I
)
BARE = re.compile(
    "about|arguments|background|changelog|contents|description|details|examples?|faq|further reading|introduction|"
    "license|links|misc|next steps|notes?|options|overview|parameters|references|returns|see also|summary|"
    "table of contents|usage",
    re.I,
)
"""Headings that say nothing without the one above them."""
LABELLED = re.compile(r"^(?P<term>[^:–—]{2,60}?)\s*(?::|\s[–—-])\s+(?P<meaning>\S.*)$", re.S)
DEFINITION = re.compile(
    r"^(?:(?:A|An|The)\s+)?(?P<term>[`\"]?[\w][\w .+/`\"-]{1,50}?)\s+(?:is|are|means|denotes|refers to)\s+"
    r"(?:a|an|the|one|what|how|any|each|every|those|set|called|used|made)\b"
)
PLAIN_HEAD = re.compile("|meanings?|means|description|what it (is|does|means)|definition|purpose")
"""Column heads that add nothing to their cell."""
POINTER = re.compile(
    r"\b(all|and|another|because|best|better|both|but|each|either|everything|first|following|former|good|he|here|"
    r"however|i|idea|if|it|its|last|latter|neither|no|none|nothing|one|only|or|others?|point|problem|reason|result|"
    r"same|she|so|some|such|that|the|their|then|there|these|they|this|those|we|what|when|where|which|who|you)\b",
    re.I,
)
"""Words that make a term depend on the text around it."""


@dataclass(frozen=True)
class Fact:
    """One thing that a document says. `rule` names the question's wordings (`questions.WORDINGS`)."""

    rule: str
    topic: str
    title: str
    answer: str
    worth: int
    """0 is taken first when not all facts are wanted."""


def sentences(text: str) -> list[str]:
    """Whole sentences; a full stop after an abbreviation or an initial ends none."""
    parts: list[str] = []
    for part in SENTENCE_END.split(text.strip()):
        if parts and ABBREVIATION.search(parts[-1]):
            parts[-1] += f" {part}"
        elif part:
            parts.append(part)
    return parts


def short_answer(text: str) -> str | None:
    """The first whole sentences of a paragraph, about 8 to 40 words; None when they are too long or say too little."""
    taken: list[str] = []
    words = 0
    for sentence in sentences(text):
        length = len(sentence.split())
        if taken and (words + length > (WANTED_WORDS if words >= ENOUGH_WORDS else MOST_WORDS) or sentence[-1] == ":"):
            break
        taken.append(sentence)
        words += length
    answer = " ".join(taken)
    if not LEAST_WORDS <= words <= MOST_WORDS or answer[-1] in ":," or not re.search(r"[^\W\d_]{2}", answer):
        return None
    return answer if answer[-1] in ".!?)`\"'" else f"{answer}."


def title_of(sections: list[Section], fallback: str) -> str:
    """The only top heading, if the document begins with it; else the given title."""
    headings = [section for section in sections if section.heading]
    alone = [section.level for section in headings].count(1) == 1
    return headings[0].heading if alone and headings[0].level == 1 else fallback


def prose_facts(sections: list[Section], title: str) -> list[Fact]:
    """Facts of an outline, in document order.

    A heading that occurs twice is told apart by the one above it; a question that would still have two answers is left
    out, and so is an answer with which an earlier one begins.
    """
    headings = Counter(section.heading.lower() for section in sections)
    found: dict[tuple[str, str], list[Fact]] = {}
    for section in sections:
        topic = topic_of(section, title, repeated=headings[section.heading.lower()] > 1)
        answers: list[str] = []
        for fact in section_facts(section, topic, title):
            if not any(answer.startswith(fact.answer) for answer in answers):
                answers.append(fact.answer)
                found.setdefault((fact.topic.lower(), fact.title), []).append(fact)
    return [facts[0] for facts in found.values() if len({fact.answer for fact in facts}) == 1]


def topic_of(section: Section, title: str, *, repeated: bool) -> str:
    heading = section.heading.rstrip(" #:.")
    if (repeated or BARE.fullmatch(heading)) and section.parent and section.parent != title:
        return f"{heading} ({section.parent})"
    return heading


def section_facts(section: Section, topic: str, title: str) -> Iterator[Fact]:
    if section.paragraphs and (answer := short_answer(section.paragraphs[0])):
        if not topic or topic.lower() == title.lower() or BARE.fullmatch(topic):
            if not topic or topic.lower() == title.lower():
                yield Fact("about", title, title, answer, 2)
        elif topic.endswith("?"):
            yield Fact("question", topic, title, answer, 0)
        else:
            yield Fact("section", topic, title, answer, 0)
    where = place_of(topic, title)
    yield from item_facts(section, where)
    yield from row_facts(section, where)
    for paragraph in section.paragraphs:
        yield from sentence_facts(paragraph, title, topic)


def place_of(topic: str, title: str) -> str:
    """Where a term stands: the title, with the heading if that is short.

    A long place would be most of the question, and questions about neighbours would pass for copies of each other.
    """
    named = topic and topic != title and not BARE.fullmatch(topic)
    return f"{title}: {topic}" if named and len(f"{title} {topic}".split()) <= PLACE_WORDS else title


def item_facts(section: Section, where: str) -> Iterator[Fact]:
    """`**term**: meaning`, `` `term` — meaning`` and `term: meaning`."""
    for item in section.items:
        match = LABELLED.match(item.text)
        if not match:
            continue
        term = item.label or match["term"].strip()
        if len(term.split()) > 6 or not item.text.startswith(match["term"]) or match["term"].strip() != term:
            continue
        if not (POINTER.fullmatch(term) or BARE.fullmatch(term)) and (answer := short_answer(match["meaning"])):
            yield Fact("term", unquoted(term), where, with_term(term, answer), 1)


def row_facts(section: Section, where: str) -> Iterator[Fact]:
    """`| term | meaning | … |`: a row's first cell against the others, named by their column heads."""
    header: list[str] = []
    fresh = False
    for row in section.rows:
        if not row:
            fresh = True
        elif fresh:
            header, fresh = row, False
        elif len(row) >= 2 and 1 <= len(row[0].split()) <= 6:
            answer = row_answer(header, row)
            if answer:
                yield Fact("term", unquoted(row[0]), where, answer, 1)


def row_answer(header: list[str], row: list[str]) -> str | None:
    filled = [(head.lower(), cell) for head, cell in zip(header[1:], row[1:], strict=False) if cell]
    if len(filled) == 1:
        text = filled[0][1]
    else:
        text = "; ".join(
            cell.rstrip(".;") if PLAIN_HEAD.fullmatch(head) else f"{head}: {cell.rstrip('.;')}" for head, cell in filled
        )
    text = with_term(row[0], text)
    words = len(text.split())
    if not LEAST_WORDS <= words <= MOST_WORDS:
        return None
    return text if text[-1] in ".!?" else f"{text}."


def unquoted(term: str) -> str:
    """A term that is wholly code or quotation, without its marks."""
    return term[1:-1] if len(term) > 2 and term[0] == term[-1] in '`"' and term.count(term[0]) == 2 else term


def with_term(term: str, answer: str) -> str:
    """A definition has to be readable alone: the term comes first unless the text begins with it."""
    begins = re.match(rf"(an? |the )?`?{re.escape(unquoted(term))}(?!\w)", answer, re.I)
    return answer if begins else f"{term}: {answer}"


def sentence_facts(paragraph: str, title: str, topic: str) -> Iterator[Fact]:
    """`X is a …` inside a paragraph."""
    for sentence in sentences(paragraph):
        match = DEFINITION.match(sentence)
        words = len(sentence.split())
        if not match or not ENOUGH_WORDS <= words <= WANTED_WORDS or sentence[-1] != ".":
            continue
        term = unquoted(match["term"].strip())
        if len(term.split()) > 4 or POINTER.search(term) or term.lower() in (topic.lower(), title.lower()):
            continue
        yield Fact("term", term, title, sentence, 3)
