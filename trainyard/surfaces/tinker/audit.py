"""Lines of the audit log about requests of the wire that change something: a line before, and one when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from trainyard.app.access.audit import AuditEntry
from trainyard.app.context import Caller, Context
from trainyard.callbacks import ignore
from trainyard.errors import Denied
from trainyard.settings import Settings
from trainyard.surfaces.bodies import read_trace_id
from trainyard.surfaces.tinker.bodies import StepRequest
from trainyard.surfaces.tinker.futures import Future

Result = TypeVar("Result")
SURFACE = "tinker"
AUDITED = frozenset(
    {
        "create_session", "finish", "create_model", "unload_model", "forward_backward", "forward", "optim_step",
        "save_weights", "save_weights_for_sampler", "save_weights_external", "load_weights", "create_sampling_session",
        "asample", "delete_checkpoint", "ttl",
    }
)  # fmt: skip
"""Requests with lines; heartbeats, polling and reading have none."""
FIELDS = ("session_id", "model_id", "base_model", "model_path", "sampling_session_id", "seq_id", "path", "num_samples")


class WireFields(BaseModel):
    """Fields of a request that its lines contain: what it is about, and neither rows nor prompts."""

    session: str = ""
    target: str = ""
    """Model, sampler or checkpoint."""
    name: str = ""
    """Path or name of a checkpoint, or a base."""
    seq_id: int | None = None
    loss: str = ""
    rows: int | None = None
    samples: int | None = None


class WireEntry(AuditEntry):
    """The lines about one request of the wire."""

    @property
    def is_admins(self) -> bool:
        return False


@dataclass(frozen=True)
class RequestAudit:
    """A request of a caller: its name in the log, and where the log is."""

    name: str
    request: Request
    caller: Caller
    settings: Settings

    def entry(self, body: Any = None) -> WireEntry | None:
        """Return what writes the lines; None for a request without lines."""
        if self.name not in AUDITED:
            return None
        trace = read_trace_id(self.request)
        context = Context(self.settings, say=ignore, caller=self.caller, surface=SURFACE, trace=trace)
        return WireEntry(f"{SURFACE} {self.name}", summarize(body, self.request), context)

    def run(self, body: Any, work: Callable[[], Result]) -> Result:
        """Return the result of a request, between its two lines."""
        entry = self.entry(body)
        if entry is None:
            return work()
        entry.begin()
        try:
            result = work()
        except BaseException as error:
            entry.end(error=error)
            raise
        end_entry(entry, result)
        return result

    def note_denied(self, error: Denied) -> None:
        """Write the line about a request that its caller may not make."""
        if (entry := self.entry()) is not None:
            entry.end(error=error)


def end_entry(entry: WireEntry, result: object) -> None:
    """Write the last line: now, or once the future of the request has ended."""
    if isinstance(result, Future):
        result.when_done(lambda future: entry.end(error=future.error))
    else:
        entry.end()


def summarize(body: Any, request: Request) -> WireFields:
    """Return the fields of a body or a path that the lines contain."""
    path = request.path_params
    if isinstance(body, StepRequest):
        return WireFields(target=body.model_id, seq_id=body.seq_id, loss=body.loss[:40], rows=len(body.rows))
    values = {name: getattr(body, name, None) for name in FIELDS}
    name = values["path"] or values["base_model"] or values["model_path"]
    checkpoint = f"{path['kind']}/{path['name']}" if "kind" in path else ""
    return WireFields(
        session=values["session_id"] or path.get("session", ""),
        target=values["model_id"] or values["sampling_session_id"] or path.get("run", ""),
        name=str(name or checkpoint)[:512], seq_id=values["seq_id"], samples=values["num_samples"],
    )  # fmt: skip
