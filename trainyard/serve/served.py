"""The names that a server answers to: its base, its adapters, and aliases of them.

An adapter is taken only from the adapter roots, and only if its `training.json` names this base and this chat
template: an adapter on another base answers nonsense without any error, and one under another template nearly so.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from trainyard.errors import InvalidInput, TrainyardError
from trainyard.serve.inference import ModelRunner, Worker
from trainyard.serve.protocol import Alias, ApiError, LoadAdapter, UnloadAdapter, check_name, from_trainyard, not_found
from trainyard.stores.models import ModelSource, chat_template_sha256

MAX_ALIASES = 256
MAX_ADAPTERS = 256
MAX_PATH = 4096
"""Linux takes no longer path."""


class ServedModels:
    """What is served under which name. Changes run in the worker, between two requests."""

    def __init__(self, engine: ModelRunner, worker: Worker, base: ModelSource, roots: list[Path]) -> None:
        self.engine, self.worker, self.base = engine, worker, base
        self.roots = [root.resolve() for root in roots]
        self.paths: dict[str, Path] = {}
        self.aliases: dict[str, str] = {}
        self.started = int(time.time())
        self.template = chat_template_sha256(base.path) if base.path is not None else None

    def adapter_of(self, model: str) -> str | None:
        """The adapter that a request's `model` means, None for the base. Raises `ApiError` 404."""
        target = self.aliases.get(model, model)
        if target in self.paths:
            return target
        if target in (self.base.name, str(self.base.path)):
            return None
        raise not_found(model, self.names())

    def names(self) -> list[str]:
        return [self.base.name, *self.paths, *self.aliases]

    def model(self, name: str) -> dict[str, Any]:
        """The entry of one model, also by the base's folder. Raises `ApiError` 404 that lists the names."""
        wanted = self.base.name if name == str(self.base.path) else name
        found = next((entry for entry in self.models() if entry["id"] == wanted), None)
        if found is None:
            raise not_found(name, self.names())
        return found

    def models(self) -> list[dict[str, Any]]:
        """Entries of `/v1/models`, with vLLM's `root` and `parent`."""
        identity = {"sha256": self.base.sha256, "chat_template_sha256": self.template}
        base = {**self.entry(self.base.name, str(self.base.path), None), **identity}
        adapters = [self.entry(name, str(path), self.base.name) for name, path in self.paths.items()]
        aliases = [
            {**self.entry(alias, str(self.paths.get(target, self.base.path)), self.base.name), "alias_of": target}
            for alias, target in self.aliases.items()
        ]
        return [base, *adapters, *aliases]

    def entry(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "trainyard",
            "root": root,
            "parent": parent,
            "max_model_len": self.engine.context,
        }

    async def load(self, asked: LoadAdapter) -> str:
        """vLLM's `load_lora_adapter`: returns its text. Raises `ApiError` with its codes."""
        name = asked.lora_name
        if not name or not asked.lora_path:
            raise user_error("Both 'lora_name' and 'lora_path' must be provided.")
        try:
            check_name(name)
        except ValueError as error:
            raise user_error(f"'lora_name': {error}.", "lora_name") from error
        if name in self.aliases or name == self.base.name:
            raise user_error(f"The lora adapter name '{name}' conflicts with a served model.", "lora_name")
        folder = self.adapter_folder(asked.lora_path, name)
        await asyncio.wrap_future(self.worker.submit(lambda: self.put(name, folder, replace=asked.load_inplace)))
        return f"Success: LoRA adapter '{name}' added successfully."

    def put(self, name: str, folder: Path, *, replace: bool = False) -> None:
        """Load an adapter now; runs in the worker, or before the server starts."""
        if name in self.paths and not replace:
            raise user_error(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                "lora_name",
            )
        if name not in self.paths and len(self.paths) >= MAX_ADAPTERS:
            raise user_error(f"{MAX_ADAPTERS} adapters are loaded; unload one first.", "lora_name")
        try:
            check_origin(folder, self.base)
            if name in self.paths:
                del self.paths[name]
                self.engine.unload_adapter(name)
            self.engine.load_adapter(name, folder)
        except TrainyardError as error:
            raise from_trainyard(error) from error
        self.paths[name] = folder

    def adapter_folder(self, path: str, name: str) -> Path:
        """The folder of a path inside the adapter roots, links followed. Raises `ApiError` 400 or 404."""
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

    async def unload(self, asked: UnloadAdapter) -> str:
        """vLLM's `unload_lora_adapter`. An adapter that an alias names stays."""
        name = asked.lora_name
        if not name:
            raise user_error("'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
        await asyncio.wrap_future(self.worker.submit(lambda: self.drop(name)))
        return f"Success: LoRA adapter '{name}' removed successfully."

    def drop(self, name: str) -> None:
        if name not in self.paths:
            raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError", "lora_name")
        using = [alias for alias, target in self.aliases.items() if target == name]
        if using:
            raise ApiError(409, f"The lora adapter '{name}' is what '{using[0]}' means.", "ConflictError", "lora_name")
        del self.paths[name]
        self.engine.unload_adapter(name)

    def set_alias(self, asked: Alias) -> dict[str, Any]:
        """Point an alias at a loaded adapter or at the base, or remove it; one assignment, so never in between."""
        if asked.model is None:
            if self.aliases.pop(asked.alias, None) is None:
                raise ApiError(404, f"The alias '{asked.alias}' does not exist.", "NotFoundError", "alias")
        else:
            if asked.alias in self.paths or asked.alias == self.base.name:
                raise user_error(f"'{asked.alias}' is the name of a served model.", "alias")
            if asked.model in self.aliases or (asked.model not in self.paths and asked.model != self.base.name):
                raise not_found(asked.model, self.names())
            if asked.alias not in self.aliases and len(self.aliases) >= MAX_ALIASES:
                raise user_error(f"{MAX_ALIASES} aliases are set; remove one first.", "alias")
            self.aliases[asked.alias] = asked.model
        return {"alias": asked.alias, "model": asked.model}


def user_error(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "InvalidUserInput", param)


def check_origin(folder: Path, base: ModelSource) -> None:
    """Compare an adapter's `training.json` with the base. An adapter made elsewhere has none and passes.

    Raises `InvalidInput` (`E-ADAPTER-MISMATCH`).
    """
    path = folder / "training.json"
    if not path.is_file() or base.path is None:
        return
    try:
        origin = json.loads(path.read_text(encoding="utf-8"))
        trained_on, template = origin.get("base_sha256"), origin.get("chat_template_sha256")
    except (ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{folder.name}/training.json is not a JSON object.", do="Train it again.", code="E-ADAPTER-MISMATCH"
        ) from error
    if trained_on is not None and trained_on != base.sha256:
        raise InvalidInput(
            f"The adapter was trained on another base than {base.name!r}.",
            why=f"Its base has the digest {str(trained_on)[:12]}, this one {base.sha256[:12]}.",
            do="Serve the base that training.json names, or train the adapter on this base.",
            code="E-ADAPTER-MISMATCH",
        )
    served = chat_template_sha256(base.path)
    if template is not None and template != served:
        raise InvalidInput(
            "The adapter was trained with another chat template than the one that is served.",
            why=f"Its template has the digest {str(template)[:12]}, the served one {str(served)[:12]}.",
            do="Serve the base with the template of the training, or train the adapter again.",
            code="E-ADAPTER-MISMATCH",
        )
