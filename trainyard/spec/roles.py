"""The role that an adapter gets where none is given: named after its data, so that unrelated chains have their own.

    handbook/, handbook.pdf, https://example.org/handbook.html  → handbook
    ../Bike Desk (2026).jsonl                                   → bike-desk-2026
    acme/support-chats of the Hub                               → support-chats

A template other than `qa-pipeline` and `code-tuning` adds its own word, because it makes another adapter of the same
data: `handbook-rag`, `chats-aligned`. A role that is given always wins.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainyard.spec.axes.axis import Strict
from trainyard.spec.nodes import DataSourceConfig, SourceSet

DEFAULT_ROLE = "assistant"
"""Of data without a name, such as a query or the current folder."""
LONGEST = 63
"""Characters of a role."""
MEANINGLESS = frozenset({"", "data", "docs", "train", "dataset", "rows"})
"""Names of files that say less than the folder that contains them."""
GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


def role_of_place(address: str, *, word: str = "", default: str = DEFAULT_ROLE) -> str:
    """Return the role for a file, folder, address or name on the Hub; `default` where it has no usable name.

    `word` is what a template adds.
    """
    path = re.split(r"[?#]", address, maxsplit=1)[0]
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
    names = [role_of_name(part.rpartition("@")[0] or part) for part in reversed(parts)]
    named = next((name for name in names if name not in MEANINGLESS), names[0] if names else "")
    return "-".join(filter(None, [(named or default)[: LONGEST - len(word) - 1].strip("-"), word]))


def name_current_folder(parameters: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Return a template's parameters with `.` written as `../NAME` of the folder, so that its data have a name."""
    if not role_of_name(folder.name):
        return dict(parameters)
    return {
        key: f"../{folder.name}" if isinstance(value, str | Path) and str(value) in (".", "./") else value
        for key, value in parameters.items()
    }


def role_of_name(name: str) -> str:
    """Return a name in small letters, digits and hyphens, without what follows its first inner dot."""
    stem = name.lstrip(".").split(".")[0].lower().translate(GERMAN)
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


def role_of_set(source: SourceSet) -> str:
    """Return the role for a set; the default one for a query."""
    hub = source.hub.name if source.hub is not None else None
    return role_of_place(source.path or source.url or source.repository or hub or "")


def role_of_chain(configs: Iterable[Strict]) -> str:
    """Return the role for a chain: that of the first set of its first data source."""
    sources = (config for config in configs if isinstance(config, DataSourceConfig))
    first = next(sources, None)
    return DEFAULT_ROLE if first is None else role_of_set(first.trained_sets()[0][2])
