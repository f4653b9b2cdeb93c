"""The commands that come after a job, with its real names: what a terminal prints, and a job page shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from trainyard.app.run_records import NodeResult, RunResult
from trainyard.json_types import JsonMapping
from trainyard.spec.axes.data import Port
from trainyard.spec.states import JobState
from trainyard.stores.artifacts import Reference

DEFAULT_ROLE = "assistant"
UNNAMED = "training-job"
"""Name of a chain without one."""


def next_commands(result: RunResult, folder: Path, known_as: str = "") -> tuple[str, ...]:
    """Return what a person may do next with a run whose folder this is: use its result, or find out why there is none.

    `known_as` names the run in them. Empty for a run that trains nothing.
    """
    name, outputs = shlex.quote(known_as or result.name), list_trained(result.nodes, folder)
    trained = [(name if len(outputs) == 1 else f"{name}/{node}", reference) for node, reference in outputs]
    if result.state is JobState.PAUSED:
        return (f"trainyard jobs resume {name}",)
    if result.state in (JobState.FAILED, JobState.CANCELED):
        useful = [
            command for label, reference in trained for command in use_result(label, reference, result, folder)[:1]
        ]
        return (f"trainyard jobs logs {name}", f"trainyard jobs resume {name}", *useful)
    if result.state is not JobState.COMPLETED:
        return (f"trainyard jobs logs {name} --follow", f"trainyard jobs show {name}") if result.id else ()
    if live := next((node.facts.get("alias") for node in result.nodes if node.facts.get("deployed")), None):
        return (f"trainyard chat {live}", f"trainyard adapters card {live}", f"trainyard evaluations show {name}")
    commands = [command for label, reference in trained for command in use_result(label, reference, result, folder)]
    evaluated = any(Port.REPORT in node.outputs for node in result.nodes)
    return (*commands, *([f"trainyard evaluations show {name}"] if evaluated else []))


def use_result(label: str, reference: Reference, result: RunResult, folder: Path) -> list[str]:
    """Commands that use what a trainer has made; `label` names it. The role is that of the chain's deployer, which a
    gate has stopped, else the name of the chain.
    """
    if reference.kind is Port.MODEL:
        return [f"trainyard serve {label}"]
    roles = [(node.get("config") or {}).get("role") for node in read_nodes(folder).values()]
    named = result.chain if result.chain and result.chain != UNNAMED else DEFAULT_ROLE
    role = next(filter(None, reversed(roles)), named)
    return [
        f"trainyard chat {label}",
        f"trainyard serve {label}",
        f"trainyard adapters register {label} --role {role} --promote",
        f"trainyard adapters convert {label} {role}.gguf --to gguf",
        f"trainyard adapters merge {label} {role}-merged",
    ]


def list_trained(nodes: Sequence[NodeResult], folder: Path) -> list[tuple[str, Reference]]:
    """Return the results of the last trainers of a run, by their ids.

    Controls, and trainers that another one continues, are left out.
    """
    chain = read_nodes(folder)
    references = {
        node.id: reference
        for node in nodes
        for port, reference in node.outputs.items()
        if node.type == "trainer" and port in (Port.ADAPTER, Port.MODEL)
    }
    names = [name for name in references if not (chain.get(name, {}).get("config") or {}).get("control")]
    continued = {before for name in names for before in list_ancestors(name, chain)}
    return [(name, references[name]) for name in names if name not in continued]


def read_nodes(folder: Path) -> Mapping[str, JsonMapping]:
    """Return the nodes of a run's chain by their ids; empty where it cannot be read."""
    try:
        nodes = orjson.loads((folder / "chain.json").read_bytes())["nodes"]
        return {str(node["id"]): node for node in nodes}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def list_ancestors(node: str, nodes: Mapping[str, JsonMapping]) -> set[str]:
    """Return the ids of the nodes before a node, at any distance."""
    ancestors: set[str] = set()
    waiting = list(nodes.get(node, {}).get("needs") or ())
    while waiting:
        name = waiting.pop()
        if name not in ancestors:
            ancestors.add(name)
            waiting += nodes.get(name, {}).get("needs") or ()
    return ancestors
