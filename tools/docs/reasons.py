"""The page of reasons for rows that are not taken, from `reasons.txt`: node, reasons and meaning."""

from __future__ import annotations

from pathlib import Path

from tools.docs.markdown import listed, page, table

FILE = Path(__file__).with_name("reasons.txt")
INTRODUCTION = """\
The reasons by which reports and quarantine files count rows: `report.json` of a
[data source](../data-sources.md#bad-rows) and a [validator](../validation.md#the-report), `accounting.json` of a
[generator](../generation.md), and the token ledger and counts of a [trainer](../training.md#token-ledger)."""


def read_reasons() -> list[tuple[str, list[str], str]]:
    """Return (node, reasons, meaning) of each line."""
    lines = (line.split(" | ") for line in FILE.read_text(encoding="utf-8").splitlines())
    return [(node, reasons.split(", "), meaning) for node, reasons, meaning in lines]


def reasons_page() -> str:
    rows = read_reasons()
    parts = [
        f"## {node}\n\n"
        + table(["reason", "the row"], [[listed(reasons), meaning] for name, reasons, meaning in rows if name == node])
        for node in dict.fromkeys(node for node, _, _ in rows)
    ]
    return page("Reasons for rows that are not taken", INTRODUCTION, parts)
