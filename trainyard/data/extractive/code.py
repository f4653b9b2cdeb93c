"""Code and commits to facts: docstrings, function bodies, fenced blocks, messages and diffs."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from trainyard.data.extractive.cleaning import tidy_text
from trainyard.data.extractive.facts import Fact, language_of
from trainyard.data.extractive.outline import Section
from trainyard.data.extractive.sentences import short_answer

BODY_LINES = (2, 60)
SNIPPET_LINES = (1, 60)
DIFF_CHARS = 6000
COMMIT_SENTENCES = 5
"""A subject line alone often says too little."""
DIFF_START = re.compile(r"^diff --git ", re.M)
CHANGED = re.compile(r"^diff --git a/(\S+)", re.M)
COMMENTED = re.compile(
    r"(?P<comment>(?:^[ \t]*(?:///?|##?)[^\n]*\n)+|^[ \t]*/\*\*.{0,4000}?\*/[ \t]*\n)(?P<line>[^\n]{1,300})",
    re.S | re.M,
)
DECLARED = re.compile(
    r"\b(?:class|struct|enum|trait|interface|type|fn|func|function|def|module)\s+(?:\([^)]*\)\s*)?(?P<keyword>[A-Za-z_]\w*)"
    r"|\b(?P<call>[A-Za-z_]\w*)\s*\([^;]*$"
)
Symbol = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse_python(text: str) -> ast.Module | None:
    """Return the syntax tree, or None when the text is not Python that this interpreter reads."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def docstring_facts(text: str, title: str) -> Iterator[Fact]:
    """Yield what each public symbol does, from the first paragraph of its docstring or the comment above it."""
    tree = parse_python(text)
    if tree is None:
        yield from comment_facts(text, title)
        return
    if answer := first_paragraph(tree):
        yield Fact("about", title, title, answer, 1)
    for name, node in symbols(tree):
        if answer := first_paragraph(node):
            yield Fact("symbol", f"{name}()" if not isinstance(node, ast.ClassDef) else name, title, answer, 0)


def first_paragraph(node: ast.Module | Symbol) -> str | None:
    docstring = ast.get_docstring(node) or ""
    return short_answer(tidy_text(docstring.split("\n\n")[0])) if docstring else None


def symbols(tree: ast.Module) -> Iterator[tuple[str, Symbol]]:
    """Public functions, classes and methods with their qualified names, in order."""
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, node = pending.pop(0)
        for child in getattr(node, "body", ()):
            if isinstance(child, Symbol) and not child.name.startswith("_"):
                yield f"{prefix}{child.name}", child
                if isinstance(child, ast.ClassDef):
                    pending.append((f"{prefix}{child.name}.", child))


def comment_facts(text: str, title: str) -> Iterator[Fact]:
    """`/** … */`, `///` or `#` comments directly above a declaration, in whatever language."""
    for match in COMMENTED.finditer(text):
        declared = DECLARED.search(match["line"])
        words = tidy_text(re.sub(r"^[ \t]*(?:/\*\*|\*/|\*|///?!?|##?)|\*/", " ", match["comment"], flags=re.M))
        words = re.split(r"\s@\w", words)[0]
        if declared and words and (answer := short_answer(words)):
            yield Fact("symbol", declared["keyword"] or declared["call"], title, answer, 0)


def body_facts(text: str, title: str) -> Iterator[Fact]:
    """Signature and docstring against the body, for Python functions of 2 to 60 lines."""
    tree = parse_python(text)
    lines = text.splitlines()
    for _, node in symbols(tree) if tree else ():
        if isinstance(node, ast.ClassDef) or not ast.get_docstring(node) or len(node.body) < 2:
            continue
        body = lines[node.body[1].lineno - 1 : node.end_lineno]
        head = lines[node.lineno - 1 : node.body[0].end_lineno]
        if BODY_LINES[0] <= len(body) <= BODY_LINES[1]:
            question = f"```python\n{textwrap.dedent(chr(10).join(head))}\n```"
            yield Fact("body", question, title, f"```python\n{textwrap.dedent(chr(10).join(body))}\n```", 0)


def snippet_facts(sections: list[Section], title: str) -> Iterator[Fact]:
    """Yield the paragraph before a code block against the block."""
    language = language_of(sections)
    for section in sections:
        for before, code in section.code:
            if SNIPPET_LINES[0] <= len(code.splitlines()) <= SNIPPET_LINES[1] and code.strip():
                topic = (before or section.heading).rstrip(":：")
                if topic:
                    yield Fact("snippet", topic, title, f"```\n{code}\n```", 0, language)


def commit_parts(text: str) -> tuple[str, str]:
    """Message and diff of a commit document."""
    start = DIFF_START.search(text)
    return (text[: start.start()].strip(), text[start.start() :].strip()) if start else (text.strip(), "")


def commit_facts(text: str, title: str) -> Iterator[Fact]:
    """Yield what a commit did, from the first paragraph of its message."""
    message, diff = commit_parts(text)
    paths = CHANGED.findall(diff)
    subject, _, rest = message.partition("\n\n")
    body = tidy_text(rest.split("\n\n")[0])
    answer = short_answer(f"{tidy_text(subject).rstrip('.')}. {body}", COMMIT_SENTENCES) or short_answer(
        tidy_text(subject)
    )
    if paths and answer:
        files = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        yield Fact("commit", files, title, answer, 0)


def diff_facts(text: str, title: str) -> Iterator[Fact]:
    """Commit message against the diff, when the diff has at most 6,000 characters."""
    message, diff = commit_parts(text)
    if message and diff and len(diff) <= DIFF_CHARS:
        yield Fact("diff", message, title, f"```diff\n{diff}\n```", 0)
