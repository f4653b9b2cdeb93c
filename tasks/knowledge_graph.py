"""Phase 1 of a night as Prefect shows it: documents into the graph."""

from __future__ import annotations

from collections import deque

from prefect import task

from tasks.inference_server import STEP
from trainyard.night.phases import Night, extract, look
from trainyard.night.report import Phase1Report
from trainyard.night.streams import StreamDocument


@task(name="find-documents", **STEP)
def find(night: Night) -> tuple[Phase1Report, list[StreamDocument]]:
    """Return the documents whose present content is not in the graph."""
    return look(night)


@task(name="read-documents", **STEP)
def read(night: Night, report: Phase1Report, waiting: deque[StreamDocument]) -> Phase1Report:
    """Ask the model about each while the budget lasts; graph first, ledger second."""
    return extract(night, report, waiting)
