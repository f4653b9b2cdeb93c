"""The starter model's reading: the interpreter's own documentation and docstrings, and the project's pages.

Modules are read as text and parsed with `ast`, never imported, so that nothing of them runs. Each source file is
listed with its SHA-256, which names the corpus. The project's pages are read as plain text only; questions and
answers are made from docstrings alone, so that no question that a chain may later hold out is part of the corpus.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.stores.artifacts import file_sha256

SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "encodings")
)
"""Third-party packages, tests, and folders of boilerplate (the 120 codecs repeat one docstring)."""
MAX_DOCSTRING_CHARS = 6000
MAX_ANSWER_CHARS = 320
MIN_ANSWER_CHARS = 12
MIN_PHRASE_CHARS = 4

WORDINGS = {
    "function": ("What does {name} do?", "Explain the function {name}.", "How would you describe {name}?"),
    "class": ("What is {name}?", "What is the class {name} for?", "Tell me about {name}."),
    "module": ("What is the module {name} for?", "What is {name}?", "Describe the module {name}."),
    "topic": ("What does Python say about {name}?", "Explain {name} in Python.", "Tell me about {name}."),
}

PHRASE_WORDINGS = (
    "What is said about {phrase}?",
    "Which statement mentions {phrase}?",
    '"{phrase}": quote the sentence.',
    "Find the sentence on {phrase}.",
    "Tell me something about {phrase}.",
    "{phrase}?",
    "Please explain {phrase}.",
    'Do you know anything on "{phrase}"?',
    "I would like to know about {phrase}, please.",
    'Can you help me with "{phrase}"?',
    'Say what "{phrase}" is about.',
    "Looking for {phrase}. What do the docs say?",
    "I am new to this. What about {phrase}?",
    "Write a sentence with {phrase} in it.",
    "How is {phrase} described?",
    'My colleague asked about "{phrase}". What do I answer?',
)
PHRASE_IN_WORDINGS = (
    "{name}: what is said about {phrase}?",
    "Which statement of {name} mentions {phrase}?",
    'What do we read on "{phrase}" in "{name}"?',
    "{phrase}, as in {name}, please.",
    'Quote "{name}" on "{phrase}".',
    'I have "{name}" before me. Where is {phrase}?',
    'My colleague asked about "{phrase}" of "{name}". What do I answer?',
    "{name} / {phrase}",
    'How are {phrase} and "{name}" related?',
    "Looking for {phrase} in {name}.",
)
"""Ways to ask for a sentence by a few of its words. Docstrings seldom repeat what was asked; a model that has never
seen a question and its answer share words does not look at the question, and no short adapter teaches it to."""
PHRASES_PER_PASSAGE = 6
SENTENCE_WORDS = range(6, 41)
MAX_SENTENCE_CHARS = 260
LEADING_PHRASES = 0.4
"""Share of the phrases that open their sentence, as the topic of a definition does."""


@dataclass(frozen=True)
class SourceFile:
    """One file of the corpus. `name` is stable between machines, such as `stdlib/json/decoder.py`."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Passage:
    """A piece of reading: plain text, or a question with its answer."""

    text: str
    question: str | None = None


def project_docs() -> Path | None:
    """The checkout's `docs` folder; None when only the wheel is installed."""
    folder = Path(__file__).parents[3] / "docs"
    return folder if folder.is_dir() else None


def corpus_sources(docs: Path | None, *, stdlib: Path | None = None) -> list[SourceFile]:
    """Every file that the starter reads, with its digest, in a fixed order.

    `docs` is a folder of Markdown pages or None; `stdlib` defaults to the running interpreter's library.
    """
    library = stdlib or Path(sysconfig.get_paths()["stdlib"])
    found = [
        (f"stdlib/{path.relative_to(library).as_posix()}", path)
        for path in sorted(library.rglob("*.py"))
        if not SKIPPED_FOLDERS & set(path.relative_to(library).parts[:-1])
    ]
    if docs is not None:
        found += [(f"docs/{path.relative_to(docs).as_posix()}", path) for path in sorted(docs.rglob("*.md"))]
    return [SourceFile(name, path, file_sha256(path)) for name, path in found]


def read_corpus(sources: Iterable[SourceFile]) -> Iterator[Passage]:
    """The passages of all files, exact repetitions left out. A file that is not UTF-8 Python text gives nothing."""
    seen: set[bytes] = set()
    for source in sources:
        for passage in read_source_file(source):
            key = hashlib.sha256(f"{passage.question}\0{passage.text}".encode()).digest()
            if key not in seen:
                seen.add(key)
                yield passage


