"""Reads documents or rows into the run: files, folders, URLs, git repositories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.app.run_records import find_license
from trainyard.backends.ledger_entry import list_licences
from trainyard.data.sources import read_source
from trainyard.json_types import JsonMapping
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import DataSourceConfig
from trainyard.stores.artifacts import NodeOutput, Produced


@task(name="data_source", **NODE_TASK)
def data_source(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Read the configured sets and leave documents or normalised rows, with every refused row in quarantine."""
    return run_node(node, upstream, run, prepare, describe=describe)


def describe(context: NodeContext, output: NodeOutput, started: float, seconds: float) -> JsonMapping:
    """Return the ledger's field about the licences of what was read."""
    config = context.node.config.model_dump(mode="json")
    sources = [
        {"sha256": part.sha256, "license": find_license(config, port.value)} for port, part in output.outputs.items()
    ]
    return {"licences": list_licences(sources)}


def prepare(context: NodeContext) -> Make:
    # The tenant's own folder is one of the roots that it may read.
    settings = context.settings.for_tenant(context.run.tenant)

    def make(folder: Path) -> Produced:
        produced = read_source(context.config(DataSourceConfig), folder, settings=settings, report=context.report)
        for line in list_notes(produced.facts):
            context.say(line)
        return produced

    return make


def list_notes(facts: Mapping[str, Any]) -> list[str]:
    """Return how the files of each set were read where they left a choice, and the keys that no shape uses."""
    lines: list[str] = []
    for name, counts in facts.items():
        if isinstance(counts, Mapping):
            lines += [f"{name}: {note}" for note in dict.fromkeys(counts.get("notes", ()))]
            down = counts.get("unreachable", {})
            lines += [f"{name}: the data worker {url} did not answer ({why})" for url, why in down.items()]
            keys = ", ".join(f"{key} ({rows:,} rows)" for key, rows in counts.get("ignored_keys", {}).items())
            lines += [f"{name}: ignored keys: {keys}"] if keys else []
    return lines
