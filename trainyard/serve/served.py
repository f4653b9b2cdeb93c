"""The names that a server answers to: its bases, their adapters, and aliases of both.

An adapter is taken only from the adapter roots, and only if its `training.json` names one of the bases and its chat
template (`bases/origins.py`). Each base has an engine and a thread of its own, which compute one request at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.serve.base_sources import choose_base
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.protocol import (
    Alias,
    ApiError,
    LoadAdapter,
    UnloadAdapter,
    check_name,
    from_trainyard,
    not_found_error,
)
from trainyard.stores.models import ModelSource, chat_template_sha256

MAX_ALIASES = 256
MAX_ADAPTERS = 256
MAX_PATH = 4096
"""Linux takes no longer path."""


@dataclass(frozen=True)
class ServedBase:
    """A base in memory, and the thread that alone computes with it."""

    source: ModelSource
    engine: ModelRunner
    worker: Worker

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def names(self) -> tuple[str, str]:
        """Return what a request may call it: its name, or its folder."""
        return self.source.name, str(self.source.path)

    @cached_property
    def template(self) -> str | None:
        return chat_template_sha256(self.source.path) if self.source.path is not None else None


@dataclass(frozen=True)
class ServedAdapter:
    base: ServedBase
    folder: Path


class ServedModels:
    """Served models by name. Changes run in the worker of a base, between two of its requests."""

    def __init__(
        self, bases: Sequence[ServedBase], roots: Sequence[Path], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.bases = {base.name: base for base in bases}
        self.roots = [root.resolve() for root in roots]
        self.adapters: dict[str, ServedAdapter] = {}
        self.aliases: dict[str, str] = dict(aliases or {})
        self.started = int(time.time())
        self.changing = threading.Lock()
        """A name is loaded once, also when two bases could take it at the same time."""

    def find(self, model: str) -> tuple[ServedBase, str | None]:
        """The base that a request's `model` means, and its adapter (None: the base alone). Raises `ApiError` 404."""
        target = self.aliases.get(model, model)
        if (adapter := self.adapters.get(target)) is not None:
            return adapter.base, target
        base = next((base for base in self.bases.values() if target in base.names), None)
        if base is None:
            raise not_found_error(model, self.names())
        return base, None

    def names(self) -> list[str]:
        return [*self.bases, *self.adapters, *self.aliases]

    def model(self, name: str) -> JsonObject:
        """Return the entry of one model, also by a base's folder. Raises `ApiError` 404 that lists the names."""
        entry_id = next((base.name for base in self.bases.values() if name in base.names), name)
        match = next((entry for entry in self.models() if entry["id"] == entry_id), None)
        if match is None:
            raise not_found_error(name, self.names())
        return match

    def models(self) -> list[JsonObject]:
        """Entries of `/v1/models`, with vLLM's `root` and `parent`."""
        bases = [
            {
                **self.entry(base.name, base, str(base.source.path), None),
                "sha256": base.source.sha256,
                "chat_template_sha256": base.template,
            }
            for base in self.bases.values()
        ]
        adapters = [
            self.entry(name, adapter.base, str(adapter.folder), adapter.base.name)
            for name, adapter in list(self.adapters.items())
        ]
        return [*bases, *adapters, *(self.alias_entry(*pair) for pair in list(self.aliases.items()))]

    def alias_entry(self, alias: str, target: str) -> dict[str, object]:
        base, adapter = self.find(target)
        root = base.source.path if adapter is None else self.adapters[adapter].folder
        return {**self.entry(alias, base, str(root), base.name), "alias_of": target}

    def entry(self, name: str, base: ServedBase, root: str, parent: str | None) -> JsonObject:
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "trainyard",
            "root": root,
            "parent": parent,
            "max_model_len": base.engine.context,
        }

    async def load(self, body: LoadAdapter) -> str:
        """vLLM's `load_lora_adapter`: returns its text. Raises `ApiError` with its codes."""
        name = body.lora_name
        if not name or not body.lora_path:
            raise user_error("Both 'lora_name' and 'lora_path' must be provided.")
        try:
            check_name(name)
        except ValueError as error:
            raise user_error(f"'lora_name': {error}.", "lora_name") from error
        if name in self.aliases or name in self.bases:
            raise user_error(f"The lora adapter name '{name}' conflicts with a served model.", "lora_name")
        folder = self.adapter_folder(body.lora_path, name)
        self.require_free(name, replace=body.load_inplace)
        base = await asyncio.to_thread(self.find_base, folder)
        await asyncio.wrap_future(base.worker.submit(lambda: self.put(name, folder, base, replace=body.load_inplace)))
        return f"Success: LoRA adapter '{name}' added successfully."

    def find_base(self, folder: Path) -> ServedBase:
        """Return the base that an adapter belongs to. Raises `ApiError` 400."""
        try:
            return self.bases[choose_base(folder, [base.source for base in self.bases.values()]).name]
        except TrainyardError as error:
            raise from_trainyard(error) from error

    def require_free(self, name: str, *, replace: bool) -> None:
        """Raises `ApiError` 400 when a name is taken, or no further adapter is."""
        if name in self.adapters and not replace:
            raise user_error(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "lora_name",
            )
        if name not in self.adapters and len(self.adapters) >= MAX_ADAPTERS:
            raise user_error(f"{MAX_ADAPTERS} adapters are loaded; unload one first.", "lora_name")

    def put(self, name: str, folder: Path, base: ServedBase, *, replace: bool = False) -> None:
        """Load an adapter on its base now; runs in the worker of the base, or before the server starts."""
        with self.changing:
            self.require_free(name, replace=replace)
            there = self.adapters.get(name)
            if there is not None and there.base is not base:
                raise user_error(
                    f"The lora adapter '{name}' is loaded on '{there.base.name}', and this one belongs to "
                    f"'{base.name}'. Unload it first.",
                    "lora_name",
                )
            try:
                if there is not None:
                    del self.adapters[name]
                    base.engine.unload_adapter(name)
                base.engine.load_adapter(name, folder)
            except TrainyardError as error:
                raise from_trainyard(error) from error
            self.adapters[name] = ServedAdapter(base, folder)

    def adapter_folder(self, path: str, name: str) -> Path:
        """Return the folder of a path inside the adapter roots, links followed. Raises `ApiError` 400 or 404."""
        try:
            folder = Path(path).resolve() if "\0" not in path and len(path) <= MAX_PATH else None
            is_there = folder is not None and (folder / "adapter_config.json").is_file()
        except (OSError, RuntimeError, ValueError):  # a name that is too long, or links in a circle
            folder, is_there = None, False
        if folder is None or not any(folder.is_relative_to(root) for root in self.roots):
            raise user_error(
                f"Loading lora {name} failed: the path is outside the server's adapter roots.", "lora_path"
            )
        if not is_there:
            raise ApiError(
                404, f"Loading lora {name} failed: No adapter found for {path[:200]}", "NotFoundError", "lora_path"
            )
        return folder

    async def unload(self, body: UnloadAdapter) -> str:
        """vLLM's `unload_lora_adapter`. An adapter that an alias names stays."""
        name = body.lora_name
        if not name:
            raise user_error("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        base = self.require_loaded(name).base
        await asyncio.wrap_future(base.worker.submit(lambda: self.drop(name)))
        return f"Success: LoRA adapter '{name}' removed successfully."

    def require_loaded(self, name: str) -> ServedAdapter:
        if name not in self.adapters:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError", "lora_name")
        return self.adapters[name]

    def drop(self, name: str) -> None:
        with self.changing:
            base = self.require_loaded(name).base
            using = [alias for alias, target in list(self.aliases.items()) if target == name]
            if using:
                raise ApiError(
                    409, f"The lora adapter '{name}' is what '{using[0]}' means.", "ConflictError", "lora_name"
                )
            del self.adapters[name]
            base.engine.unload_adapter(name)

    def set_alias(self, body: Alias) -> dict[str, object]:
        """Point an alias at a loaded adapter or at a base, or remove it; one assignment, so never in between."""
        if body.model is None:
            if self.aliases.pop(body.alias, None) is None:
                raise ApiError(404, f"The alias '{body.alias}' does not exist.", "NotFoundError", "alias")
        else:
            if body.alias in self.adapters or body.alias in self.bases:
                raise user_error(f"'{body.alias}' is the name of a served model.", "alias")
            if body.model in self.aliases or (body.model not in self.adapters and body.model not in self.bases):
                raise not_found_error(body.model, self.names())
            if body.alias not in self.aliases and len(self.aliases) >= MAX_ALIASES:
                raise user_error(f"{MAX_ALIASES} aliases are set; remove one first.", "alias")
            self.aliases[body.alias] = body.model
        return {"alias": body.alias, "model": body.model}


def user_error(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "InvalidUserInput", param)
