"""Reads documents or rows into the run: files, folders, URLs, git repositories."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, carry_out
from trainyard.data.sources import read_source
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import DataSourceConfig
from trainyard.stores.artifacts import NodeOutput, Produced


@task(name="data_source", **NODE_TASK)
def data_source(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Read what the config names and leave documents or normalised rows, with every refused row in quarantine."""
    return carry_out(node, upstream, run, prepare)


def prepare(context: NodeContext) -> Make:
    # The tenant's own folder is one of the roots that it may read.
    settings = context.settings.for_tenant(context.run.tenant)

    def make(folder: Path) -> Produced:
        return read_source(context.config(DataSourceConfig), folder, settings=settings, report=context.report)

    return make
