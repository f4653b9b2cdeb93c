"""How the rows of a run were made: read, generated, filtered, held out and checked for contamination, as counts.

Counts and settings; no row, no prompt and no message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.app.run_records import read_events
from trainyard.json_types import JsonMapping, JsonObject

CHAIN_FILE = "chain.json"
ENDED = ("finished", "reused")
MADE = ("data_source", "ai_generator", "validator")
FILTERS = ("min_tokens", "max_tokens", "too_long", "exact_duplicates", "near_duplicates", "grounding")
"""Fields of a validator's config that say what it drops."""


def read_nodes(folder: Path) -> dict[str, JsonObject]:
    """Return the nodes of a run's resolved chain by their ids."""
    path = folder / CHAIN_FILE
    nodes = json.loads(path.read_bytes())["nodes"] if path.is_file() else []
    return {str(node["id"]): node for node in nodes}


def list_balances(folder: Path) -> Iterator[JsonObject]:
    """Yield for each node and port of a run what it read and kept, and where the rest is."""
    nodes = read_nodes(folder)
    for event in read_events(folder):
        node = nodes.get(str(event["node"]), {})
        if event["event"] not in ENDED or node.get("type") not in MADE:
            continue
        facts = event.get("facts") or {}
        if node["type"] == "ai_generator":
            for port, kept in (event.get("rows") or {}).items():
                yield {
                    "node": event["node"], "type": node["type"], "port": port, "read": facts.get("asked"), "kept": kept,
                    "held_out": {}, "dropped": count_reasons(facts.get("rejected")), "sensitive": {},
                }  # fmt: skip
            continue
        for port, part in facts.items():
            if isinstance(part, Mapping) and "read" in part:
                yield {
                    "node": event["node"], "type": node["type"], "port": port, "read": part["read"],
                    "kept": part.get("kept"), "held_out": count_reasons(part.get("heldout")),
                    "dropped": count_reasons(part.get("dropped")), "sensitive": count_sensitive(part.get("sensitive")),
                }  # fmt: skip


def count_reasons(counts: object) -> dict[str, int]:
    """Return reason -> rows, without those of no row. The reasons are Trainyard's own words."""
    if isinstance(counts, int):
        return {"rejected": counts} if counts else {}
    pairs = counts.items() if isinstance(counts, Mapping) else ()
    return {str(name).replace("_", " "): count for name, count in pairs if isinstance(count, int) and count}


def count_sensitive(matches: object) -> dict[str, int]:
    pairs = matches.items() if isinstance(matches, Mapping) else ()
    return {str(name).replace("_", " "): int(match["found"]) for name, match in pairs if match.get("found")}


def describe_rows(folder: Path) -> JsonObject:
    """Return what a data card says of the rows of a run: balances, generators, filters and decontamination."""
    nodes = read_nodes(folder)
    balances = list(list_balances(folder))
    generators = [describe_generator(node) for node in nodes.values() if node["type"] == "ai_generator"]
    made = sum(line["kept"] or 0 for line in balances if line["type"] == "ai_generator")
    read = sum(line["kept"] or 0 for line in balances if line["type"] == "data_source" and line["port"] != "documents")
    return {
        "balances": balances,
        "generators": generators,
        "synthetic_share": round(made / (made + read), 4) if made + read else None,
        "filters": [describe_filters(node) for node in nodes.values() if node["type"] == "validator"],
    }


def describe_generator(node: JsonMapping) -> JsonObject:
    config = node.get("config") or {}
    names = ("engine", "model", "template", "count", "wordings", "temperature", "seed")
    return {"node": node["id"], **{name: config[name] for name in names if config.get(name) is not None}}


def describe_filters(node: JsonMapping) -> JsonObject:
    """Return what a validator drops, and against what it decontaminates."""
    config = node.get("config") or {}
    return {
        "node": node["id"],
        **{name: config[name] for name in FILTERS if config.get(name) not in (None, False)},
        "decontaminate_words": config.get("decontaminate") or 0,
        "evaluation_sets": len(config.get("evaluation_sets") or ()),
    }
