"""The page of OpenAI's request fields, and the page of automatic choices: tables of other modules, as pages."""

from __future__ import annotations

from tools.docs.markdown import code, page, table
from trainyard.backends.choices import AUTOMATIC
from trainyard.surfaces.openai.fields import TAKEN, write_fields

FIELDS = """\
Every field that the `openai` package sends to these paths, and the values that are accepted. A field with another value
is refused by its name, never ignored. Null means that a field is not sent ([OpenAI clients](../openai.md))."""
CHOICES = """\
What a spec leaves open, the setting that decides it instead, and the facts from which it follows: never a clock, nor
the memory that is free at the moment ([training](../training.md#automatic-choices))."""


def openai_page() -> str:
    return page("OpenAI fields", FIELDS, ["\n".join(write_fields(path)) for path in TAKEN])


def choices_page() -> str:
    rows = [[row.name, code(row.setting) if row.setting else "", ", ".join(row.decided_by)] for row in AUTOMATIC]
    return page("Automatic choices", CHOICES, [table(["choice", "setting", "decided by"], rows)])
