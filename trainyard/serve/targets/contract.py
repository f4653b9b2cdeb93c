"""The words of this folder: what is known of an adapter, one target during a deployment, a row's six functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import httpx

from trainyard.errors import Reason
from trainyard.json_types import JsonMapping
from trainyard.serve.targets.local import Replacement
from trainyard.settings import Settings
from trainyard.spec.nodes import Target
from trainyard.stores.adapters import AdapterRegistry, AdapterVersion


@dataclass(frozen=True)
class AdapterCandidate:
    """Facts of an adapter that a target needs before loading it."""

    kind: str
    """`adapter` or `model`."""
    base_model: str
    base_path: str
    base_sha256: str
    chat_template_sha256: str
    adapter_config: JsonMapping
    template: str = ""
    """Text of the chat template that it was trained with."""

    @property
    def rank(self) -> int:
        """Return the largest rank of any layer."""
        return max(
            [int(self.adapter_config.get("r") or 0), *dict(self.adapter_config.get("rank_pattern") or {}).values()]
        )

    @property
    def base_names(self) -> frozenset[str]:
        return frozenset(name for name in (self.base_model, self.base_path) if name)


@dataclass(frozen=True)
class Canary:
    """Smoke test of a new version before it becomes live."""

    prompt: str = ""
    max_tokens: int = 32


@dataclass
class TargetDeployment:
    """A target during one deployment."""

    target: Target
    candidate: AdapterCandidate
    registry: AdapterRegistry
    index: int = 0
    http: httpx.Client | None = None
    canary: Canary = Canary()
    version: AdapterVersion | None = None
    previous: AdapterVersion | None = None
    loaded: bool = False
    switched: bool = False
    alias_before: str | None = None
    """Target of the alias on this server before the switch."""
    answer: str = ""
    """Answer to the canary prompt."""
    settings: Settings | None = None
    """For the targets that start a server or write files of their own."""
    action: str = "deploy"
    """Action in the history of the live pointer: deploy, promote or rollback."""
    server: Replacement | None = None
    """The server that this deployment started next to the one that answers now."""

    @property
    def new(self) -> AdapterVersion:
        assert self.version is not None, "a version is registered before a target is touched"
        return self.version

    @property
    def where(self) -> str:
        return f"{self.target.type.value} at {self.http.base_url}" if self.http else self.target.type.value

    def reason(self, code: str, key: str, because: str, instead: str) -> Reason:
        return Reason(code, None, f"config.targets.{self.index}.{key}", because, instead)


class Actions(NamedTuple):
    """A row of the table."""

    check: Callable[[TargetDeployment], list[Reason]]
    load: Callable[[TargetDeployment], None]
    canary: Callable[[TargetDeployment], None]
    switch: Callable[[TargetDeployment], None]
    undo: Callable[[TargetDeployment], None]
    retire: Callable[[TargetDeployment], None]


def accept_site(_site: TargetDeployment) -> list[Reason]:
    return []
