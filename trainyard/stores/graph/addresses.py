"""Addresses of knowledge graphs: an address becomes a `Graph`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainyard.settings import Settings
from trainyard.stores.graph.contract import Graph
from trainyard.stores.graph.local import LadybugGraph
from trainyard.stores.graph.remote import HttpGraph, check_url


def graph_file(settings: Settings) -> Path:
    """Return the database of this home."""
    return settings.home / "graph" / "knowledge.lbug"


def open_graph(address: str, settings: Settings) -> Graph:
    """The graph at an address: empty for this home's database, `file:///path` for another file, or a server's URL.

    Nothing is started or connected before the first call. Raises `InvalidInput` (`E-GRAPH-QUERY`).
    """
    if not address:
        return LadybugGraph(graph_file(settings))
    parts = urlsplit(address)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return LadybugGraph(Path(unquote(parts.path)))
    return HttpGraph(check_url(address))
