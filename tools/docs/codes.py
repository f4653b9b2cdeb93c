"""Codes as the sources name them, with their messages, and the page of errors: one line a code."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.docs.markdown import code, page, paragraph, table
from tools.docs.meanings import read_meanings
from trainyard import errors

REPOSITORY = Path(__file__).parents[2]
CODE = re.compile(r"^[RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*$")
PRINTED = re.compile(r"^([RE]-[A-Z-]+): $")
"""The begin of a printed line."""


def errors_page() -> str:
    uses_by_code = {name: uses for name, uses in codes_in_sources().items() if name.startswith("E-")}
    meanings = read_meanings()
    rows = [[code(name), str(exit_code(uses)), *meanings[name]] for name, uses in uses_by_code.items()]
    introduction = (
        "Every `E-…` code: an input is not valid, or something failed. The message itself says what was given, why "
        "that does not work and what to do. The second column is the exit code of a command that ends with it."
    )
    return page("Errors", introduction, [table(["code", "exit", "means", "do"], rows)])


def exit_code(uses: Iterable[Use]) -> int:
    """Return the exit code of a command that ends with the first error class among the uses of a code."""
    return next((EXIT_CODES[use.kind] for use in uses if use.kind), 1)


@dataclasses.dataclass(frozen=True)
class Use:
    """A place in the sources where a code is written."""

    module: str
    kind: str = ""
    cause: str = ""
    do: str = ""


EXIT_CODES = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.TrainyardError)
}


PUT_TOGETHER = {
    "R-URL": "An address is not a plain `http` or `https` address, has a user or a password, is reached after many "
    "redirects only, or leads into a private network while its host is not in `allow_private_urls`; so is the name of "
    "a model server in a chain, and over a network also a numeric address of one.",
}
"""What the sources say only when it happens: codes whose message is put together."""
NAMED_ONCE = {("spec.load.text", "refuse"): "E-SPEC-SYNTAX"}
"""(module, function) that names the code for its callers -> that code."""


def codes_in_sources() -> dict[str, list[Use]]:
    """Return every code that the sources name, with the messages next to it, in the order of the codes."""
    uses: dict[str, list[Use]] = {}
    for room in ("trainyard", "flows", "nodes", "tasks"):
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            for name, use in codes_of(ast.parse(path.read_text(encoding="utf-8")), module_of(path)):
                uses.setdefault(name, []).append(use)
    return dict(sorted(uses.items()))


def module_of(path: Path) -> str:
    return (
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        .removeprefix("trainyard.")
        .removesuffix(".__init__")
    )


def codes_of(tree: ast.AST, module: str) -> Iterator[tuple[str, Use]]:
    """The codes of one module: those of calls with their messages, then those that are only named."""
    seen: set[ast.AST] = set()
    for call, names in calls_of(tree, {}):
        for expression in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if code := code_in(expression):
                seen.add(expression)
                yield code, use_of(call, expression, module, names)
        if isinstance(call.func, ast.Name) and (code := NAMED_ONCE.get((module, call.func.id), "")):
            yield code, use_of(call, call.func, module, names)
    for node in ast.walk(tree):
        for expression, use in (*class_codes(node, module), *tuple_codes(node, module)):
            seen.add(expression)
            yield code_in(expression), use
        if (code := code_in(node) or printed_code(node)) and node not in seen:
            yield code, Use(module)


def calls_of(tree: ast.AST, names: dict[str, ast.expr]) -> Iterator[tuple[ast.Call, dict[str, ast.expr]]]:
    """Yield every call, with the expressions that its function has assigned to names before it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = node.value
        if isinstance(node, ast.Call):
            yield node, names
        scope_names = dict(names) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else names
        yield from calls_of(node, scope_names)


def code_in(node: ast.AST) -> str:
    """The code that an expression is; empty if it is none."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and CODE.match(value) else ""


def printed_code(node: ast.AST) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    begin = PRINTED.match(value) if isinstance(value, str) else None
    return begin[1] if begin else ""


def class_codes(node: ast.AST, module: str) -> Iterator[tuple[ast.expr, Use]]:
    """The default code of an error class, under the class itself or the nearest of its bases that has an exit code."""
    if isinstance(node, ast.ClassDef):
        names = [node.name, *(base.id for base in node.bases if isinstance(base, ast.Name))]
        kind = next((name for name in names if name in EXIT_CODES), "")
        cause = paragraph(ast.get_docstring(node)).split("\n")[0]
        lines = [line.value for line in node.body if isinstance(line, ast.Assign)]
        yield from ((line, Use(module, kind, cause)) for line in lines if code_in(line))


def tuple_codes(node: ast.AST, module: str) -> Iterator[tuple[ast.expr, Use]]:
    """The codes of a row of a table of tuples, with the row's text."""
    if isinstance(node, ast.Tuple):
        cause = next((text for text in (text_of(part, {}) for part in node.elts) if " " in text), "")
        yield from ((element, Use(module, cause=cause)) for element in node.elts if code_in(element))


def use_of(call: ast.Call, code_argument: ast.expr, module: str, names: Mapping[str, ast.expr]) -> Use:
    """What a call that names a code says: its texts of several words, or those under the names of an error's parts."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    texts = {keyword.arg: text_of(keyword.value, names) for keyword in call.keywords if keyword.arg}
    placed = [text_of(argument, names) for argument in call.args if argument is not code_argument]
    cause, instead = [*(text for text in placed if " " in text), "", ""][:2]
    cause, do = texts.get("because") or texts.get("what") or cause, texts.get("instead") or texts.get("do") or instead
    return Use(module, name if name in EXIT_CODES else "", cause, do)


def text_of(node: ast.expr | None, names: Mapping[str, ast.expr]) -> str:
    """A text of the sources, with `…` for what is filled in; empty for what only a run knows."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left, names) + text_of(node.right, names)
    if isinstance(node, ast.Name) and node.id in names:
        return text_of(names[node.id], {})
    return ""
