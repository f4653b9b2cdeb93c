"""OpenLineage events of the steps of a run, to a file or a catalog: off unless the setting `openlineage` names one.

A step is a run of the job `CHAIN.NODE`; data sets and weights are named by port and digest, as in the ledger. They are
for catalogs that draw lineage; the ledger is what proves it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from trainyard.settings import Settings

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent
    from openlineage.client.transport.transport import Transport

NAMESPACE = "trainyard"
PRODUCER = "urn:trainyard"
TIMEOUT_S = 5.0
STATES = {"failed": "FAIL", "paused": "ABORT"}
"""Kind of a step -> OpenLineage's state; every other step is COMPLETE."""


@dataclass(frozen=True)
class LineageStep:
    """A step of a run that has ended."""

    key: str
    """Its key in the ledger: the same step twice is the same run of OpenLineage."""
    kind: str
    chain: str
    node: str
    tenant: str
    started: float
    ended: float
    inputs: Iterable[tuple[str, str]] = ()
    """(port, SHA-256)"""
    outputs: Mapping[str, str] = field(default_factory=dict)


def build_events(step: LineageStep) -> list[RunEvent]:
    """Return the begin and the end of a step, as OpenLineage's own classes have and validate them."""
    # An extra: 0.3 s, only where events are wanted.
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState

    run = Run(runId=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}:{step.key}")))
    job = Job(namespace=f"{NAMESPACE}.{step.tenant}", name=f"{step.chain}.{step.node}")
    state = RunState[STATES.get(step.kind, "COMPLETE")]
    moments = ((RunState.START, step.started), (state, step.ended))
    return [
        RunEvent(
            run=run, job=job, eventType=event, eventTime=datetime.fromtimestamp(seconds, UTC).isoformat(),
            producer=PRODUCER,
            inputs=[InputDataset(NAMESPACE, f"{port}:{sha256}") for port, sha256 in step.inputs],
            outputs=[OutputDataset(NAMESPACE, f"{port}:{sha256}") for port, sha256 in step.outputs.items()],
        )
        for event, seconds in moments
    ]  # fmt: skip


def open_transport(target: str) -> Transport:
    from openlineage.client.transport.file import FileConfig, FileTransport
    from openlineage.client.transport.http import HttpConfig, HttpTransport

    if target.startswith(("http://", "https://")):
        return HttpTransport(HttpConfig.from_dict({"url": target, "timeout": TIMEOUT_S}))
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    return FileTransport(FileConfig(log_file_path=target, append=True))


def hide_login(target: str) -> str:
    """Return the address of a catalog without what opens it; the path of a file as it is."""
    parts = urlsplit(target)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def emit_step(step: LineageStep, settings: Settings) -> str:
    """Send the events of a step where the settings say; return why it could not be done, else empty."""
    if not settings.openlineage:
        return ""
    try:
        transport = open_transport(settings.openlineage)
        for event in build_events(step):
            transport.emit(event)
    except ImportError as error:
        return f"No OpenLineage event was sent: {error}. Install the extra: pip install 'trainyard[openlineage]'."
    except Exception as error:  # of any client of the catalog: the step itself is done
        where = hide_login(settings.openlineage)
        return f"No OpenLineage event was sent to {where}: {type(error).__name__}."[:500]
    return ""
