"""What is fuzzed: each target reads one input, and may raise its coded errors alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainyard.compute.events import EventTail
from trainyard.data.limited.jobs import run_request
from trainyard.data.limited.requests import SetRequest
from trainyard.data.quarantine import BadRow
from trainyard.data.readers.documents import TYPES, read_document
from trainyard.data.readers.streams import Limits
from trainyard.errors import TrainyardError
from trainyard.serve.conversion.gguf import gguf_to_peft
from trainyard.serve.protocol import (
    Alias,
    ApiError,
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    LoadAdapter,
    UnloadAdapter,
    parse,
)
from trainyard.spec.load.files import load_chain

CORPUS = Path(__file__).parent / "corpus"
HANG_S = 2.0
Run = Callable[[str, bytes], None]
MODELS: dict[str, type[ApiRequest]] = {
    "chat": ChatRequest, "completion": CompletionRequest, "load": LoadAdapter, "unload": UnloadAdapter, "alias": Alias,
}  # fmt: skip
"""First word of a seed's name -> the request that its body is."""


@dataclass(frozen=True)
class Target:
    """`run` takes the name of a seed and an input made from it."""

    run: Run
    coded: tuple[type[Exception], ...]

    def seeds(self, name: str) -> list[tuple[str, bytes]]:
        return [(path.name, path.read_bytes()) for path in sorted((CORPUS / name).iterdir())]


def read_one(name: str, data: bytes) -> None:
    """Read a file as its own reading process would: a document by its type, anything else as a set."""
    if Path(name).suffix in TYPES:
        read_document(data, name)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        limits = Limits(chunk_cpu_s=HANG_S, document_cpu_s=HANG_S)
        run_request(SetRequest(path, (path.parent,), path.parent / "out", limits=limits), lambda fraction, text: None)


def load_spec(name: str, data: bytes) -> None:
    load_chain(data)


def read_message(name: str, data: bytes) -> None:
    """A request of the model server, or a file of events."""
    kind = name.partition("-")[0]
    if kind in MODELS:
        parse(MODELS[kind], data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(data)
        assert all(isinstance(event, dict) for event in EventTail(path).read_rest())


def read_adapter_file(name: str, data: bytes) -> None:
    """An adapter of llama.cpp, for the base that the seeds were made for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter.gguf"
        path.write_bytes(data)
        base = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
        (path.parent / "config.json").write_text(json.dumps(base))
        gguf_to_peft(path, path.parent / "peft", path.parent)


TARGETS: dict[str, Target] = {
    "readers": Target(read_one, (TrainyardError, BadRow)),
    "spec": Target(load_spec, (TrainyardError,)),
    "protocol": Target(read_message, (TrainyardError, ApiError)),
    "adapters": Target(read_adapter_file, (TrainyardError,)),
}
