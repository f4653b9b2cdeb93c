"""Adapter versions and models as text."""

from __future__ import annotations

import json
from typing import Any

from trainyard.api.terminal.tables import table
from trainyard.api.terminal.text import next_lines


def adapters_text(result: Any) -> str:
    if not result.rows:
        return "no adapters yet"
    header = list(result.rows[0])
    return table([[str(row[key]) for key in header] for row in result.rows], header)


def registered_text(result: Any) -> str:
    verdict = {True: "better", False: "not better", None: "not evaluated"}[result.better]
    state = "live" if result.live else "registered, not live"
    lines = [f"{result.version} is {state}: the adapter of {result.job}, {verdict}{run_line(result)}"]
    lines += [f"  {one['type']}{' at ' + one['url'] if one['url'] else ''}" for one in result.targets]
    lines += [f"warning: {one}" for one in result.warnings]
    return "\n".join([*lines, *next_lines(result.next)])


def converted_text(result: Any) -> str:
    return f"{result.target} ({result.to}, was {result.was})" + run_line(result)


def run_line(result: Any) -> str:
    """A line of its own where an adapter was not run on its base here."""
    if result.adapter_run is False:
        return f"\nnot run on its base here, files and shapes compared alone: {result.adapter_run_because}"
    return ""


def record_text(result: Any) -> str:
    return json.dumps(result.record, indent=2, default=str)


def promotion_text(result: Any) -> str:
    if not result.changed:
        return f"{result.version} is live already; nothing was changed"
    lines = [f"{result.version} is live (before: {result.previous or 'nothing'})"]
    lines += [
        f"  {one['type']}{' at ' + one['url'] if one['url'] else ''}{merged_words(one.get('merged'))}"
        for one in result.targets
    ]
    return "\n".join([*lines, *(f"warning: {one}" for one in result.warnings)])


def merged_words(one: dict[str, Any] | None) -> str:
    """Where the merged model of a target is, and how far its logits are from base plus adapter."""
    if one is None:
        return ""
    return f": {one['format']} in {one['path']}, largest difference of a logit {one['divergence']:.3g}"


def deleted_text(result: Any) -> str:
    return f"{result.version} was deleted at {result.deleted}: {result.files} files, {result.bytes:,} bytes"


def card_text(result: Any) -> str:
    return f"{result.path}: the card of {result.name}" if result.path else str(result.markdown)


def published_text(result: Any) -> str:
    done = "is published at" if result.changed else "was published before, nothing is new at"
    live = "; it is the live one there" if result.live else ""
    return f"{result.version} {done} {result.where} ({result.revision[:12]}){live}" + run_line(result)


def pulled_text(result: Any) -> str:
    return (
        f"{result.version} is registered, from {result.source} (base: {result.base_model}){run_line(result)}\n"
        f"make it live: trainyard adapters promote {result.version} --target embedded"
    )


def merged_text(result: Any) -> str:
    return (
        f"{result.target}: {result.version} as one model ({result.format}, {result.dtype})\n"
        f"largest difference of a logit from base plus adapter: {result.divergence:.3g} after the sum, "
        f"{result.saved_divergence:.3g} as written"
    )
