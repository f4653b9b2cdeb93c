"""Word lists of the questions (`lexicon.json`): what words mean, where their tags do not say it."""

from __future__ import annotations

import json
from pathlib import Path

LEXICON: dict[str, str] = json.loads(Path(__file__).with_name("lexicon.json").read_text(encoding="utf-8"))


def word_set(name: str) -> frozenset[str]:
    """Return the words of a list."""
    return frozenset(LEXICON[name].split())
