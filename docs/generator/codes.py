"""Codes as the sources name them, with their messages, and the page of errors."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from docs.generator.markdown import cell, code, page, paragraph, table
from trainyard import errors

REPOSITORY = Path(__file__).parents[2]
CODE = re.compile(r"^[RE]-[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*$")
PRINTED = re.compile(r"^([RE]-[A-Z-]+): $")
"""The begin of a printed line."""


def errors_page() -> str:
    found = {name: uses for name, uses in codes_in_sources().items() if name.startswith("E-")}
    groups = sorted(
        {use.kind for uses in found.values() for use in uses if use.kind}, key=lambda name: (EXIT_CODES[name], name)
    )
    parts = []
    for kind in [*groups, ""]:
        own = {name: uses for name, uses in found.items() if kind_of(uses) == kind}
        if own:
            parts += [f"## {kind}: exit code {EXIT_CODES[kind]}" if kind else "## Other", doc_of(kind), uses_table(own)]
    introduction = (
        "Every `E-…` code: an input is not valid, or something failed. An error says what was given, why that does not "
        "work and what to do; `…` stands for a value. The last column says which module raises it."
    )
    return page("Errors", introduction, parts)


@dataclasses.dataclass(frozen=True)
class Use:
    """One place in the sources where a code is written."""

    module: str
    kind: str = ""
    what: str = ""
    do: str = ""


EXIT_CODES = {
    name: one.exit_code
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, errors.TrainyardError)
}


PUT_TOGETHER = {
    "E-BUG": "An unforeseen error of Trainyard itself; `TRAINYARD_DEBUG=1` prints its traceback. Please report it.",
    "E-EVENT": "A line of an event file is not an event; it is skipped.",
    "E-MERGE-DIVERGED": "The merged model answers otherwise than base and adapter.",
    "E-MIRROR-FAILED": "A checkpoint could not be copied to its mirror; the training continues.",
    "E-NOT-SHARDED": "DeepSpeed did not shard what its strategy shards.",
    "E-OPTIMIZER-DEVICE": "The optimizer does not run on this device.",
    "E-SPEC-TYPE": "A node or a setting has no `type`, or one that does not exist.",
    "E-SPEC-VALUE": "A value has another type, or is out of its range.",
    "E-TEMPLATE-LIMIT": "A chat template took more time or memory than a conversation may.",
    "E-URL-STATUS": "The server of an address answered with an error.",
    "R-NIGHT-SETTING": "A night decides this setting itself.",
    "R-TRL-QUANTIZATION": "The trl backend does not train through this quantization here.",
    "R-URL-PRIVATE": "An address leads into a private network, and the host is not in `allow_private_urls`.",
}
"""What the sources say only when it happens: codes whose message is put together."""


def doc_of(kind: str) -> str:
    return (
        paragraph(getattr(errors, kind).__doc__)
        if kind
        else "Reasons, events and replies that name a code without an error."
    )


def kind_of(uses: Iterable[Use]) -> str:
    return next((use.kind for use in uses if use.kind), "")


def uses_table(found: Mapping[str, list[Use]]) -> str:
    rows = []
    for name, uses in found.items():
        what = [*dict.fromkeys(use.what for use in uses if use.what)] or [PUT_TOGETHER.get(name, "")]
        do = dict.fromkeys(use.do for use in uses if use.do)
        modules = dict.fromkeys(use.module for use in uses)
        rows.append(
            [code(name), "<br>".join(map(cell, what)), "<br>".join(map(cell, do)), "<br>".join(map(code, modules))]
        )
    return table(["code", "what", "do", "raised in"], rows)


def codes_in_sources() -> dict[str, list[Use]]:
    """Every code that the sources name, with the messages that stand next to it, in the order of the codes."""
    found: dict[str, list[Use]] = {}
    for room in ("trainyard", "flows", "nodes", "tasks"):
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            for name, use in codes_of(ast.parse(path.read_text(encoding="utf-8")), module_of(path)):
                found.setdefault(name, []).append(use)
    return dict(sorted(found.items()))


def module_of(path: Path) -> str:
    return (
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        .removeprefix("trainyard.")
        .removesuffix(".__init__")
    )


def codes_of(tree: ast.AST, module: str) -> Iterator[tuple[str, Use]]:
    """The codes of one module: those of calls with their messages, then those that are only named."""
    called: set[ast.AST] = set()
    for node, texts in calls_of(tree, {}):
        for given in [*node.args, *(one.value for one in node.keywords)]:
            if isinstance(given, ast.Constant) and is_code(given.value):
                called.add(given)
                yield given.value, use_of(node, given, module, texts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for name, constant in default_codes(node):
                called.add(constant)
                yield constant.value, Use(module, kind=name, what=paragraph(ast.get_docstring(node)).split("\n")[0])
        elif isinstance(node, ast.Tuple):
            for one in (one for one in node.elts if isinstance(one, ast.Constant) and is_code(one.value)):
                called.add(one)
                texts = [text for text in (text_of(part, {}) for part in node.elts) if " " in text]
                yield one.value, Use(module, what=texts[0] if texts else "")
        elif isinstance(node, ast.Constant) and is_code(node.value) and node not in called:
            yield node.value, Use(module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (begin := PRINTED.match(node.value)):
            yield begin[1], Use(module)


def calls_of(tree: ast.AST, texts: dict[str, ast.expr]) -> Iterator[tuple[ast.Call, dict[str, ast.expr]]]:
    """Every call, with the expressions that the names of its function stand for."""
    for node in ast.iter_child_nodes(tree):
        inner = texts
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = [
                one for one in ast.walk(node) if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
            ]
            inner = {**texts, **{one.targets[0].id: one.value for one in lines}}  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            yield node, inner
        yield from calls_of(node, inner)


def is_code(value: object) -> bool:
    return isinstance(value, str) and CODE.match(value) is not None


def default_codes(tree: ast.ClassDef) -> Iterator[tuple[str, ast.Constant]]:
    """The code of an error class and the class, or the nearest of its bases that has an exit code."""
    bases = [one.id for one in tree.bases if isinstance(one, ast.Name)]
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant) and is_code(line.value.value):
            yield next((name for name in (tree.name, *bases) if name in EXIT_CODES), ""), line.value


def use_of(call: ast.Call, given: ast.expr, module: str, names: Mapping[str, ast.expr]) -> Use:
    """What a call that names a code says: its texts of several words, or those under the names of an error's parts."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    texts = {one.arg: text_of(one.value, names) for one in call.keywords if one.arg}
    placed = [text_of(one, names) for one in call.args if one is not given]
    what, instead = [*(text for text in placed if " " in text), "", ""][:2]
    what, do = texts.get("because") or texts.get("what") or what, texts.get("instead") or texts.get("do") or instead
    return Use(module, name if name in EXIT_CODES else "", what, do)


def text_of(node: ast.expr | None, names: Mapping[str, ast.expr]) -> str:
    """A text of the sources, with `…` for what is filled in; empty for what only a run knows."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left, names) + text_of(node.right, names)
    if isinstance(node, ast.Name) and node.id in names:
        return text_of(names[node.id], {})
    return ""
