"""What tests of whole nights share: a night in this process, and a graph that outlives its phase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tools.night_program import CONFIG, RUN, QuickServer
from trainyard.night.deps import NightDeps
from trainyard.night.phases import run_night
from trainyard.night.report import NightReport
from trainyard.spec.night import read_night
from trainyard.stores.graph.local import MemoryGraph


class Kept:
    """A graph that outlives the phase."""

    def __init__(self) -> None:
        self.graph = MemoryGraph()

    @contextmanager
    def opened(self) -> Iterator[MemoryGraph]:
        yield self.graph


def night(world: NightDeps, run: str = RUN, **more: Any) -> NightReport:
    return run_night(read_night({**CONFIG, **more}), world, run)


def names_in(graph_store: Kept) -> dict[str, list[str]]:
    """Name of an entity -> names of the documents that mention it."""
    lines = [json.loads(line) for line in graph_store.graph.dump()]
    documents = {line["key"]: line["names"] for line in lines if line["a"] == "document"}
    return {
        line["name"]: sorted(name for key in line["documents"] for name in documents[key])
        for line in lines
        if line["a"] == "entity"
    }


class NeverAsked(QuickServer):
    """A model that must not be needed."""

    def start(self) -> None:
        raise AssertionError("the model was started")
