"""A model server over the tiny model with a chat template of a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastapi.testclient import TestClient

from trainyard.serve.answers import Answers
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.served import ServedBase, ServedModels
from trainyard.serve.server import build_app
from trainyard.stores.models import ModelSource


@contextmanager
def serve_template(model: Path, folder: Path, name: str, template: str) -> Iterator[TestClient]:
    """Serve a copy of a model in `folder` under a name."""
    shutil.copytree(model, folder)
    engine, worker = ModelRunner(folder), Worker()
    engine.tokenizer.chat_template = template
    served = ServedModels([ServedBase(ModelSource(name, folder, "0" * 64), engine, worker)], [])
    app = build_app(served, Answers(served, max_tokens=100), token=None, hosts=["testserver"])
    with TestClient(app) as client:
        yield client
    worker.stop()
