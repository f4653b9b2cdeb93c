"""The page of imported keys: what a chain makes of each key of another tool."""

from __future__ import annotations

from docs.generator.markdown import cell, code, page, table
from trainyard.spec.imports.conversion import ConfigTool
from trainyard.spec.imports.defaults import Absent
from trainyard.spec.imports.keys import Config, KeyAnswer, KeyConverter, describe
from trainyard.spec.imports.tools import TOOLS


def imports_page() -> str:
    parts = [
        part
        for word, tool in TOOLS.items()
        for part in (f"## {tool.title}", counted(word, tool), keys_table(tool), LEFT_OUT, defaults_table(tool))
    ]
    introduction = (
        "What [`trainyard import`](../import.md) makes of each key, by the example in the second column; another value "
        "may have another answer. `mapped`: the chain says it too. `noted`: it does not need it, or says it with a "
        "difference. `refused`: without it something else would be trained."
    )
    return page("Imported keys", introduction, parts)


LEFT_OUT = (
    "Keys that a config leaves out, and what the chain has then. *computed* depends on the rest of the config; "
    "*refused* has to be written."
)


def defaults_table(tool: ConfigTool) -> str:
    return table(
        ["key", "here", "value"], [[code(row.key), code(row.setting), default_text(row)] for row in tool.defaults]
    )


def default_text(row: Absent) -> str:
    if isinstance(row.value, KeyAnswer):
        return cell(f"refused: {row.value.because} {row.value.do}")
    return "computed" if callable(row.value) else cell(code(describe(row.value)))


def counted(word: str, tool: ConfigTool) -> str:
    return f"`--from {word}`: {len(tool.keys)} keys; `group.*` means the other keys of a group."


def keys_table(tool: ConfigTool) -> str:
    rows = [key_row(key, *tool.keys[key]) for key in sorted(tool.keys)]
    return table(["key", "example", "here", "why"], rows)


def key_row(key: str, converter: KeyConverter, example: object) -> list[str]:
    answer = converter.convert(example, Config({}))
    settings = ", ".join(code(f"{name}: {value}") for name, value in answer.settings.items())
    return [code(key), cell(code(describe(example))), settings or answer.status.value, cell(answer.because)]
