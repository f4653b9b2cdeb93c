"""The page of refusals, from the rows of `spec/compat`."""

from __future__ import annotations

import re

from docs.generator.codes import codes_in_sources, uses_table
from docs.generator.markdown import cell, code, page, table
from trainyard.spec.compat.table import ROWS


def refusals_page() -> str:
    parts = []
    for scope, heading in (
        ("spec", "Of a chain"),
        ("run", "Of a chain on this machine"),
        ("words", "Of words of other tools"),
    ):
        rows = {}
        for row in (one for one in ROWS if one.scope == scope):
            where = code(f"{row.on}.{row.field}".replace("*.", "").replace("{", "<").replace("}", ">"))
            rows[row.code, where, row.because, row.instead] = row
        columns = ["code", "where", "because", "instead"]
        parts += [
            f"## {heading}",
            SCOPES[scope],
            table(columns, [[code(name), cell(at), *map(braced, texts)] for name, at, *texts in sorted(rows)]),
        ]
    rest = {name: uses for name, uses in codes_in_sources().items() if name.startswith("R-")}
    rest = {name: uses for name, uses in rest.items() if name not in {row.code for row in ROWS}}
    parts += ["## In other places", "What a night, a job or a backend refuses on its own.", uses_table(rest)]
    introduction = (
        "Every `R-…` code: a combination that is refused, why, and what to write instead. `…` is a value of "
        "the config. `trainyard check`, `plan`, `run` and a job print the same row: all reasons at once, exit code 5."
    )
    return page("Refusals", introduction, parts)


SCOPES = {
    "spec": "These depend on the chain alone: it is refused on every machine.",
    "run": "These depend on the machine and its settings: `check`, `plan` and a run on the same machine agree.",
    "words": "These are words that are known and that this release does not carry out.",
}


def braced(text: str) -> str:
    """A text with its fields in braces as `…`."""
    return cell(re.sub(r"\{[^{}]*\}", "…", text.replace("{{", "{").replace("}}", "}")))
