"""Count the bindings whose names say nothing: pronouns, participles and fillers (`STYLE`: a name says what a thing is).

    python -m tools.binding_names              # each room's share
    python -m tools.binding_names trainyard/data   # each such binding below a folder, with file and line

A binding is a parameter, an assigned variable or attribute, a loop variable, a name after `as`, a field of a class, a
function, a class or a module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("trainyard", "flows", "nodes", "tasks", "tests")
EMPTY_NAMES = frozenset({
    "one", "ones", "given", "found", "asked", "wanted", "said", "taken", "known", "kept", "made", "what", "who", "whom",
    "whose", "which", "place", "places", "own", "theirs", "ours", "mine", "words", "told", "chosen", "drawn", "shown",
    "begun", "gone", "others",
})  # fmt: skip
"""Names that have to be replaced by the thing: `row`, `request`, `job`, `path`, `missing`, `limit`."""
ALLOWED = {
    "words": (
        "trainyard/data/", "tests/unit/data/", "trainyard/serve/extraction/", "trainyard/spec/load/",
        "trainyard/stores/graph/",
    ),
}  # fmt: skip
"""Name -> the folders in which it is the thing itself, as a word of a text is."""
PAIRS = {"chosen": "rejected"}
"""Name -> the other half of a pair of terms; a module that contains both means the terms, here those of preferences."""
STORED_FIELDS = {
    ("trainyard/errors.py", "what"): "`error.json` and every REST problem: {code, what, why, do}",
    ("trainyard/backends/sessions/records.py", "begun"): "`status.json` of a session",
    ("trainyard/data/generation/rows.py", "asked"): "`accounting.json` of a generator",
    ("trainyard/data/generation/rows.py", "kept"): "`accounting.json` of a generator",
    ("trainyard/data/limited/requests.py", "what"): "the fields of `TrainyardError` between two processes",
    ("trainyard/night/report.py", "what"): "`report.json` of a night",
    ("trainyard/workers/trainyard_worker/failures.py", "what"): "`error.json` of a worker",
    ("trainyard/sweeps/asha.py", "found"): "the trials of `sweep show` over REST",
}
"""(module, name) -> the stored file or answer that has the field as its key."""


@dataclass(frozen=True)
class Binding:
    file: str
    line: int
    name: str

    @property
    def is_empty(self) -> bool:
        """Whether the name is a pronoun or a participle where it is not allowed."""
        name = self.name.strip("_")
        return name in EMPTY_NAMES and not self.is_allowed(name)

    def is_allowed(self, name: str) -> bool:
        if (self.file, name) in STORED_FIELDS or self.file.startswith(ALLOWED.get(name, ("\0",))):
            return True
        return name in PAIRS and bool(re.search(rf"\b{PAIRS[name]}\b", text_of(self.file)))


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def python_files(*roots: str) -> list[Path]:
    return sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each binding of a module; a variable is counted at each place that assigns it."""
    for node in ast.walk(tree):
        match node:
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield getattr(node, "lineno", 0), name


def names_in_file(file: str) -> set[str]:
    """Return every name that a module of the repository binds."""
    return {name for _, name in names_in(ast.parse(text_of(file)))}


def bindings(*roots: str) -> Iterator[Binding]:
    """Yield every binding below the folders of the repository."""
    for path in python_files(*roots):
        file = path.relative_to(ROOT).as_posix()
        yield Binding(file, 1, path.stem if path.stem != "__init__" else path.parent.name)
        for line, name in names_in(ast.parse(path.read_text(encoding="utf-8"))):
            yield Binding(file, line, name)


def room_of(file: str) -> str:
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 and parts[0] in ("trainyard", "tests") else parts[0]


def main(roots: list[str]) -> int:
    """Print the share of empty names in each room, or each of them below the folders."""
    if roots:
        for binding in bindings(*roots):
            if binding.is_empty:
                print(f"{binding.file}:{binding.line}: {binding.name}")
        return 0
    total, empty, names = Counter[str](), Counter[str](), Counter[str]()
    for binding in bindings(*ROOTS):
        total[room_of(binding.file)] += 1
        if binding.is_empty:
            empty[room_of(binding.file)] += 1
            names[binding.name.strip("_")] += 1
    for room, count in total.most_common():
        print(f"{room:32} {count:7} {empty[room]:6} {empty[room] / count:7.1%}")
    print(f"{'all':32} {total.total():7} {empty.total():6} {empty.total() / total.total():7.1%}")
    print(", ".join(f"{name} {count}" for name, count in names.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
