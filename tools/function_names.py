"""Count the functions whose names do not say what they do (`STYLE`: verb_object, or a slot of a table).

    python -m tools.function_names                 # each room's share
    python -m tools.function_names trainyard/data  # each such function below a folder, with file and line

Such a name opens with a pronoun, a participle or a preposition (`own_role`, `merged`, `in_order`), ends with `_of`,
or is one word that fits any module (`load`, `plain`, `carry_out`). Properties, fixtures and tests are not counted.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.binding_names import ROOT, ROOTS, python_files, room_of

PRONOUNS = frozenset({
    "one", "ones", "own", "its", "other", "others", "all", "any", "each", "every", "some", "both", "what", "who",
    "whom", "whose", "which", "where", "when", "how", "why", "this", "that", "these", "those", "it", "they", "such",
    "more", "most", "few", "many", "nothing", "everything", "something", "anything", "somebody", "nobody", "there",
    "here", "only", "not", "no", "too", "so", "again", "together", "still", "now", "once", "never", "always",
    "else",
})  # fmt: skip
PREPOSITIONS = frozenset({
    "in", "at", "by", "for", "of", "off", "out", "over", "under", "after", "before", "until", "since", "while",
    "between", "among", "within", "without", "beyond", "behind", "below", "above", "against", "across", "near",
    "inside", "outside", "into", "onto", "up", "down", "away", "through", "during", "per", "if", "unless",
})  # fmt: skip
PARTICIPLES = frozenset({
    "given", "found", "asked", "wanted", "said", "taken", "known", "kept", "made", "told", "chosen", "drawn",
    "shown", "begun", "gone", "held", "sent", "written", "built", "left", "lost", "spoken", "broken", "frozen",
    "hidden", "spelt", "seen", "done", "ran", "met", "bound", "paid", "fed", "led",
})  # fmt: skip
"""Those of irregular verbs; the others end with `ed`."""
VERBS_WITH_ED = frozenset({"need", "feed", "speed", "seed", "embed", "shed", "exceed"})
GENERIC = frozenset({
    "plain", "load", "carry_out", "rows", "row", "lines", "line", "text", "texts", "name", "names", "file", "files",
    "folder", "folders", "path", "paths", "place", "places", "items", "item", "value", "values", "fields", "field",
    "key", "keys", "facts", "part", "parts", "entry", "entries", "word", "words", "result", "results", "state",
    "data", "body", "json", "record", "records", "table",
})  # fmt: skip
PREFIXES = (
    "on_",
    "as_",
    "before_",
    "after_",
    "at_epoch",
    "for_template",
    "for_tenant",
    "in_our_words",
    "without_memory",
)
"""Slots of a protocol and of pydantic: hooks (`on_step`), conversions (`as_dict`), validators of a model."""
SUFFIXES = ("_error", "_text")
"""Constructors of errors, and the texts of the table of operations."""
SLOTS = {
    "trainyard/spec/compat/": "the conditions of the rows: `when=other_shape`",
    "trainyard/spec/imports/": "the converters of the keys of a config",
    "trainyard/data/quality/filters.py": "the checks of the filters",
    "trainyard/train/losses/": "the losses and their variants",
    "trainyard/train/methods/": "the actions of a row of the methods",
    "trainyard/serve/targets/": "the six functions of a target",
    "trainyard/testing/": "the public doubles and their behaviours",
    "trainyard/evals/benchmarks/": "the functions of a row of the benchmarks",
}
"""Folder or module -> the table whose slots its functions fill."""


@dataclass(frozen=True)
class Function:
    file: str
    line: int
    name: str

    @property
    def is_empty(self) -> bool:
        """Whether the name says nothing and fills no slot."""
        name = self.name.strip("_")
        if self.file.startswith(tuple(SLOTS)) or name.startswith(PREFIXES) or name.endswith(SUFFIXES):
            return False
        return says_nothing(name)


def says_nothing(name: str) -> bool:
    """Return whether a name opens with no verb and is no plain noun either."""
    first = name.partition("_")[0]
    is_participle = first in PARTICIPLES or (first.endswith("ed") and first not in VERBS_WITH_ED)
    return name in GENERIC or first in PRONOUNS | PREPOSITIONS or is_participle or name.endswith("_of")


def functions(*roots: str) -> Iterator[Function]:
    """Yield every function and method below the folders, without properties, fixtures, tests and special methods."""
    for path in python_files(*roots):
        yield from functions_in(path)


@cache
def functions_in(path: Path) -> tuple[Function, ...]:
    """Return the functions of a module."""
    file = path.relative_to(ROOT).as_posix()
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    definitions = (
        node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_other(node)
    )
    return tuple(Function(file, node.lineno, node.name) for node in definitions)


def is_other(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
    return node.name.startswith(("__", "test_")) or "property" in decorators or "fixture" in decorators


def main(roots: list[str]) -> int:
    """Print the share of each room, or each such function below the folders."""
    if roots:
        for function in functions(*roots):
            if function.is_empty:
                print(f"{function.file}:{function.line}: {function.name}")
        return 0
    total, empty = Counter[str](), Counter[str]()
    for function in functions(*ROOTS):
        total[room_of(function.file)] += 1
        empty[room_of(function.file)] += function.is_empty
    for room, count in [*total.most_common(), ("all", total.total())]:
        wrong = empty.total() if room == "all" else empty[room]
        print(f"{room:32} {count:7} {wrong:6} {wrong / count:7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
