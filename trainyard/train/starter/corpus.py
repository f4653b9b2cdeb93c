"""Corpus of the starter model: the docstrings of the pinned packages that every installation of Trainyard has.

The packages are pinned, so the same text is on every machine and the corpus has one digest; nothing is downloaded and
no text of others is part of this repository. Modules are parsed with `ast`, never imported, so that nothing of them
runs. Docstrings are read as text, and as questions with a sentence as the answer. No page of a user, of the manual or
of the handbook is read: what a chain asks about later is new to the model.

Everything that decides the starter's weights, the corpus excepted: sizes, learning rates, template, seed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trainyard.data.renderers.table import STARTER_TEMPLATE as CHAT_TEMPLATE
from trainyard.errors import NotFound
from trainyard.spec.chain import digest

PACKAGES = {
    "torch": "BSD-3-Clause", "numpy": "BSD-3-Clause", "pandas": "BSD-3-Clause", "networkx": "BSD-3-Clause",
    "sqlalchemy": "MIT", "pydantic": "MIT", "prefect": "Apache-2.0", "huggingface_hub": "Apache-2.0",
    "datasets": "Apache-2.0", "accelerate": "Apache-2.0", "peft": "Apache-2.0", "trl": "Apache-2.0",
}  # fmt: skip
"""Packages that are read, with their licences: dependencies of Trainyard, pinned in `constraints.txt`."""
SKIPPED_FOLDERS = frozenset(("test", "tests", "testing", "_vendor", "third_party", "vendor"))
HELD_OUT_EVERY = 100
"""One passage of so many, chosen by its digest, is never trained on; the loss on them is the model's metric."""
MAX_DOCSTRING_CHARS = 2500
MAX_ANSWER_CHARS = 320
MIN_ANSWER_CHARS = 12
MIN_PHRASE_CHARS = 4
MAX_NON_ASCII = 0.1
"""Share of characters outside ASCII above which a docstring is left out."""

WORDINGS = {
    "function": ("What does {name} do?", "Explain the function {name}.", "How would you describe {name}?"),
    "class": ("What is {name}?", "What is the class {name} for?", "Tell me about {name}."),
    "module": ("What is the module {name} for?", "What is {name}?", "Describe the module {name}."),
}
OPENINGS = (
    "", "", "", "Hello. ", "A short question. ", "I am new to this. ", "My colleague asks: ", "Please help. ",
    'According to "{name}": ', 'In "{name}": ', 'I have "{name}" open. ', 'On "{name}". ', "From {name}: ",
    "We talked about {name}. ", 'Somebody who works with "{name}" asks: ', "{name}: ",
)  # fmt: skip
ASKS = (
    "What is said about {phrase}?", "Which statement mentions {phrase}?", '"{phrase}": quote the sentence.',
    "Find the sentence on {phrase}.", "Tell me something about {phrase}.", "{phrase}?", "Please explain {phrase}.",
    'Do you know anything on "{phrase}"?', "I would like to know about {phrase}, please.",
    'Can you help with "{phrase}"?', 'Say what "{phrase}" is about.', "What do the docs say on {phrase}?",
    "What about {phrase}?", "Write a sentence with {phrase} in it.", "How is {phrase} described?",
    'What do I answer when I hear "{phrase}"?', 'How does it put "{phrase}"?', "When is {phrase} of interest?",
    "Why {phrase}?", "What happens with {phrase}?",
)  # fmt: skip
CLOSINGS = (
    "", "", "", "", ' (See "{name}".)', " Answer in one sentence.", " Quote it.", ' Answer from "{name}".',
    " Thank you.", ' It should be in "{name}".',
)  # fmt: skip
"""Ways to ask for a sentence by a few of its words, put together from three parts. Docstrings rarely repeat what was
asked; a model that has never seen a question and its answer share words does not look at the question, and no short
adapter teaches it to. The many forms teach it to look at the words and not at the form."""
PHRASES_PER_PASSAGE = 6
SENTENCE_WORDS = range(6, 41)
MAX_SENTENCE_CHARS = 260
LEADING_PHRASES = 0.4
"""Share of the phrases that open their sentence, as the topic of a definition does."""


@dataclass(frozen=True)
class PackageSource:
    """A package of the corpus, as it is installed here."""

    name: str
    version: str
    folder: Path


@dataclass(frozen=True)
class Passage:
    """A piece of reading: plain text, or a question with its answer."""

    text: str
    question: str | None = None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.question}\0{self.text}".encode()).digest()

    @property
    def held_out(self) -> bool:
        """By the text alone, so that a sentence and the questions for it are on one side."""
        return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:4], "big") % HELD_OUT_EVERY == 0


