"""Registers the adapter and serves it, if the evaluation says that it is better."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect import task
from prefect.client.schemas.objects import State

from nodes.runner import NODE_TASK, Make, NodeContext, RunInfo, Upstream, run_node
from trainyard.app.data.row_counts import describe_rows
from trainyard.app.run_records import data_sources
from trainyard.serve.deploy import deploy
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import digest
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import DeployerConfig
from trainyard.stores.artifacts import NodeOutput, Produced


@task(name="deployer", **NODE_TASK)
def deployer(node: ResolvedNode, upstream: Upstream, run: RunInfo) -> State[NodeOutput]:
    """Reserve a version, switch every target or none, ask the canary; keep the old version if it does not answer."""
    return run_node(node, upstream, run, prepare)


def prepare(context: NodeContext) -> Make:
    adapter = context.needed(Port.ADAPTER, Port.MODEL)
    report = context.first(Port.REPORT)
    sources = data_sources(context.record.folder, context.settings.artifacts)
    rows = describe_rows(context.record.folder)
    adapter = adapter.model_copy(update={"facts": {**adapter.facts, "sources": sources, "rows": rows}})
    config = context.config(DeployerConfig)
    # The same adapter deployed in the same way twice is one version, whichever run asks.
    run_key = digest({"adapter": adapter.sha256, "config": config.model_dump(mode="json")})

    def make(folder: Path) -> Produced:
        produced = deploy(
            config,
            adapter=adapter,
            report=report,
            folder=folder,
            settings=context.settings,
            tenant=context.run.tenant,
            run_key=run_key,
        )
        if message := produced.facts.get("kept"):
            context.say(f"{message}. Nothing was switched.", logging.WARNING)
        for warning in produced.facts["warnings"]:
            context.say(warning, logging.WARNING)
        return produced

    return make
