"""The starter model, trained again from the recipe and corpus of the shipped weights."""

from __future__ import annotations

from trainyard.app.context import Context
from trainyard.app.responses import Record
from trainyard.operations.base import Nothing
from trainyard.stores.models import SHIPPED_STARTER
from trainyard.train.starter.build import build_starter, compare


def build(_: Nothing, context: Context) -> Record:
    def report(fraction: float, text: str) -> None:
        context.on_progress({"node": "starter", "event": "progress", "fraction": fraction, "text": text})

    source = build_starter(context.settings.home, report=report)
    assert source.path is not None, "a model that was built here is a folder"
    named = {"name": source.name, "path": str(source.path), "sha256": source.sha256, "parameters": source.parameters}
    return Record(record={**named, **compare(source.path, SHIPPED_STARTER)})
