"""A double of vLLM's OpenAI server with runtime LoRA updating: real sockets, real status codes and texts, no model.

Built from the shapes in vLLM's own sources (entrypoints/openai/models/serving.py, lora/peft_helper.py): what it
refuses, the real server refuses, with the same words. It reads the adapter's config, as the engine would, so an adapter
that cannot be served fails here too.

    with vllm_server(base="org/model", max_lora_rank=16) as server:
        httpx.get(f"{server.url}/v1/models")

`aliases=True` adds the one endpoint that the embedded server has besides vLLM's. Switches script failures: `mute` names
models that answer nothing, `broken` maps a path to (status, body), sent as JSON if it begins like it, whole or not.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trainyard.json_types import JsonObject
from trainyard.testing.loopback import LoopbackHandler, answering

Answer = tuple[int, Any]


@dataclass(kw_only=True)
class SleepingEngine:
    """vLLM's sleep mode, as its endpoints show it."""

    sleep_mode: bool = False
    """Started with --enable-sleep-mode in the development mode."""
    awake: set[str] = field(default_factory=lambda: {"weights", "kv_cache"})
    """What is in the memory of the device."""
    stale: bool = False
    """Weights that level 2 has dropped, and that nothing has read again."""

    def sleep(self, body: JsonObject) -> Answer:
        """Level 1 keeps the weights in the memory of the host, level 2 drops them."""
        self.awake, self.stale = set(), self.stale or body.get("level") == "2"
        return 200, ""

    def wake_up(self, body: JsonObject) -> Answer:
        self.awake |= {body["tags"]} if "tags" in body else {"weights", "kv_cache"}
        return 200, ""

    def collective_rpc(self, body: Mapping[str, object]) -> Answer:
        """Only `reload_weights`, for which the memory of the weights has to be there."""
        if body.get("method") != "reload_weights" or "weights" not in self.awake:
            return failure(500, "InternalServerError", f"{body.get('method')} failed: the weights are asleep.")
        self.stale = False
        return 200, {"results": [None]}


