"""Statements of a section, each with the question that it answers.

A statement is a sentence (with those after it that point back to it), a list item, a labelled value, a step, or a whole
short list. Its question is made of its own words (`english`, `german`); where that is not certain, the question names
what the statement is about. Languages without rules of their own give none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from trainyard.data.extractive import clauses, english, english_fronts, german, passages, sentences, soundness
from trainyard.data.extractive.cleaning import only_refers, without_label
from trainyard.data.extractive.english import Ask
from trainyard.data.extractive.grammar import BARE, POINTERS
from trainyard.data.extractive.leads import ask_lead, name_of
from trainyard.data.extractive.noun_phrases import is_sentence
from trainyard.data.extractive.outline import Section, TextBlock
from trainyard.data.extractive.passages import Passage
from trainyard.data.extractive.sentences import num_words
from trainyard.data.language import ENGLISH, GERMAN

MOST_CODE_LINES, MOST_CODE_CHARS = 16, 700
LEAST_LEAD = 4
"""Words of a sentence that announces code."""
SHORT_COMMAND, MOST_VAGUE = 6, 10
OF_IT = re.compile(r"\w+ (?:it|them|this|these|those)\b")
"""A step of something that the step before names."""
LEAST_STEP = 4
"""Words of a step: a shorter one is the heading of what comes after it."""
ITEM_WORDS = 8
"""Of a list item that says something without a verb."""
FOLLOWING_WORDS = 8
"""Of a sentence that points back and still has a question of its own."""
LEAST_ITEM = 10
"""Words of a list item that is asked by what it is about."""
MOST_ANSWER_WORDS = 60
MOST_SINGLE, MOST_REPEATED = 2, 3
"""Times that a page may have a topic of one word, and its sentences with a longer one."""
MOST_LIST_WORDS = 160
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
        r"he|she|in (?:this|that) case|for example|for instance|in addition(?! to)|as a result|there|here|most|both|"
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
HANGING_LEAD = re.compile(r"(?:To|For|If|When|After|Before) \w+ (?:it|this|that|them|these|those)\b")
ABOVE = re.compile(
    r"\b(?:steps?|sections?|view|examples?|instructions?|commands?|table|list|case|points?|page) (?:from )?above\b|"
    r"\b(?:the|as) above\b|"
    r"\boben genannt|\bobige|\b[Ww]eitere(?:s|n)? (?:findest|finden|gibt)|\babove-mentioned"
)
POINTS_ONLY = re.compile(
    r"(?:This|That|It|Das|Dies) (?:is|was|ist|war) (?:not|an example|because|why|where|how|what|nicht|kein)\b"
)
ELSEWHERE = re.compile(
    r"\bhere\W*$|^(?:Welcome|Willkommen|Thanks?|Danke|Vielen Dank)\b"
    r"|\b(?:refer to|see|consult|check out) (?:this|our) \w+"
    r"|\bsiehe auch\b|\bsee also\b|\bavailable here\b|\(see [^()]*\)\W*$|\bweiter unten\b"
    r"|\[\s*\]|\\(?:ref|label)\{",
    re.I,
)
"""What makes a sentence point to another place."""
SHOUTED = re.compile(r"[A-Z]{3,} [A-Z]{2,} [A-Z]{3,}")
"""A clause in capitals, as contracts have them."""
REFERS = re.compile(
    r"\bfor (?:more )?information\b.*, (?:visit|go to) |\b(?:please (?:see|refer|visit|read|check)|take a look at|"
    r"(?:can|may|could) be (?:found|read|seen) (?:in|at|on|here|under)|"
    r"for (?:an? )?(?:more|further) [\w -]+|learn more|more (?:information|details)|documented (?:in|at|on|here))\b"
    r"|^(?:Visit|See|Read|Check out|Refer to|Consult|Explore) "
    r"|\b(?:weitere|mehr|genauere) (?:Informationen|Infos|Details|Hinweise)\b"
    r"|\b(?:findet|finden) (?:sich|Sie|du) \w*\s?(?:hier|unter|auf)\b",
    re.I,
)
"""What makes a sentence say only where something is."""
NEARBY = re.compile(r"\b(?:above|the below)\b|\b(?:oben|obige\w*)\b", re.I)
"""What points to the text before a lead-in."""
LATEX = re.compile(r"\\(?:ref|label|cite)\{|\[\s*\]")
CONNECTIVE = re.compile(
    r"(?:However|Moreover|Furthermore|In addition|Additionally|Also|Therefore|Thus|Unfortunately|Fortunately|Similarly|"
    r"Außerdem|Zudem|Allerdings|Daher|Deshalb)(?:,)? (?=\w)"
)
ORDER = {ENGLISH: "step {number}", GERMAN: "Schritt {number}"}
TWO_TOPICS = 10
"""Words of a sentence that two questions may name a topic of."""

OPTION = re.compile(r"`[^`]*[-_.{}()$<=/][^`]*`")
CONTINUES = re.compile(r"(?:and|or|the|in|on|to|with|from|is|are)\b|[,(;/]")
"""What follows a code span that is not the name of what an item explains."""
PLACE_WORDS = 9
"""Longest page and section that a question names."""
LEAST_PLACE = 3
"""Words of a heading that names its section without the page."""
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
    """End of the title: the label of a list item above, for example."""
    sentences: int = 1


class Reader:
    """Reads the statements of a document, section by section."""

    def __init__(self, language: str, title: str, sections: Collection[Section]) -> None:
        self.language, self.title = language, title
        self.title_words = {word[:5] for word in CONTENT[language](title)} if language in CONTENT else set[str]()
        texts = [block.text for section in sections for block in section.blocks]
        self.vocabulary = frozenset(re.findall(r"(?<![\w-])[a-zäöüß][\w'’-]*", " ".join(texts)))
        self.used_phrases: set[tuple[str, str]] = set()
        self.text = plain_text(" ".join(texts))
        self.counts = Counter(self.text.split())
        self.sentences = [plain_text(sentence) for text in texts for sentence in sentences.sentences(text)]
        self.section_sentences: list[str] = []
        self.num_lists = 0
        self.num_ordered = 0
        self.has_code = False

    def read(self, section: Section, topic: str) -> Iterator[Statement]:
        """Yield the statements of a section: those of its sentences and lists in page order, then its passages."""
        if self.language not in ASKERS:
            return
        topics_by_answer: dict[str, str] = {}
        for statement in self.read_blocks(section, topic):
            topics_by_answer[statement.answer] = f"{topics_by_answer.get(statement.answer, '')} {statement.topic}"
            yield statement
        for passage in self.passages(section):
            most = max(1, min(passages.MOST_TOPICS, passage.words // passages.WORDS_PER_TOPIC))
            besides = topics_by_answer.get(passage.text, "") if passage.words < passages.MOST_SHORT else ""
            for phrase in self.topics(passage, topic, most, besides):
                yield Statement("statement", phrase, passage.text, 2, sentences=len(passage.sentences))

    def read_blocks(self, section: Section, topic: str) -> Iterator[Statement]:
        texts = [block.text for block in section.blocks]
        self.section_sentences = [plain_text(sentence) for text in texts for sentence in sentences.sentences(text)]
        self.has_code = bool(section.code)
        codes: dict[str, list[str]] = {}
        for before, code in section.code:
            if before.rstrip().endswith((":", "：")):
                codes.setdefault(before, []).append(code)
        parted = parted_lists(section.blocks)
        self.num_ordered = sum(block.number == 1 and block.depth == 1 for block in section.blocks)
        self.num_lists = len({block.list_id for block in section.blocks if block.list_id})
        for list_id, group in groupby(section.blocks, key=lambda block: block.list_id):
            blocks = list(group)
            if list_id:
                yield from self.read_list(blocks, topic, whole=list_id not in parted)
                continue
            for block in blocks:
                if block.text in codes:
                    yield from self.read_code(block, codes[block.text], topic)
                if not only_refers(block.text) and not block.label:
                    yield from self.read_paragraph(block.text, topic)
                elif block.label and not only_refers(block.text):
                    yield from self.read_note(block, topic)

    def passages(self, section: Section) -> Iterator[Passage]:
        """Yield the passages of the paragraphs; a list, or code after one, parts those around it."""
        before_code = {before for before, _ in section.code}
        runs: list[list[str]] = [[]]
        for block in section.blocks:
            if block.list_id or block.label or only_refers(block.text):
                runs.append([])
                continue
            runs[-1].append(without_label(block.text))
            if block.text in before_code:
                runs.append([])
        for run in runs:
            for passage in passages.passages(run, self.follows, self.is_usable):
                if is_sentence(passage.sentences[0], self.language):
                    yield passage

    def follows(self, sentence: str) -> bool:
        """Whether a sentence points back to the one before."""
        bare = sentence.lstrip(sentences.OPENERS)
        return bool(FOLLOWS[self.language].match(bare)) or soundness.leans(sentence, self.language)

    def is_usable(self, sentence: str) -> bool:
        """Whether a sentence may be a part of a passage."""
        if sentence.rstrip(sentences.CLOSERS + " ")[-1:] not in ".!?…" or not acceptable_part(sentence):
            return False
        if sentence[:1] in "([→–—-" or REFERS.search(sentence) or SHOUTED.search(sentence):
            return False
        refers = ELSEWHERE.search(sentence) or ABOVE.search(sentence) or only_refers(sentence)
        asks = sentence.rstrip()[-1:] == "?"
        return not (
            refers or soundness.EXAMPLE.search(sentence) or (not asks and sentences.INCOMPLETE.search(sentence))
        )

    def topics(self, passage: Passage, topic: str, most: int, besides: str = "") -> list[str]:
        """Return up to `most` phrases that a passage is about, with words that `besides` and the place do not have."""
        heading_stems = soundness.stems(f"{self.title} {topic}")
        pointer = POINTERS[self.language]
        asks = self.language == ENGLISH and topic.endswith("?")  # a question does not name a place
        near = topic and not asks and place_of(self.title, topic, ": ") != self.title
        own_sentences = {plain_text(sentence) for sentence in passage.sentences}
        other_sentences = [
            text for text in (self.section_sentences if near else self.sentences) if text not in own_sentences
        ]
        used_words = set(CONTENT[self.language](besides))

        def is_new(phrase: str) -> bool:
            if self.language == ENGLISH and self.is_frequent(phrase):
                return False
            return bool(soundness.stems(phrase) - heading_stems) and (topic, phrase.lower()) not in self.used_phrases

        candidates = []
        for candidate in passages.candidates(passage, self.language):
            content = set(CONTENT[self.language](candidate.text))
            bare = re.sub(r"`[^`]*`|^(?:the|all|each) ", "", candidate.text)
            if content and not used_words & content and not (self.language == ENGLISH and pointer.search(bare)):
                candidates.append(candidate)
        topics = passages.choose_topics(candidates, most, other_sentences, is_new, language=self.language)
        self.used_phrases |= {(topic, candidate.text.lower()) for candidate in topics}
        return [candidate.wording for candidate in topics]

    def is_frequent(self, phrase: str) -> bool:
        """Whether a phrase is on the page so often that a question for it may mean any sentence."""
        text = plain_text(phrase).removeprefix("the ")
        words = text.split()
        if len(words) > 1:  # few phrases have only frequent words: the whole page is read for those alone
            rarest = min(self.counts[word] for word in words)
            return rarest > MOST_REPEATED and self.text.count(f" {text} ") > MOST_REPEATED
        return len(words) == 1 and self.counts[words[0]] + self.counts[f"{words[0]}s"] > MOST_SINGLE

    def read_note(self, block: TextBlock, topic: str) -> Iterator[Statement]:
        """Yield a further paragraph of a labelled list item."""
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
            head, *rest = sentences.sentences(answer) if count > 1 else [first]
            yield from self.ask(head, answer, topic, count, alone=False)
            subject = self.subject_of(head)
            for other in rest:
                if num_words(other) >= FOLLOWING_WORDS and not POINTS_ONLY.match(other):
                    yield from self.ask(other, answer, topic, count, subject, alone=False)

    def subject_of(self, sentence: str) -> str:
        """Return what a pronoun after an English sentence means; empty where that is not certain."""
        if self.language != ENGLISH:
            return ""
        clause = clauses.parse_clause(sentence.rstrip(".!"), self.vocabulary)
        if clause is None or clause.subject.lower() in clauses.PRONOUNS or clause.kind == "command":
            return ""
        return clause.subject if len(clause.subject.split()) <= 5 else ""

    def read_code(self, block: TextBlock, codes: Collection[str], topic: str) -> Iterator[Statement]:
        """Yield the statements of a paragraph that announces a short piece of code, with all of it."""
        *before, lead = sentences.sentences(block.text)
        code = "\n".join(codes).strip("\n")
        if len(code.split("\n")) > MOST_CODE_LINES or len(code) > MOST_CODE_CHARS or not acceptable_part(lead):
            return
        if sentences.FOLLOWING_STEPS.search(lead) or NEARBY.search(lead) or num_words(lead) < LEAST_LEAD:
            return
        blocks = "\n\n".join(f"```\n{part.strip(chr(10))}\n```" for part in codes)
        answer = f"{lead}\n\n{blocks}"
        command = lead.rstrip(" :：")
        if not self.follows(lead):
            asks = list(self.ask(command, answer, topic, alone=False))
            asks.sort(key=lambda statement: statement.rule not in ("condition_do", "condition", "purpose"))
            if asks:
                yield asks[0]
            elif goal := goal_of(command, self.language, self.vocabulary):
                yield Statement("purpose", goal, answer, 0, "", True)
        elif not before or self.follows(before[0]) or num_words(block.text) > MOST_ANSWER_WORDS:
            return
        whole = before and all(map(self.is_usable, before)) and num_words(block.text) <= MOST_ANSWER_WORDS
        if whole and not self.follows(before[0]):
            answer = f"{block.text}\n\n{blocks}"
        parts = tuple(sentences.sentences(answer.partition("\n")[0]))
        if self.language == ENGLISH and not is_sentence(parts[0].rstrip(" :") + ".", ENGLISH):
            return
        for phrase in self.topics(Passage(parts), topic, 1):
            yield Statement("statement", phrase, answer, 2, sentences=len(before) + 1)

    def units(self, text: str, *, items: bool = False) -> list[tuple[str, str, int]]:
        """(sentence, the answer that it begins, sentences of the answer).

        A sentence that points back continues the answer before it; it begins one of its own, too, with all of them.
        """
        units: list[tuple[str, str, int]] = []
        parts = sentences.sentences(text)
        pending: list[str] = []
        for part in parts:
            points = bool(FOLLOWS[self.language].match(part.lstrip(sentences.OPENERS)))
            points = points or soundness.leans(part, self.language)
            whole = " ".join([*pending, part])
            bare = part.rstrip(sentences.CLOSERS + " ")
            if items or bare[-1:] in ".!…":
                pass
            else:
                pending = []  # a lead-in or a caption
                continue
            if points and pending and num_words(whole) <= MOST_ANSWER_WORDS and acceptable_part(part):
                if sentences.INCOMPLETE.search(part) or soundness.EXAMPLE.search(part):
                    pending = []
                    continue
                pending.append(part)
                first, _, _ = units[-1]
                units[-1] = (first, ended(whole), len(pending))
                continue
            if soundness.leans(part, self.language):
                pending = []
            elif (sound := sentences.short_answer(part)) and acceptable_part(part):
                pending = [part]
                units.append((part, sound, 1))
            elif CONNECTIVE.match(part) and acceptable_part(part) and sentences.short_answer(without_opening(part)):
                pending = [part]
                units.append((part, ended(part), 1))
            else:
                pending = []
        return units

    def ask(
        self, sentence: str, answer: str, topic: str, count: int = 1, subject: str = "", *, alone: bool = True
    ) -> Iterator[Statement]:
        """Yield the statements of a sentence, with questions of its own or one about its subject."""
        if sentence[:1] == "(" and (inner := re.fullmatch(r"\(([^()]+[.!])\)", sentence.strip())):
            answer = inner[1] if answer == sentence.strip() else answer
            sentence = inner[1]
        if sentence.rstrip()[-1:] in "?？" or sentence[:1] in "([" or ELSEWHERE.search(sentence):
            return
        asks = [ask for ask in ASKERS[self.language](sentence, self.vocabulary, subject) if ask.rule != "weak"]
        for ask in asks:
            if ask.rule == "purpose" and self.names_page(ask):
                continue
            yield Statement(ask.rule, ask.topic, answer, 0, ask.clause, self.is_vague(ask), "", count)
        if (
            not asks
            and re.match(r"(?:There|It) (?:is|are|was)\b|Es gibt\b", sentence)
            and (num_words(sentence) < MOST_VAGUE or sentence.split()[2] in ("also", "auch"))
        ):
            return
        if not asks and len(sentence.split()) < SHORT_COMMAND and clauses.begins_with_command(sentence):
            return
        if (count == 1 and "://" in sentence) or ABOVE.search(sentence):
            return
        if count == 1 and DEICTIC[self.language].search(sentence):
            return
        if sentence[:1].islower() or not alone or not is_sentence(sentence, self.language) or REFERS.search(sentence):
            return
        besides = " ".join(ask.topic for ask in asks)
        for phrase in self.topics(Passage((answer,)), topic, 1, besides):
            yield Statement("statement", phrase, answer, 2, sentences=count)

    def names_page(self, ask: Ask) -> bool:
        """Whether an English question asks how to do what the whole page is about, of which a sentence says a part."""
        words = {word[:5] for word in CONTENT[self.language](ask.topic)}
        return self.language == ENGLISH and len(words & self.title_words) >= max(2, len(words) - 1)

    def is_vague(self, ask: Ask) -> bool:
        """Whether a question needs the name of its page."""
        words = CONTENT[self.language](ask.topic)
        names = re.search(r"`|(?<=[a-z] )[A-Z]", ask.topic) if self.language == ENGLISH else "`" in ask.topic
        return not (
            any(word[:5] in self.title_words for word in words) or len(words) >= 5 or (names and len(words) >= 3)
        )

    def read_list(self, blocks: list[TextBlock], topic: str, *, whole: bool) -> Iterator[Statement]:
        """Items one by one, and a short list as a whole."""
        lead = blocks[0].lead
        items = [block for block in blocks if num_words(block.text)]
        texts = [block.text.rstrip(" ;,:.") for block in items]
        covered: set[str] = set()
        instructs = commands(texts, self.language)
        alone = self.num_lists <= 1 or self.language != ENGLISH
        for index, block in enumerate(items):
            for statement in self.read_item(block, topic, instructs=instructs):
                covered.add(block.text)
                yield statement
            if index + 1 < len(items) and items[index + 1].depth != block.depth:
                continue
        words = sum(num_words(text) for text in texts)
        name = topic if topic and not BARE.fullmatch(topic) and topic.lower() != self.title.lower() else ""
        if not 4 <= words <= MOST_LIST_WORDS or not self.is_list(items, texts, covered, whole=whole):
            return
        ordered = bool(items[0].number)
        is_lead = bool(lead) and lead.rstrip().endswith((":", "："))
        joined = "; ".join(texts)
        answer = ended(
            f"{lead.rstrip()} {joined}" if is_lead and num_words(lead) + words <= MOST_LIST_WORDS + 10 else joined
        )
        hanging = is_lead and (REFERS.search(lead) or HANGING_LEAD.match(lead))
        if self.language == ENGLISH and (hanging or not acceptable_part(answer) or soundness.MARKUP.search(answer)):
            return
        if is_lead and answer.startswith(lead.rstrip()) and not self.follows(lead):
            sound = self.is_usable(lead.rstrip(" :：") + ".") and num_words(lead) >= LEAST_LEAD
            for phrase in self.topics(Passage((lead,)), topic, 1) if sound else ():
                yield Statement("statement", phrase, answer, 2, sentences=len(texts))
        if is_lead and (ask := ask_lead(lead, self.language, self.vocabulary, instructs=instructs)):
            yield Statement(ask.rule, ask.topic, answer, 1, ask.clause, True, "", len(texts))
        elif is_lead and self.language == ENGLISH and (label := name_of(lead)) and label.lower() != topic.lower():
            yield Statement("listing", label, answer, 1, sentences=len(texts))
        elif items[0].depth > 1 or not alone:
            return  # its lead says what it lists, and no heading does
        elif name and ordered and self.has_code and self.language == ENGLISH:
            return  # steps without their commands
        elif name and ordered and instructs:
            yield Statement("steps", name, answer, 1, "", True, "", len(texts))
        elif name:
            yield Statement("listing", name, answer, 1, sentences=len(texts))

    def is_list(self, items: list[TextBlock], texts: list[str], covered: Collection[str], *, whole: bool) -> bool:
        """Whether a list is one answer: no glossary, and without another list between its items."""
        labelled = sum(labelled_value(text) is not None for text in texts)
        if labelled * 2 > len(texts) or len(texts) < 2 or (len(texts) == len(covered) and self.language != ENGLISH):
            return False
        return whole and not any(block.text.rstrip().endswith((":", "：")) for block in items)

    def read_item(self, block: TextBlock, topic: str, *, instructs: bool) -> Iterator[Statement]:
        """Yield a list item: a sentence like any other, a labelled one, or a step of a numbered list."""
        text = block.text
        value = labelled_value(text)
        if value is not None:
            term, meaning = value
            if not POINTERS[self.language].fullmatch(term) and not BARE.fullmatch(term):
                code = bool(re.fullmatch(r"`[^`]+`.*", term))
                rule = "option" if code else "value" if num_words(meaning) < 5 else ""
                if rule == "value" and self.language == ENGLISH and not block.label:
                    return
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
            says = is_sentence(first, self.language) or (
                topic and num_words(first) >= ITEM_WORDS and not first[0].islower()
            )
            says = says and (statement.rule != "statement" or num_words(first) >= LEAST_ITEM)
            if statement.rule == "statement" and ((block.number and topic) or not says):
                break
            yield statement
            for other, its_answer, its_count in units[1:]:
                yield from self.ask(other, its_answer, topic, its_count)
            return
        name = self.language == ENGLISH and not (
            is_sentence(first, self.language) or clauses.begins_with_command(first)
        )
        if block.number and instructs and topic and not BARE.fullmatch(topic) and units and not name:
            step = ORDER[self.language].format(number=block.number)
            is_instruction = self.language != ENGLISH or english_fronts.instructs(text)
            if (
                is_instruction
                and not (self.language == ENGLISH and (self.num_ordered > 1 or OF_IT.match(text)))
                and (num_words(text) >= LEAST_STEP or "`" in text or self.language != ENGLISH)
                and num_words(text) <= MOST_ANSWER_WORDS
                and not (sentences.INCOMPLETE.search(text) or ABOVE.search(text))
            ):
                yield Statement("step", step, ended(text), 1, context="")


def parted_lists(blocks: Sequence[TextBlock]) -> set[int]:
    """Return the lists that have a list or a further paragraph between their items, or below the last one."""
    parted = set()
    for before, after in pairwise(blocks):
        if before.list_id and after.list_id != before.list_id and after.depth > before.depth - (not after.list_id):
            parted.add(before.list_id)
    return parted


def place_of(title: str, topic: str, colon: str, *, repeated: bool = False) -> str:
    """Return how a question names a section: with its page, alone where that is long, or only the page."""
    if num_words(f"{title} {topic}") <= PLACE_WORDS:
        return f"{title}{colon}{topic}"
    return topic if LEAST_PLACE <= num_words(topic) <= PLACE_WORDS and not repeated else title


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
    """Return the text with a full stop at its end."""
    text = text.rstrip(" ;,:")
    return text if text[-1:] in ".!?。" else f"{text}."


def goal_of(sentence: str, language: str, vocabulary: Collection[str]) -> str:
    """Return "filter the listing by path" of "You can filter the listing by path" or of the command; else nothing."""
    if language != ENGLISH:
        return ""
    match = re.match(
        r"(?:First, |Then |Now |Next, )?(?:you|we) (?:can|may|could) (?:also |then |now )?(?=[a-z])", sentence, re.I
    )
    goal = sentence[match.end() :] if match else ""
    if not goal and clauses.begins_with_command(sentence):
        goal = sentence[0].lower() + sentence[1:]
    if (
        english.DANGLING.search(goal)
        or re.search(r" to \w+$", goal)
        or len(goal.split()) < LEAST_LEAD
        or re.search(r"[,;()]|\b(?:and|or)\b", goal)
    ):
        return ""
    return "" if re.match(r"(?:use|see|note|run|do|be|have|get|for|here)\b", goal) else goal


def commands(texts: Collection[str], language: str) -> bool:
    """Whether most items of a list are instructions."""
    if language != ENGLISH:
        return sum(map(german.is_instruction, texts)) * 2 > len(texts)
    return sum(map(clauses.begins_with_command, texts)) * 2 > len(texts)
