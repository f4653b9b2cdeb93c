"""Records of the wire's clients, below `TRAINYARD_HOME/tinker/<tenant>/`: one file for each session.

A file has a client's session with its models, their checkpoints and its samplers, and the step session that computes
for them. It is replaced whole at every change; the file of another tenant is never opened.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from trainyard.errors import Conflict, InvalidInput, NotFound
from trainyard.settings import Settings
from trainyard.stores.schema import add_version, read_versioned
from trainyard.stores.whole import write_json_durably

SESSION_ID = re.compile(r"[0-9a-f]{24}")
CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SCHEME = "tinker://"
TRAINING, SAMPLER, EXTERNAL = "weights", "sampler_weights", "external_weights"
KINDS = {TRAINING: "training", SAMPLER: "sampler", EXTERNAL: "external"}
"""Part of a path -> the SDK's name of its kind."""


class CheckpointRecord(BaseModel):
    """A saved state of a model."""

    kind: str
    """`weights` or `sampler_weights`."""
    name: str
    saved: str
    """Its name in the step session."""
    created: float
    bytes: int = 0
    expires: float | None = None
    user_metadata: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"


class ModelProgress(BaseModel):
    """How far the requests of a model are: what a service needs that starts after another one."""

    request: str = ""
    """Digest of the request that created the model: the same request again is the same model."""
    ready: bool = False
    """Whether its adapter is there, and a checkpoint that it begins with is loaded."""
    next_seq: int = 1
    """Number after the last request that was run."""
    last_op: int = 0
    """Number of its newest operation in the step session."""
    process: int = 0
    """Process of the step session that carried it out."""


class ModelRecord(BaseModel):
    """An adapter of a client."""

    id: str
    base: str
    rank: int
    seed: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = False
    engine: str = ""
    """The step session that has its adapter."""
    created: float
    last_request: float
    progress: ModelProgress = Field(default_factory=ModelProgress)
    closed: str = ""
    """Why it takes no more requests."""
    user_metadata: dict[str, Any] | None = None
    checkpoints: list[CheckpointRecord] = Field(default_factory=list)

    @property
    def signature(self) -> str:
        """Return what adapters have in common that one step session can have in turns."""
        layers = (("attn", self.train_attn), ("mlp", self.train_mlp), ("unembed", self.train_unembed))
        parts = [word for word, on in layers if on]
        return f"{self.base} {self.rank} {'+'.join(parts)}"


class SamplerRecord(BaseModel):
    """Fixed weights that a client samples from."""

    id: str
    base: str
    model_path: str | None = None
    saved: str = ""
    """Name of a saved state; empty: the base."""
    signature: str = ""
    follows: str = ""
    """Model whose newest weights it samples from: each save of its kind (`inflight`) moves it on."""
    engine: str = ""


class ClientSession(BaseModel):
    """One `ServiceClient`."""

    id: str
    tenant: str
    created: float
    last_seen: float
    finished: str = ""
    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None
    models: dict[str, ModelRecord] = Field(default_factory=dict)
    samplers: dict[str, SamplerRecord] = Field(default_factory=dict)


class TinkerStore:
    """The sessions of all tenants; those that were used are in memory. Safe for threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = threading.RLock()
        self.sessions: dict[tuple[str, str], ClientSession] = {}

    def folder(self, tenant: str) -> Path:
        return self.settings.home / "tinker" / tenant

    def open(self, tenant: str, **fields: Any) -> ClientSession:
        """Return a new session."""
        now = time.time()
        session = ClientSession(id=secrets.token_hex(12), tenant=tenant, created=now, last_seen=now, **fields)
        with self.lock:
            self.sessions[tenant, session.id] = session
            self.write(session)
        return session

    def write(self, session: ClientSession) -> None:
        """Write a session that has changed."""
        with self.lock:
            folder = self.folder(session.tenant)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / f"{session.id}.json"
            write_json_durably(path, add_version("tinker", session.model_dump(mode="json")))

    def find(self, tenant: str, session_id: str) -> ClientSession:
        """Return a session of a tenant. Raises `NotFound` (`E-NOT-FOUND`)."""
        with self.lock:
            if (session := self.sessions.get((tenant, session_id))) is not None:
                return session
            path = self.folder(tenant) / f"{session_id}.json"
            if not SESSION_ID.fullmatch(session_id) or not path.is_file():
                raise missing("session", session_id)
            session = ClientSession.model_validate(read_versioned("tinker", path.read_bytes(), path))
            self.sessions[tenant, session_id] = session
            return session

    def list(self, tenant: str) -> Iterator[ClientSession]:
        """Return the sessions of a tenant, the newest first."""
        names = [path.stem for path in self.folder(tenant).glob("*.json")]
        return iter(sorted((self.find(tenant, name) for name in names), key=lambda session: -session.created))

    def model(self, tenant: str, model_id: str) -> tuple[ClientSession, ModelRecord]:
        """Return a model and its session. Raises `NotFound` (`E-NOT-FOUND`)."""
        session_id, _, rest = model_id.partition(":")
        try:
            session = self.find(tenant, session_id)
        except NotFound:
            raise missing("model", model_id) from None
        if not rest or model_id not in session.models:
            raise missing("model", model_id)
        return session, session.models[model_id]

    def sampler(self, tenant: str, sampler_id: str) -> SamplerRecord:
        """Return a sampling session. Raises `NotFound` (`E-NOT-FOUND`)."""
        try:
            return self.find(tenant, sampler_id.partition(":")[0]).samplers[sampler_id]
        except (NotFound, KeyError):
            raise missing("sampler", sampler_id) from None

    def checkpoint(self, tenant: str, path: str) -> tuple[ModelRecord, CheckpointRecord]:
        """Return what a `tinker://` path means. Raises `InvalidInput` (`E-PARAMETER`), `NotFound` (`E-NOT-FOUND`)."""
        parts = path.removeprefix(SCHEME).split("/")
        if not path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in KINDS:
            raise InvalidInput(
                f"{path[:100]!r} is not the path of a checkpoint.",
                do="Give tinker://MODEL/weights/NAME or tinker://MODEL/sampler_weights/NAME.", code="E-PARAMETER",
            )  # fmt: skip
        _, model = self.model(tenant, parts[0])
        for checkpoint in model.checkpoints:
            if checkpoint.id == "/".join(parts[1:]) and not has_expired(checkpoint):
                return model, checkpoint
        raise missing("checkpoint", path)


def has_expired(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.expires is not None and checkpoint.expires <= time.time()


def path_of(model: ModelRecord, checkpoint: CheckpointRecord) -> str:
    return f"{SCHEME}{model.id}/{checkpoint.id}"


def require_checkpoint_name(name: str) -> str:
    """Raise `InvalidInput` (`E-NAME`) for a name that no file may have."""
    if not CHECKPOINT_NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} is not a valid name of a checkpoint.",
            do="Use up to 128 letters, digits, dots, dashes and underscores.", code="E-NAME",
        )  # fmt: skip
    return name


def require_open(model: ModelRecord) -> None:
    """Raise `Conflict` (`E-SESSION-STATE`) for a model that takes no more requests."""
    if model.closed:
        raise Conflict(
            f"The model {model.id} takes no more requests: {model.closed}.",
            do="Create a model from one of its checkpoints.", code="E-SESSION-STATE",
        )  # fmt: skip


def missing(kind: str, name: str) -> NotFound:
    return NotFound(f"There is no {kind} {name[:200]!r}.", do="Create it again.", code="E-NOT-FOUND")