@dataclass
class VllmDouble(SleepingEngine):
    """State of a running double; tests read and set it while it serves."""

    base: str
    root: str
    max_lora_rank: int = 16
    runtime_updating: bool = True
    aliases: bool = False
    api_key: str | None = None
    card: JsonObject = field(default_factory=dict)
    """More fields of the base's entry in /v1/models."""
    url: str = ""
    adapters: dict[str, str] = field(default_factory=dict)
    """lora_name -> lora_path."""
    alias: dict[str, str] = field(default_factory=dict)
    mute: set[str] = field(default_factory=set)
    broken: dict[str, tuple[int, str]] = field(default_factory=dict)
    logprobs: Callable[[list[int]], list[list[float]]] | None = None
    """Row of token ids -> at each place the log-probabilities of all tokens; without it there are no completions."""
    max_logprobs: int = 20
    requests: list[tuple[str, Any]] = field(default_factory=list)
    """(path, body) of every request, in order."""

    def answer(self, method: str, path: str, raw: bytes, key: str | None) -> Answer:
        """Status and body of one request."""
        body = json.loads(raw) if raw else None
        self.requests.append((path, body))
        if path in self.broken:
            return self.broken[path]
        if self.api_key and path.startswith("/v1") and key != f"Bearer {self.api_key}":
            return 401, {"error": "Unauthorized"}
        routes = {
            ("GET", "/health"): lambda _: (200, ""),
            ("GET", "/v1/models"): lambda _: (200, self.models()),
            ("POST", "/v1/chat/completions"): self.chat,
        }
        if self.logprobs is not None:
            routes["POST", "/v1/completions"] = self.complete
        if self.runtime_updating:
            routes["POST", "/v1/load_lora_adapter"] = self.load
            routes["POST", "/v1/unload_lora_adapter"] = self.unload
        if self.aliases:
            routes["POST", "/v1/aliases"] = self.set_alias
        if self.sleep_mode:
            routes |= {("POST", f"/{name}"): getattr(self, name) for name in ("sleep", "wake_up", "collective_rpc")}
        plain = urlsplit(path)
        route = routes.get((method, plain.path))
        return route((body or {}) | dict(parse_qsl(plain.query))) if route else (404, {"detail": "Not Found"})

    def models(self) -> JsonObject:
        base = {"id": self.base, "object": "model", "owned_by": "vllm", "root": self.root, "parent": None, **self.card}
        loaded = [
            {"id": name, "object": "model", "owned_by": "vllm", "root": path, "parent": self.base}
            for name, path in self.adapters.items()
        ]
        aliases = [{"id": name, "parent": self.base, "alias_of": target} for name, target in self.alias.items()]
        return {"object": "list", "data": [base, *loaded, *aliases]}

    def complete(self, body: JsonObject) -> Answer:
        """Prompts of token ids with `prompt_logprobs`: the likeliest tokens at each place, and the one there."""
        if body.get("return_token_ids"):
            return self.draw(body)
        most, prompts = body.get("prompt_logprobs"), body["prompt"]
        if most is not None and most > self.max_logprobs:
            text = f"Requested prompt logprobs of {most}, which is greater than max allowed: {self.max_logprobs}"
            return failure(400, "BadRequestError", text)
        assert self.logprobs is not None, "a route of its own"
        choices = []
        for index, ids in enumerate(prompts):
            positions: list[JsonObject | None] = [None]
            for token, row in zip(ids[1:], self.logprobs(ids), strict=False):
                ranked = sorted(range(len(row)), key=row.__getitem__, reverse=True)
                ranks = {token: rank for rank, token in enumerate(ranked, 1)}
                tokens = dict.fromkeys([*ranked[: most or 0], token])
                positions.append({str(token): {"logprob": row[token], "rank": ranks[token]} for token in tokens})
            choices.append({"index": index, "text": "", "finish_reason": "length", "prompt_logprobs": positions})
        return 200, {"object": "text_completion", "model": body["model"], "choices": choices}

    def draw(self, body: JsonObject) -> Answer:
        """`n` completions of one prompt of token ids, drawn from its log-probabilities over the temperature."""
        name = body["model"]
        if name != self.base and name not in self.adapters:
            return failure(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        if self.awake != {"weights", "kv_cache"} or self.stale:
            return failure(500, "InternalServerError", "EngineCore encountered an issue: the engine is asleep.")
        assert self.logprobs is not None, "a route of its own"
        dice, stops, choices = random.Random(body["seed"]), set(body["stop_token_ids"]), []
        for index in range(body["n"]):
            ids: list[int] = []
            values: list[float] = []
            while len(ids) < body["max_tokens"] and not stops & set(ids[-1:]):
                row = [value / body["temperature"] for value in self.logprobs([*body["prompt"], *ids])[-1]]
                scale = math.log(sum(map(math.exp, row)))
                (token,) = dice.choices(range(len(row)), [math.exp(value - scale) for value in row])
                ids.append(token)
                values.append(row[token] - scale)
            reason = "stop" if stops & set(ids[-1:]) else "length"
            logprobs = {"token_logprobs": values, "tokens": [f"token_id:{token}" for token in ids]}
            choices.append({
                "index": index, "text": "", "finish_reason": reason, "token_ids": ids, "logprobs": logprobs,
                "prompt_token_ids": body["prompt"],
            })  # fmt: skip
        return 200, {"object": "text_completion", "model": name, "choices": choices}

    def load(self, body: JsonObject) -> Answer:
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            return failure(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapters and not body.get("load_inplace"):
            text = f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
            return failure(400, "InvalidUserInput", f"{text}set 'load_inplace' to True.")
        config = Path(path) / "adapter_config.json"
        if not config.is_file():
            return failure(404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {path}")
        faults = self.unservable(json.loads(config.read_text(encoding="utf-8")))
        if faults:
            return failure(500, "InternalServerError", " ".join(faults))
        self.adapters[name] = path
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def unservable(self, config: JsonObject) -> list[str]:
        faults = []
        if config.get("modules_to_save"):
            faults.append("vLLM only supports modules_to_save being None.")
        if config.get("use_dora"):
            faults.append("vLLM does not yet support DoRA.")
        if config["r"] > self.max_lora_rank:
            faults.append(f"LoRA rank {config['r']} is greater than max_lora_rank {self.max_lora_rank}.")
        if config.get("bias", "none") != "none":
            faults.append("Adapter bias is not supported.")
        return faults

    def unload(self, body: Mapping[str, object]) -> Answer:
        name = body.get("lora_name")
        if not name:
            return failure(400, "InvalidUserInput", "'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self.adapters:
            return failure(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        if name in self.alias.values():
            return failure(409, "ConflictError", f"The lora adapter '{name}' is what an alias means.")
        del self.adapters[name]
        return 200, f"Success: LoRA adapter '{name}' removed successfully."

    def set_alias(self, body: JsonObject) -> Answer:
        alias, model = body["alias"], body.get("model")
        if model is None:
            if self.alias.pop(alias, None) is None:
                return failure(404, "NotFoundError", f"The alias '{alias}' does not exist.")
        elif model in self.adapters:
            self.alias[alias] = model
        else:
            return failure(404, "NotFoundError", f"The model `{model}` does not exist.")
        return 200, {"alias": alias, "model": model}

    def chat(self, body: JsonObject) -> Answer:
        name = self.alias.get(body["model"], body["model"])
        if name != self.base and name not in self.adapters:
            return failure(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        text = "" if name in self.mute else f"{name} heard: {body['messages'][-1]['content']}"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return 200, {"id": "chatcmpl-1", "object": "chat.completion", "model": body["model"], "choices": [choice]}


def failure(status: int, kind: str, message: str, param: str | None = None) -> Answer:
    """vLLM's error object."""
    return status, {"error": {"message": message, "type": kind, "param": param, "code": status}}


@contextmanager
def vllm_server(base: str = "base", root: str | None = None, *, port: int = 0, **fields: Any) -> Iterator[VllmDouble]:
    """A double on a loopback port, a free one for 0; `fields` are those of `VllmDouble`."""
    double = VllmDouble(base, root or base, **fields)

    def answer(request: LoopbackHandler, raw: bytes) -> Answer:
        return double.answer(request.command, request.path, raw, request.headers.get("authorization"))

    with answering(answer, port) as double.url:
        yield double
