"""Word lists of the questions (`lexicon.json`), and the forms of English verbs."""

from __future__ import annotations

import json
import re
from pathlib import Path

LEXICON: dict[str, str] = json.loads(Path(__file__).with_name("lexicon.json").read_text(encoding="utf-8"))


def word_set(name: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(LEXICON[name].split())


BASE = word_set("en_verbs")
IRREGULAR = dict(entry.split(":") for entry in LEXICON["en_irregular"].split())
PARTICIPLES = word_set("en_participles")


def third_forms() -> dict[str, str]:
    """Return "does" -> "do" for every verb."""
    forms = {}
    for verb in BASE:
        if re.search(r"(?:s|x|z|ch|sh|o)$", verb):
            forms[f"{verb}es"] = verb
        elif re.search(r"[^aeiou]y$", verb):
            forms[f"{verb[:-1]}ies"] = verb
        else:
            forms[f"{verb}s"] = verb
    return forms | {"has": "have"}


THIRD = third_forms()
PAST = {
    (f"{verb}d" if verb.endswith("e") else f"{verb[:-1]}ied" if re.search(r"[^aeiou]y$", verb) else f"{verb}ed"): verb
    for verb in BASE
} | IRREGULAR
DOUBLING = re.compile(r"[a-z]?[^aeiou][aeiou][bdgmnprt]|\w+(?:[mf]it|fer)")
"""Verbs that double their last letter: "scan", "stop", "submit"."""


def gerund(verb: str) -> str:
    """Return "using" for "use"."""
    if DOUBLING.fullmatch(verb):
        return f"{verb}{verb[-1]}ing"
    return f"{verb[:-1]}ing" if re.search(r"[^eo]e$", verb) else f"{verb}ing"


GERUNDS = {gerund(verb): verb for verb in BASE} | {
    "running": "run",
    "getting": "get",
    "setting": "set",
    "putting": "put",
    "stopping": "stop",
}
