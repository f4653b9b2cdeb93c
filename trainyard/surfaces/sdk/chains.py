"""Chains built in Python: nodes as objects, checked, planned and run by the same operations as a file.

    chain = Chain([DataSource(path="chats.jsonl"), Trainer(stage="sft", method="lora"), Evaluator(), Deployer()])
    chain.check().ok, chain.plan().nodes, chain.run(watch=True)

Nodes are data: a chain is written as the file that means the same (`to_yaml`), and has the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainyard.app.plan.check import FileCheck
from trainyard.app.plan.parse import parse_chain, parse_request
from trainyard.app.plan.plan import ChainPlan
from trainyard.app.run_records import RunResult
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import ChainSpec
from trainyard.surfaces.sdk.surface import Surface, here


class ChainNode:
    """A node of a chain: its type, the settings that differ from the defaults, and what it needs.

    Args:
        id: default: the type, with a number when it repeats.
        needs: nodes, or ids of nodes, before it; default: the one above.
        settings: those of the node's type, as `trainyard schema TYPE` lists them.
    """

    type = ""

    def __init__(
        self, *, id: str | None = None, needs: Iterable[ChainNode | str] | None = None, **settings: Any
    ) -> None:
        self.id, self.settings = id, settings
        self.needs = None if needs is None else tuple(needs)

    def as_mapping(self) -> JsonObject:
        """Return the node as a chain file has it."""
        node: JsonObject = {"type": self.type}
        if self.id is not None:
            node["id"] = self.id
        if self.needs is not None:
            node["needs"] = [find_id(need) for need in self.needs]
        return {**node, "config": self.settings} if self.settings else node

    def __repr__(self) -> str:
        fields = ({"id": self.id} if self.id is not None else {}) | self.settings
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"


class DataSource(ChainNode):
    """Reads rows or documents: from files, addresses, the Hub, buckets or a query."""

    type = "data_source"


class AiGenerator(ChainNode):
    """Makes rows from documents by a language model."""

    type = "ai_generator"


class Validator(ChainNode):
    """Filters, removes duplicates and rates rows."""

    type = "validator"


class Trainer(ChainNode):
    """Trains an adapter or a model."""

    type = "trainer"


class Evaluator(ChainNode):
    """Measures the trained adapter against its base, or against the live version."""

    type = "evaluator"


class Deployer(ChainNode):
    """Registers a version and switches its targets to it, if it is better."""

    type = "deployer"


def find_id(node: ChainNode | str) -> str:
    """Return the id of a node that another one needs. Raises `InvalidInput` (`E-SPEC-VALUE`) for a node without one."""
    if isinstance(node, str):
        return node
    if node.id is None:
        raise InvalidInput(
            f"{node!r} is needed by another node and has no id.", do='Give it one: id="…".', code="E-SPEC-VALUE"
        )
    return node.id


class Chain:
    """A chain: nodes in a line, or with `needs` as a DAG."""

    def __init__(
        self, nodes: Sequence[ChainNode], *, name: str = "chain", tenant: str = "", description: str = "",
        on: Surface | None = None,
    ) -> None:  # fmt: skip
        fields = {"name": name, "tenant": tenant, "description": description}
        self.definition: JsonObject = {key: value for key, value in fields.items() if value}
        self.definition["nodes"] = [node.as_mapping() for node in nodes]
        self.on = on or here

    @classmethod
    def of(cls, source: str | Path | JsonMapping, *, on: Surface | None = None, **parameters: Any) -> Chain:
        """Return the chain of a file, of a template with parameters, or of a mapping. Raises `NotFound`, `Refused`."""
        target = str(source) if isinstance(source, Path) else source
        chain = cls((), on=on)
        chain.definition = parse_request(target, parameters).spec.model_dump(mode="json", exclude_unset=True)
        return chain

    @property
    def spec(self) -> ChainSpec:
        """Return the typed chain. Raises `Refused` with every reason."""
        return parse_chain(self.definition)

    def check(self) -> FileCheck:
        """Return whether it would run, with all reasons at once."""
        (file,) = self.on.check(files=(self.definition,)).files
        return file

    def plan(self, *, measure: bool = False) -> ChainPlan:
        """Return the plan of a run: resolved config, sizes, times, reused results. Raises `Refused`."""
        return self.on.plan(target=self.definition, measure=True) if measure else self.on.plan(target=self.definition)

    def run(self, *, watch: bool = False, refresh: bool = False, tags: Iterable[str] = ()) -> RunResult:
        """Start a run; with `watch`, return when it has ended. Raises `Refused`, `Unavailable` without a server."""
        return self.on.run(target=self.definition, watch=watch, refresh=refresh, tags=tuple(tags))

    def to_yaml(self) -> str:
        """Return the chain as a file has it."""
        return yaml.safe_dump(self.definition, sort_keys=False, allow_unicode=True)

    def __repr__(self) -> str:
        return f"Chain({' → '.join(node.get('id') or node['type'] for node in self.definition['nodes'])})"

    def _repr_markdown_(self) -> str:
        """Return the chain as a Mermaid graph, which JupyterLab, VS Code and GitHub draw."""
        nodes = [
            (node.get("id") or f"{node['type']}_{index}", node) for index, node in enumerate(self.definition["nodes"])
        ]
        lines = [f"  {name}[{node.get('id') or node['type']}]" for name, node in nodes]
        for index, (name, node) in enumerate(nodes):
            before = node.get("needs", [nodes[index - 1][0]] if index else [])
            lines += [f"  {source} --> {name}" for source in before]
        return "\n".join(["```mermaid", "graph LR", *lines, "```"])
