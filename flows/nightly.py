"""The night: documents into the graph, then full corpora into adapters, on one device that is never shared.

The order is here, the logic in `trainyard/night`. A synchronous flow: its tasks run on its own thread, which has to
live as long as the model server and the training that it starts.
"""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.notes import MAX_REPORT_CHARS
from tasks import corpus, inference_server, knowledge_graph, publish
from trainyard.app.nights import add_checkout_root, describe_night_refusals
from trainyard.data.limited.service import keep_service
from trainyard.errors import TrainyardError
from trainyard.inherited import keep_files_private
from trainyard.night.phases import Night, begin, documents, skip_night
from trainyard.night.report import NightReport, markdown
from trainyard.night.wiring import make_night_deps
from trainyard.prefect_api.slots import night_slot
from trainyard.prefect_api.states import SKIPPED
from trainyard.settings import settings
from trainyard.spec.night import NightConfig, require_trainable

DEFAULT = NightConfig()


@flow(name="nightly", validate_parameters=True, log_prints=False)
def nightly(config: NightConfig = DEFAULT) -> State[dict[str, Any]]:
    """Run one night. Its date is that of the scheduled start, also of a late run; a date that is done is skipped.

    Waits for the device within the night's window, which begins with the waiting; after that the run fails.

    Args:
        config: Streams, budgets, buckets, and which model reads.
    """
    keep_files_private()
    tenant_settings = add_checkout_root(settings().model_copy(update={"tenant": config.tenant}))
    run = config.window.find_date(flow_run.scheduled_start_time.timestamp())
    try:
        require_trainable(config)  # a form makes the config without `read_night`
        with night_slot(tenant_settings, run=str(flow_run.id), window_s=config.window.window_s) as since:
            world = make_night_deps(
                config,
                tenant_settings,
                say=get_run_logger().info,
                locked=True,
                unfit=describe_night_refusals(config, tenant_settings),
            )
            night = begin(config, world, run, since)
            with keep_service():
                report = run_phases(night) if night else skip_night(config, run, "this night is done already")
    except TrainyardError as error:
        return Failed(message=str(error))
    return night_state(report)


def run_phases(night: Night) -> NightReport:
    """Return the two phases, one after the other, and the report."""
    first = documents(night, knowledge_graph.find, inference_server.serve, knowledge_graph.read, inference_server.free)
    second = publish.train(night, first, corpus.count(night))
    return publish.report(night, first, second)


def night_state(report: NightReport) -> State[dict[str, Any]]:
    """Return the night's state in Prefect, with its report as an artifact."""
    text = markdown(report)[:MAX_REPORT_CHARS]
    create_markdown_artifact(text, key="nightly-report", description=report.headline)
    if report.state == "failed":
        return Failed(message=report.headline)
    name = SKIPPED if report.state == "skipped" else "Completed"
    return Completed(name=name, message=report.headline, data=report.model_dump(mode="json"))