def read_source_file(source: SourceFile) -> Iterator[Passage]:
    raw = source.path.read_bytes()
    if source.name.startswith("docs/"):
        yield from page_passages(raw.decode("utf-8", errors="replace"))
        return
    try:
        tree = ast.parse(raw)
    except SyntaxError:  # some interpreters ship files that show wrong syntax on purpose
        return
    if source.name == "stdlib/pydoc_data/topics.py":
        yield from topic_passages(tree)
    else:
        yield from docstring_passages(tree, module_name(source.name))


def module_name(name: str) -> str:
    parts = name.removeprefix("stdlib/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def page_passages(text: str) -> Iterator[Passage]:
    """A Markdown page, one passage a section."""
    for section in re.split(r"(?m)^(?=#{1,6} )", text):
        if section.strip():
            yield Passage(section.strip())


def topic_passages(tree: ast.Module) -> Iterator[Passage]:
    """The language reference that `help('topic')` prints: one dict literal, topic -> text."""
    assignment = next(node for node in tree.body if isinstance(node, ast.Assign))
    for name, text in ast.literal_eval(assignment.value).items():
        cleaned = re.sub(r"\n[*=\-~^]{3,}\n", "\n", inspect.cleandoc(text))
        yield Passage(cleaned)
        yield from phrase_questions(cleaned, name)
        paragraphs = [part for part in cleaned.split("\n\n")[1:] if part[:1].isalpha()]
        yield from questions(name, "topic", paragraphs[0] if paragraphs else "")


def docstring_passages(tree: ast.Module, module: str) -> Iterator[Passage]:
    for name, kind, signature, doc in documented(tree, module):
        if not doc.isascii() and sum(not character.isascii() for character in doc) > len(doc) // 10:
            continue
        yield Passage(f"{kind} {name}{signature}\n{doc[:MAX_DOCSTRING_CHARS]}")
        yield from phrase_questions(doc, name)
        yield from questions(name, kind, doc.split("\n\n")[0])


def documented(node: ast.AST, name: str, signature: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(dotted name, kind, signature, docstring) of a module and of all public classes and functions in it."""
    doc = ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
    kind = {"Module": "module", "ClassDef": "class"}.get(type(node).__name__, "function")
    if doc and len(doc) >= MIN_ANSWER_CHARS:
        yield name, kind, signature, doc
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield from documented(child, f"{name}.{child.name}", f"({ast.unparse(child.args)})")
        elif isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from documented(child, f"{name}.{child.name}")


def questions(name: str, kind: str, paragraph: str) -> Iterator[Passage]:
    """Two of the kind's wordings, chosen by the name, with the paragraph as the answer if it is a sentence."""
    answer = " ".join(paragraph.split())
    if not MIN_ANSWER_CHARS <= len(answer) <= MAX_ANSWER_CHARS or not re.search(r"[a-z]{2} [a-z]", answer):
        return
    skipped = hashlib.sha256(name.encode()).digest()[0] % len(WORDINGS[kind])
    for number, wording in enumerate(WORDINGS[kind]):
        if number != skipped:
            yield Passage(answer, question=wording.format(name=name))


def phrase_questions(text: str, name: str) -> Iterator[Passage]:
    """The first sentences of a text, each asked for by one to four of its words, half of them with the text's name.

    What is asked depends on the sentence alone.
    """
    for sentence in list(sentences(text))[:PHRASES_PER_PASSAGE]:
        draw = random.Random(sentence)
        words = sentence.split()
        length = draw.randint(1, 4)
        start = 0 if draw.random() < LEADING_PHRASES else draw.randrange(len(words) - length)
        phrase = " ".join(words[start : start + length]).strip(" .,;:()\"'")
        if len(phrase) >= MIN_PHRASE_CHARS:
            wordings = draw.choice((PHRASE_WORDINGS, PHRASE_IN_WORDINGS))
            yield Passage(sentence, question=draw.choice(wordings).format(phrase=phrase, name=name))


def sentences(text: str) -> Iterator[str]:
    """The sentences of running text, on one line each; tables, lists of names and code are left out."""
    for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`])|\n\n", text):
        flat = " ".join(part.split())
        if flat[:1].isalpha() and len(flat.split()) in SENTENCE_WORDS and len(flat) < MAX_SENTENCE_CHARS:
            yield flat
