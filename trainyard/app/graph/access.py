"""The knowledge graph for requests that come at once: a file is opened by one of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from trainyard.cancellation import require_caller
from trainyard.settings import Settings
from trainyard.stores.graph.addresses import open_graph
from trainyard.stores.graph.contract import Graph
from trainyard.stores.graph.local import LadybugGraph

TURN = threading.Lock()
"""Of this process: a database belongs to the process that has opened it, and each request opens it in its own child."""


@contextmanager
def graph_in_turn(address: str, settings: Settings) -> Iterator[Graph]:
    """The graph at an address; a file after the requests of this process that came first. Raises as `open_graph`."""
    graph = open_graph(address, settings)
    with TURN if isinstance(graph, LadybugGraph) else nullcontext():
        require_caller()  # who may have left while others had their turn
        with graph:
            yield graph
