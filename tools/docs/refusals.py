"""The page of refusals: under each code the rows of `spec/compat`, then what other modules refuse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter

from tools.docs.codes import PUT_TOGETHER, Use, codes_in_sources
from tools.docs.markdown import cell, code, page, table
from trainyard.spec.compat.context import Row
from trainyard.spec.compat.table import ROWS

INTRODUCTION = """\
Every `R-…` code: a combination that is refused, why, and what to write instead. The rows of one subject share a code;
`row` in the output of `trainyard check --json` is the name of one. `<…>` is a value of the chain, `…` one of a run.

A row of scope *chain* refuses on every machine. One of scope *machine* depends on the machine and its settings too:
`check`, `plan` and a run on the same machine agree. One of scope *session* refuses a step session. All of them print
the same line, all reasons at once, and exit with code 5."""
SCOPES = {"spec": "chain", "words": "chain", "run": "machine", "session": "session"}
WORDS = {
    "backend-setting": {"instead": "a value that the backend supports, or a backend that supports this one"},
    "launch-shard": {"do": "a shard_size that divides the processes, or an even number of processes, 4 or more"},
    "path-root": {
        "because": "The path leads out of the data roots, or cannot be followed",
        "instead": "Use a path inside of a data root, or let the operator add its folder to `data_roots`",
    },
}
"""Row -> words in place of a field, where the field is most of a text."""


def refusals_page() -> str:
    by_code = attrgetter("code")
    rows = {name: list(group) for name, group in groupby(sorted(ROWS, key=attrgetter("code", "name")), by_code)}
    raised = {name: other_uses(uses) for name, uses in codes_in_sources().items() if name.startswith("R-")}
    parts = []
    for name in sorted(rows.keys() | raised.keys()):
        parts.append(f"## {name}")
        parts += [PUT_TOGETHER[name]] if name in PUT_TOGETHER else []
        parts += [rows_table(rows[name])] if name in rows else []
        parts += [raised_table(raised[name])] if raised.get(name) else []
    return page("Refusals", INTRODUCTION, parts)


def other_uses(uses: list[Use]) -> list[Use]:
    """The places outside of the table that say in words what they refuse, each text once."""
    elsewhere = [use for use in uses if not use.module.startswith("spec.compat.")]
    return list({use.cause: use for use in elsewhere if len(re.findall(r"\w\w+", use.cause)) > 2}.values())


def rows_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        texts = [in_words(text, WORDS.get(row.name, {})) for text in (row.because, row.instead)]
        lines.append([code(row.name), SCOPES[row.scope], code(where(row)), *map(cell, texts)])
    return table(["row", "scope", "where", "because", "instead"], lines)


def raised_table(uses: list[Use]) -> str:
    lines = [[code(use.module), cell(use.cause), cell(use.do)] for use in uses]
    return table(["refused in", "because", "instead"], lines)


def where(row: Row) -> str:
    return in_words(f"{row.on}.{row.field}".removeprefix("*."), {})


def in_words(text: str, labels: Mapping[str, str]) -> str:
    """A text with its fields as words, or as their names: `{config.lora.rank!r}` as `<rank>`."""
    fields = re.compile(r"(?<!\{)\{([\w.]+)(?:![rs])?\}")
    named = fields.sub(lambda match: labels.get(match[1], f"<{shown_name(match[1])}>"), text)
    return named.replace("><", "> <").replace("{{", "{").replace("}}", "}")


def shown_name(field: str) -> str:
    return (field.rpartition(".")[2] if field.startswith("config.") else field).replace("_", " ")