def corpus_sources(packages: Iterable[str] = tuple(PACKAGES)) -> list[PackageSource]:
    """Return the packages with their versions and folders. Raises `NotFound` (`E-STARTER`) if one is not installed."""
    sources = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise NotFound(
                f"The package {name}, which the starter model reads, is not installed.",
                do="Install Trainyard with its pinned dependencies (`make setup`).",
                code="E-STARTER",
            )
        folder = Path(next(iter(spec.submodule_search_locations)))
        sources.append(PackageSource(name, importlib.metadata.version(name).partition("+")[0], folder))
    return sources


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """Digest over the passages in their order."""
    total = hashlib.sha256()
    for passage in passages:
        total.update(passage.digest)
    return total.hexdigest()


def read_corpus(sources: Iterable[PackageSource]) -> Iterator[Passage]:
    """Yield the passages of all packages in a fixed order, exact repetitions left out."""
    seen: set[bytes] = set()
    for source in sources:
        for path in sorted(source.folder.rglob("*.py"), key=lambda path: path.relative_to(source.folder).parts):
            inside = path.relative_to(source.folder)
            if SKIPPED_FOLDERS & set(inside.parts[:-1]):
                continue
            parts = (source.name, *inside.with_suffix("").parts)
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for passage in read_module(path.read_bytes(), module):
                if passage.digest not in seen:
                    seen.add(passage.digest)
                    yield passage


def read_module(source: bytes, module: str) -> Iterator[Passage]:
    """Yield the passages of a module's docstrings. A file that is not Python, such as a template, gives nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for name, kind, doc in walk_docstrings(tree, module):
        if sum(not character.isascii() for character in doc) > MAX_NON_ASCII * len(doc):
            continue
        yield Passage(f"{kind} {name}\n{doc[:MAX_DOCSTRING_CHARS]}")
        yield from phrase_questions(doc, name)
        yield from questions(name, kind, doc.split("\n\n")[0])


def walk_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str, str]]:
    """(dotted name, kind, docstring) of a module and of all public classes and functions in it."""
    doc = ast.get_docstring(node) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else None
    kind = {"Module": "module", "ClassDef": "class"}.get(type(node).__name__, "function")
    if doc and len(doc) >= MIN_ANSWER_CHARS:
        yield name, kind, doc
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield from walk_docstrings(child, f"{name}.{child.name}")


def questions(name: str, kind: str, paragraph: str) -> Iterator[Passage]:
    """Yield two of the kind's wordings, chosen by the name, with the paragraph as the answer if it is a sentence."""
    answer = " ".join(paragraph.split())
    if not MIN_ANSWER_CHARS <= len(answer) <= MAX_ANSWER_CHARS or not re.search(r"[a-z]{2} [a-z]", answer):
        return
    skipped = hashlib.sha256(name.encode()).digest()[0] % len(WORDINGS[kind])
    for number, wording in enumerate(WORDINGS[kind]):
        if number != skipped:
            yield Passage(answer, question=wording.format(name=name))


def phrase_questions(text: str, name: str) -> Iterator[Passage]:
    """Yield the first sentences of a text, each asked for by one to four of its words.

    What is asked, and how, depends on the sentence alone.
    """
    for sentence in list(sentences(text))[:PHRASES_PER_PASSAGE]:
        draw = random.Random(sentence)
        tokens = sentence.split()
        length = draw.randint(1, 4)
        start = 0 if draw.random() < LEADING_PHRASES else draw.randrange(len(tokens) - length)
        phrase = " ".join(tokens[start : start + length]).strip(" .,;:()\"'")
        if len(phrase) >= MIN_PHRASE_CHARS:
            form = draw.choice(OPENINGS) + draw.choice(ASKS) + draw.choice(CLOSINGS)
            yield Passage(sentence, question=form.replace("{name}", name).replace("{phrase}", phrase))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of running text, on one line each; tables, lists of names and code are left out."""
    for part in re.split(r"(?<=[.!?])\s+(?=[A-Z`])|\n\n", text):
        flat = " ".join(part.split())
        if flat[:1].isalpha() and len(flat.split()) in SENTENCE_WORDS and len(flat) < MAX_SENTENCE_CHARS:
            yield flat


PAD, END_OF_TEXT, TURN_START, TURN_END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"


MANIFEST, CARD_FILE = "manifest.json", "README.md"


@dataclass(frozen=True)
class StarterRecipe:
    """Sizes of the model and of its training. The defaults are those of the shipped weights."""

    steps: int = 1500
    version: int = 3
    vocabulary: int = 4096
    layers: int = 4
    hidden: int = 256
    intermediate: int = 896
    heads: int = 4
    positions: int = 4096
    batch_rows: int = 16
    row_tokens: int = 256
    matrix_learning_rate: float = 0.02
    vector_learning_rate: float = 0.01
    warmup_steps: int = 60
    seed: int = 20

    @property
    def sha256(self) -> str:
        """Digest over the sizes and the chat template."""
        return digest({"recipe": asdict(self), "template": CHAT_TEMPLATE})
