"""A trainer of a chain as a config of another tool."""

from __future__ import annotations

from pathlib import Path

import yaml

from trainyard.app.chains.eject import trainer_of
from trainyard.app.chains.imports import write_new
from trainyard.app.context import Context
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.responses import Response
from trainyard.errors import InvalidInput
from trainyard.operations.chains import ExportConfigInput
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.exporters import EXPORTERS, export_trainer
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig


class ExportOutput(Response):
    text: str
    out: Path | None = None
    notes: tuple[str, ...] = ()


def export_chain(request: ExportConfigInput, context: Context) -> ExportOutput:
    """Write a trainer as a config.

    Raises `NotFound` (`E-NODE`), `Refused` (`E-EXPORT`) for a stage or method that the tool does not have, `Conflict`
    (`E-FILE-EXISTS`).
    """
    chain = resolve_chain(parse_request(request.target).spec, context.settings)
    node = trainer_of(chain, request.node)
    config = node.config
    if not isinstance(config, TrainerConfig):
        raise InvalidInput(f"{node.id} is not a trainer.", code="E-NODE")
    export = export_trainer(config, source_of(node, chain), request.to)
    for note in export.notes:
        context.say(note)
    head = [f"A config of {EXPORTERS[request.to].title}, from {node.id} of the chain {chain.name}.", *export.notes]
    comments = "".join(f"# {' '.join(line.split())}\n" for line in head)
    text = comments + yaml.safe_dump(export.value, sort_keys=False, allow_unicode=True)
    if request.out is not None:
        write_new(request.out, text)
    return ExportOutput(text=text, out=request.out, notes=export.notes)


def source_of(node: ResolvedNode, chain: ResolvedChain) -> DataSourceConfig | None:
    """Return the data source that a trainer reads directly; None where other nodes make its rows."""
    sources = [chain.node(source.node_id) for port_sources in node.inputs.values() for source in port_sources]
    configs = [source.config for source in sources if isinstance(source.config, DataSourceConfig)]
    return configs[0] if configs else None
