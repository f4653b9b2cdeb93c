"""The extractive engine: question/answer pairs taken from documents by rule, without a language model.

Nothing is invented: every answer is text of its document. The same documents give the same pairs, byte for byte. See
`docs/extractive-engine.md` for the rules and their limits.

Cost: about 1 MB of Markdown a second on one core, nearly all of it parsing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainyard.data.extractive import code
from trainyard.data.extractive.cleaning import tidy_heading
from trainyard.data.extractive.facts import TEMPLATE_TAG, Fact, prose_facts, title_of
from trainyard.data.extractive.outline import outline
from trainyard.data.extractive.questions import instruction, questions
from trainyard.data.rows import DocumentRow
from trainyard.spec.axes.data import GenerationTemplate

NO_NAMES = ("", "index", "readme", "main", "home", "docs", "content", ".")
"""Names of files and folders that say nothing of a page."""


@dataclass(frozen=True)
class Pair:
    """One fact with the wordings of its question. `id` is stable over runs; `wordings[-1]` is the reserved one."""

    id: str
    wordings: list[str]
    answer: str
    worth: int
    """0 is taken first when not all pairs are wanted."""
    rule: str = ""


def extract(document: DocumentRow, template: GenerationTemplate) -> list[Fact]:
    """Return the facts of a document for a template, the most worthwhile first, otherwise in document order."""
    as_code = template is GenerationTemplate.CODE
    facts: Iterable[Fact]
    if document.kind == "commit":
        title = document.title or document.source
        facts = (code.diff_facts if as_code else code.commit_facts)(document.text, title)
    elif document.kind == "code":
        title = "/".join(PurePosixPath(document.source).parts[-2:]) or document.title
        facts = (code.body_facts if as_code else code.docstring_facts)(document.text, title)
    else:
        sections = outline(document.kind, document.text)
        named = "" if TEMPLATE_TAG.search(document.title) else tidy_heading(document.title)
        title = title_of(sections, named, name_of_file(document.source)) or PurePosixPath(document.source).stem
        facts = code.snippet_facts(sections, title) if as_code else prose_facts(sections, title)
    return sorted(facts, key=lambda fact: fact.worth)


def name_of_file(source: str) -> str:
    """Return the name of a page by its file, or by its folder for an `index.md`; empty where neither says anything."""
    path = PurePosixPath(source)
    parts = [part for part in (path.stem, path.parent.name) if part.lower().strip("_") not in NO_NAMES]
    return parts[0].replace("_", " ").replace("-", " ").strip() if parts else ""


def pairs(document: DocumentRow, template: GenerationTemplate, *, wordings: int) -> list[Pair]:
    """Return the pairs of a document, without repeated questions, best first.

    `wordings` (1 to 8) applies to the qa template; an instruction, a piece of code and a preference have one each.
    """
    result: list[Pair] = []
    seen: set[str] = set()
    for fact in extract(document, template):
        identity = hashlib.sha256("\0".join((document.doc_id, fact.rule, fact.topic, fact.answer)).encode()).hexdigest()
        turn = int(hashlib.sha256("\0".join((fact.rule, fact.topic, fact.title)).encode()).hexdigest()[:8], 16)
        if template is GenerationTemplate.INSTRUCTION:
            texts = [instruction(fact.rule, fact.topic, fact.title, fact.language)]
        else:
            count = wordings if template is GenerationTemplate.QA else 1
            texts = questions(
                fact.rule, fact.topic, fact.title, count=count, turn=turn, language=fact.language, clause=fact.clause,
                placed=fact.placed,
            )  # fmt: skip
        if not seen.intersection(texts):
            seen.update(texts)
            result.append(Pair(identity[:16], texts, fact.answer, fact.worth, fact.rule))
    return result
