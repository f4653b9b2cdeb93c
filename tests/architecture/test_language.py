"""Pages, docstrings, comments, messages and names use the words of the field; `words.toml` lists the others."""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.architecture.test_budgets import REPOSITORY, format_path, list_tracked_files

LISTS: dict[str, list[dict[str, Any]]] = tomllib.loads((Path(__file__).parent / "words.toml").read_text("utf-8"))
ROOMS = ("trainyard", "flows", "nodes", "tasks", "docs")
NAME_IN_PROSE = re.compile(r"\b[A-Za-z]\w*_\w+\b")
WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_+")


class Text(NamedTuple):
    line: int
    kind: str
    """`prose` or `names`."""
    content: str


class Hit(NamedTuple):
    line: int
    text: str
    write: str


@dataclass(frozen=True)
class Word:
    find: re.Pattern[str]
    write: str
    where: tuple[str, ...]
    allow: tuple[re.Pattern[str], ...]
    example: str
    allowed: tuple[str, ...]

    def spans(self, text: str) -> Iterator[re.Match[str]]:
        """The hits in a text that no exception covers."""
        hits = list(self.find.finditer(text))
        meant = [match.span() for pattern in self.allow for match in pattern.finditer(text)] if hits else []
        yield from (hit for hit in hits if not any(start < hit.end() and hit.start() < end for start, end in meant))


def compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


@cache
def load_words() -> tuple[Word, ...]:
    return tuple(
        Word(
            compile_pattern(row["find"]),
            row["write"],
            tuple(row.get("where", ("prose", "names"))),
            tuple(compile_pattern(pattern) for pattern in row.get("allow", ())),
            row["example"],
            tuple(row.get("allowed", ())),
        )
        for row in LISTS["word"]
    )


def split_name(name: str) -> str:
    """The words of an identifier: `HELD_OUT` and `heldOut` as "held out"."""
    return " ".join(part for part in WORD_START.split(name) if part).lower()


def comments_and_names(source: str) -> Iterator[Text]:
    """Identifiers (a call of a method without arguments as `.name()`), and comments: adjacent lines are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if block and line != last + 1:
                yield Text(first, "prose", "\n".join(block))
                block = []
            first, last = first if block else line, line
            block.append(token.string.lstrip("#: "))
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            called = token.line[token.start[1] - 1 : token.end[1] + 2]
            method = called.startswith(".") and called.endswith("()")
            yield Text(line, "names", f".{split_name(token.string)}()" if method else split_name(token.string))
    if block:
        yield Text(first, "prose", "\n".join(block))


def texts_of_module(source: str) -> Iterator[Text]:
    yield from comments_and_names(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(node.lineno, "prose", node.value)


def hits_in(texts: Iterable[Text]) -> Iterator[Hit]:
    """Every word of the list in these texts; names inside of prose are read as names, too."""
    for line, kind, content in texts:
        names = [(0, content)] if kind == "names" else []
        if kind == "prose":
            names = [(match.start(), split_name(match.group())) for match in NAME_IN_PROSE.finditer(content)]
            for word in (word for word in load_words() if "prose" in word.where):
                for hit in word.spans(content):
                    yield Hit(line + content.count("\n", 0, hit.start()), hit.group(), word.write)
        for start, name in names:
            for word in (word for word in load_words() if "names" in word.where):
                for _ in word.spans(name):
                    yield Hit(line + content.count("\n", 0, start), name, word.write)


def find_hits(name: str, source: str) -> list[Hit]:
    """Every word of the list in a file and in its name."""
    texts = texts_of_module(source) if name.endswith(".py") else [Text(1, "prose", source)]
    return sorted(set(hits_in([Text(1, "names", split_name(Path(name).stem)), *texts])))


def read_part(path: Path) -> str | None:
    """What of a file is looked at; None where it is excluded."""
    name = format_path(path)
    source = path.read_text(encoding="utf-8")
    for row in LISTS["exclude"]:
        if name == row["path"] or name.startswith(row["path"] + "/"):
            return source.partition(f"\n{row['until']}\n")[0] if "until" in row else None
    return source


def list_checked_files() -> list[Path]:
    return [
        path
        for path in list_tracked_files()
        if path.suffix == ".md" or (path.suffix == ".py" and path.relative_to(REPOSITORY).parts[0] in ROOMS)
    ]


def test_everything_is_written_in_the_words_of_the_field() -> None:
    problems = [
        f"{format_path(path)}:{hit.line}: {hit.text!r}; write: {hit.write}"
        for path in list_checked_files()
        if (source := read_part(path)) is not None
        for hit in find_hits(format_path(path), source)
    ]
    assert not problems, "\n".join(["Words that tests/architecture/words.toml lists:", *problems])


@pytest.mark.parametrize("word", load_words(), ids=lambda word: word.example)
def test_a_planted_word_is_found_wherever_it_is_written(word: Word) -> None:
    two_lines = word.example.replace(" ", "\n")
    name = word.example.rstrip(".").replace(" ", "_")
    planted = {
        "prose": [
            ("page.md", f"Text.\n{word.example}\n", 2),
            ("page.md", f"Text.\n\n{two_lines}\n", None),
            ("code.py", f'"""Do it.\n\n{word.example}\n"""\n', 3),
            ("code.py", f"x = 1  # {word.example}\n", 1),
            ("code.py", f'x = f"{{y}} {word.example}"\n', 1),
        ],
        "names": [
            ("code.py", f"{name} = 1\n", 1),
            ("code.py", f"def f(x):\n    return x.{name}\n", 2),
            ("code.py", f'x = {{"{name}": 1}}\n', 1),
            ("page.md", f"Text `{name}`.\n", 1),
            (f"trainyard/{name}.py", "x = 1\n", 1),
        ],
    }
    for kind in word.where:
        for file, source, line in planted[kind]:
            hits = [hit for hit in find_hits(file, source) if hit.write == word.write]
            assert hits, source
            assert line is None or hits[0].line == line


@pytest.mark.parametrize(("word", "text"), [(word, text) for word in load_words() for text in word.allowed])
def test_what_is_meant_otherwise_is_not_found(word: Word, text: str) -> None:
    assert not [hit for hit in find_hits("page.md", text) if hit.write == word.write]
    assert not [hit for hit in find_hits("code.py", f'"""{text}"""\n') if hit.write == word.write]


def test_what_is_excluded_exists() -> None:
    for row in LISTS["exclude"]:
        path = REPOSITORY / row["path"]
        assert path.exists(), row["path"]
        assert row["because"]
        if "until" in row:
            assert f"\n{row['until']}\n" in path.read_text(encoding="utf-8")
            assert read_part(path)
