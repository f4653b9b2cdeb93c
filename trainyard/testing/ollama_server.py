"""A double of ollama's HTTP API: real sockets, real status codes and texts, no model.

Built from its documented API (docs/api.md: create, blobs, copy, delete, tags, version; docs/openai.md). It keeps blobs
by their digest and refuses one whose content has another; a model is made of blobs that are there.

    with ollama_server() as server:
        httpx.get(f"{server.url}/api/tags")

Switches script failures: `mute` names models that answer nothing, `broken` maps a path to (status, body).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.testing.loopback import answering

Answer = tuple[int, Any]
SAID = "It is a chain of nodes."


@dataclass
class OllamaDouble:
    """State of a running double; tests read and set it while it serves."""

    url: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, JsonObject] = field(default_factory=dict)
    """name:tag -> the body that made it."""
    mute: set[str] = field(default_factory=set)
    broken: dict[str, tuple[int, object]] = field(default_factory=dict)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """(method, path, body) of every request, in order; a blob's body is left out."""

    def answer(self, method: str, path: str, raw: bytes) -> Answer:
        """Status and body of one request."""
        blob = path.startswith("/api/blobs/")
        body = json.loads(raw) if raw and not blob else {}
        self.requests.append((method, path, body))
        if path in self.broken:
            return self.broken[path]
        if blob:
            return self.blob(method, path.removeprefix("/api/blobs/"), raw)
        routes = {
            ("GET", "/api/version"): lambda _: (200, {"version": "0.12.6"}),
            ("GET", "/api/tags"): lambda _: (200, {"models": self.listed()}),
            ("POST", "/api/create"): self.create,
            ("POST", "/api/copy"): self.copy,
            ("DELETE", "/api/delete"): self.delete,
            ("POST", "/v1/chat/completions"): self.chat,
        }
        route = routes.get((method, path))
        return route(body) if route else (404, "404 page not found")

    def blob(self, method: str, digest: str, content: bytes) -> Answer:
        if method == "HEAD":
            return (200 if digest in self.blobs else 404), ""
        if digest != f"sha256:{hashlib.sha256(content).hexdigest()}":
            return 400, {"error": f"digest mismatch, expected {digest!r}"}
        self.blobs[digest] = content
        return 201, ""

    def listed(self) -> list[JsonObject]:
        return [{"name": name, "model": name, "digest": self.digest(name)} for name in self.models]

    def digest(self, name: str) -> str:
        made_of = {key: value for key, value in self.models[name].items() if key != "model"}
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    def create(self, body: JsonObject) -> Answer:
        if not body.get("files") and not body.get("from"):
            return 400, {"error": "neither 'from' or 'files' was specified"}
        for digest in [*body.get("files", {}).values(), *body.get("adapters", {}).values()]:
            if digest not in self.blobs:
                return 400, {"error": f"blob {digest!r} not found"}
        self.models[body["model"]] = body
        return 200, {"status": "success"}

    def copy(self, body: JsonObject) -> Answer:
        if body["source"] not in self.models:
            return self.missing(body["source"])
        self.models[body["destination"]] = self.models[body["source"]]
        return 200, ""

    def delete(self, body: JsonObject) -> Answer:
        if body["model"] not in self.models:
            return self.missing(body["model"])
        del self.models[body["model"]]
        return 200, ""

    def missing(self, name: str) -> Answer:
        return 404, {"error": f"model '{name}' not found"}

    def chat(self, body: Mapping[str, object]) -> Answer:
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"model '{body['model']}' not found", "type": "not_found_error"}}
        text = "" if body["model"] in self.mute else SAID
        message = {"role": "assistant", "content": text}
        return 200, {"object": "chat.completion", "model": body["model"], "choices": [{"index": 0, "message": message}]}


@contextmanager
def ollama_server() -> Iterator[OllamaDouble]:
    """Serve a double on a free port of the loopback interface."""
    double = OllamaDouble()
    with answering(lambda request, raw: double.answer(request.command, request.path, raw)) as double.url:
        yield double
