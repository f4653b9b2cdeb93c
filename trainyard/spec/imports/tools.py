"""The tools whose configs are read, and which of them a config belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.errors import InvalidInput
from trainyard.spec.imports import axolotl, llamafactory, oumi, torchtune, trl, unsloth
from trainyard.spec.imports.conversion import ConfigTool, find_row
from trainyard.spec.imports.keys import occurrences

TOOLS: Mapping[str, ConfigTool] = {
    "axolotl": axolotl.TOOL,
    "llamafactory": llamafactory.TOOL,
    "trl": trl.TOOL,
    "unsloth": unsloth.TOOL,
    "oumi": oumi.TOOL,
    "torchtune": torchtune.TOOL,
}


LEAST_SHARE = 0.5
"""Of a config's keys, those that a tool has to have."""


def find_tool(value: object, tool: str | None = None) -> tuple[str, ConfigTool]:
    """Return the tool that is named, or else the one that has most of the config's keys and the most marks among them.

    Raises `InvalidInput` (`E-IMPORT-TOOL`) if it is none's, or two tools' alike.
    """
    names = [tool] if tool is not None else list(TOOLS)
    counts = {
        word: count_marks(value, TOOLS[word])
        for word in names
        if measure_share(value, TOOLS[word]) >= LEAST_SHARE and (tool or count_marks(value, TOOLS[word]))
    }
    if not counts:
        raise unknown_config(value, names)
    most = max(counts.values())
    nearest = [word for word, count in counts.items() if count == most]
    if len(nearest) > 1:
        titles = " and ".join(TOOLS[word].title for word in nearest)
        raise InvalidInput(
            f"This may be a config of {titles}.", why="Its keys are both tools'.",
            do=f"Say which: {' or '.join(f'--from {word}' for word in nearest)}.", code="E-IMPORT-TOOL",
        )  # fmt: skip
    return nearest[0], TOOLS[nearest[0]]


def unknown_config(value: object, candidates: Sequence[str]) -> InvalidInput:
    """Return the error of a config that is none of some tools', with the nearest of them and the keys that it has."""
    keys = list_keys(value)
    word = max(candidates, key=lambda name: (measure_share(value, TOOLS[name]), count_marks(value, TOOLS[name])))
    shared = [key for key in keys if find_row(key, TOOLS[word].keys)]
    shared_keys = f": {', '.join(shared[:6])}" if shared else ""
    names = ", ".join(tool.title for tool in TOOLS.values())
    subject, nearest = ("a tool that is known", ", the nearest,") if len(candidates) > 1 else (TOOLS[word].title, "")
    return InvalidInput(
        f"This is not a config of {subject}.",
        why=f"Of its {len(keys)} keys {TOOLS[word].title}{nearest} has {len(shared)}{shared_keys}. "
        f"Read are configs of {names}.",
        do="Name the file of a training, or its tool by --from.", code="E-IMPORT-TOOL",
    )  # fmt: skip


def list_keys(value: object) -> list[str]:
    """Return the keys of a config, each once; none of what is not a mapping."""
    return (
        list(dict.fromkeys(occurrence.key for occurrence in occurrences(value)))
        if isinstance(value, Mapping) and value
        else []
    )


def measure_share(value: object, tool: ConfigTool) -> float:
    """Return which share of a config's keys a tool has."""
    keys = list_keys(value)
    return sum(find_row(key, tool.keys) is not None for key in keys) / max(len(keys), 1)


def count_marks(value: object, tool: ConfigTool) -> int:
    keys = list_keys(value)
    return sum(any(matches(mark, key) for key in keys) for mark in tool.marks)


def matches(mark: str, key: str) -> bool:
    """Return whether a key is the mark, is below it, or begins as a mark with a star does."""
    return key.startswith(mark[:-1]) if mark.endswith("*") else key == mark or key.startswith((f"{mark}.", f"{mark}["))
