"""Artifacts of a run in Prefect's pages: tags, dashboard page, plan, progress bar, report."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    acreate_link_artifact,
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from trainyard.app.run_records import NodeResult, NodeState, RunResult
from trainyard.app.training_logs import draw_run
from trainyard.compute.events import EventTail
from trainyard.compute.services import find_service, record_path
from trainyard.evals import report
from trainyard.evals.curves import CURVES_FILE
from trainyard.settings import settings
from trainyard.spec.axes.data import Port
from trainyard.spec.graph import ResolvedChain
from trainyard.stores.live.job_ids import JOB_TAG, TENANT_TAG, job_tags, name_run

MAX_REPORT_CHARS = 400_000
"""An artifact is one JSON value in the server's database; a longer report stays a file."""


async def tag_job(spec: Any) -> None:
    """Tag the run of a chain with a trainer as a job, so that `jobs list` has it also if the chain is refused.

    Runs of Trainyard's operations and of the templates' deployments have the tag from their creation on.
    """
    if JOB_TAG in flow_run.tags or not has_trainer(spec):
        return
    async with get_client() as client:
        await client.update_flow_run(UUID(flow_run.id), tags=sorted(job_tags(flow_run.id, flow_run.tags)))


def has_trainer(spec: Any) -> bool:
    """Return whether a chain has a trainer, also one that is not valid."""
    nodes = spec.get("nodes") if isinstance(spec, Mapping) else getattr(spec, "nodes", ())
    items = nodes if isinstance(nodes, list | tuple) else ()
    return "trainer" in [node.get("type") if isinstance(node, Mapping) else getattr(node, "type", "") for node in items]


async def announce(chain: ResolvedChain) -> None:
    """Tag the run, write its plan and the link to its page, while the first nodes are running already."""
    async with get_client() as client:
        tags = {tag for tag in flow_run.tags if not tag.startswith(TENANT_TAG)}
        tags |= {f"chain:{chain.name}", f"{TENANT_TAG}{chain.tenant}"}
        if any(node.type == "trainer" for node in chain.nodes):
            tags = job_tags(flow_run.id, tags)
        await client.update_flow_run(UUID(flow_run.id), tags=sorted(tags))
    await acreate_table_artifact(plan_rows(chain), key=f"{chain.name}-plan", description=f"Plan of {flow_run.name}")
    if (service := find_service(record_path(settings(), "api"))) is not None:
        link = f"{service.url}/dashboard/jobs/{name_run(flow_run.id, tags)}"
        await acreate_link_artifact(
            link, link_text=f"{flow_run.name} in the dashboard", key=f"{chain.name}-dashboard",
            description="Curves, log, nodes and results of the run.",
        )  # fmt: skip


def plan_rows(chain: ResolvedChain) -> list[dict[str, str]]:
    """Return one row per node, in the order in which they may start."""
    by_id = {node.id: node for node in chain.nodes}
    return [
        {
            "node": node_id,
            "type": by_id[node_id].type,
            "after": ", ".join(by_id[node_id].needs),
            "takes": ", ".join(port.value for port in by_id[node_id].inputs),
            "gives": ", ".join(port.value for port in by_id[node_id].produces),
        }
        for node_id in chain.order
    ]


@dataclass
class RunProgress:
    """The run's progress bar: the mean of its nodes, read from the run's own events."""

    chain: ResolvedChain
    events: EventTail
    fractions: dict[str, float] = field(default_factory=dict)
    now: str = ""
    artifact: UUID | None = None

    def percent(self) -> float:
        for event in self.events.read_all():
            if event["event"] == "progress":
                self.fractions[event["node"]] = event["fraction"]
                self.now = f"{event['node']}: {event['text']}"
            elif event["event"] in ("finished", "reused", "failed", "skipped", "stopped"):
                self.fractions[event["node"]] = 1.0
        return round(100 * sum(self.fractions.values()) / len(self.chain.nodes), 1)

    async def show(self, text: str = "") -> None:
        percent = self.percent()
        description = text or self.now or "starting"
        if self.artifact is None:
            key = f"{self.chain.name}-progress"
            self.artifact = await acreate_progress_artifact(percent, key=key, description=description)
        else:
            await aupdate_progress_artifact(self.artifact, percent, description=description)


async def publish_report(result: RunResult, folder: Path) -> None:
    page = markdown(result, folder)
    await acreate_markdown_artifact(page, key=f"{result.chain}-report", description=result.message)


def markdown(result: RunResult, folder: Path) -> str:
    """Return the run in a page: its nodes as a table, its training curves, then the evaluator's own report.

    `folder` is the run's; the picture stays there as `curves.svg`. In the page it is a data address, because the
    pages of Prefect show no files of this machine.
    """
    lines = [f"# {result.name}", "", result.message, "", "| node | state | seconds | result |", "|---|---|---|---|"]
    lines += [f"| {n.id} | {n.state.value} | {n.seconds:.1f} | {cell(n)} |" for n in result.nodes]
    lines += ["", f"Cost: {result.cost.text}"] if result.cost is not None else []
    picture = draw_run(folder)
    if picture:
        (folder / CURVES_FILE).write_text(picture, encoding="utf-8")
        lines += ["", f"![Training curves]({data_address(picture)})"]
    return ("\n".join(lines) + "\n" + evaluator_reports(result.nodes))[:MAX_REPORT_CHARS]


def data_address(picture: str) -> str:
    """Return an SVG as an address that contains it."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.encode()).decode()


def cell(node: NodeResult) -> str:
    """Return one table cell: the node's outputs, or the reason of its failure."""
    return "<br>".join(map(report.cell, node.message.splitlines()))


def evaluator_reports(nodes: Sequence[NodeResult]) -> str:
    texts = []
    for node in nodes:
        report = node.outputs.get(Port.REPORT)
        if report is not None and node.state is not NodeState.FAILED and (report.path / "report.md").is_file():
            text, picture = ((report.path / name).read_text(encoding="utf-8") for name in ("report.md", CURVES_FILE))
            texts.append(text.replace(f"({CURVES_FILE})", f"({data_address(picture)})"))
    return "\n\n".join(["", *texts])
