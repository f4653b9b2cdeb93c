"""Trains at a paid service in the interpreter of its SDK: `python -m trainyard_worker.step_service NAME FOLDER`.

One line of JSON is a verb, and one line answers it; the verbs are those of `backends/remote_steps/service.py`:

    {"verb": "forward", "rows": [...]}   ->   {"value": [...]}   or   {"error": {kind, why}}

The service's key comes in an environment variable. Standard output is the protocol's alone: what an SDK prints goes to
standard error, which is the log of the training. The end of standard input ends the program, which then lets go of
what is paid for.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from .files import write_whole

MEMORY_FILE = "step_service.json"
"""In the folder of a job: the resources created at the service, so that a later process finds them."""
SERVICES = {"fireworks_steps": "step_fireworks", "together_steps": "step_together"}
"""Backend -> module of this package, whose `SERVICE` is the class."""
VERBS = (
    "open", "forward", "backward", "step", "generate", "base_logprobs", "save", "load", "remove", "export", "close",
)  # fmt: skip
DENIED, REFUSED, UNAVAILABLE, CORRUPT = "denied", "refused", "unavailable", "corrupt"
END_S = 60.0
"""Seconds to let go of the service in, after the last request."""
PAUSES_S = (1.0, 4.0)
"""Before a second and a third request for something that was not created."""
ADDRESS, KEY = "TRAINYARD_STEP_ADDRESS", "TRAINYARD_STEP_KEY"
"""Variables of this program alone."""
Fields = dict[str, Any]


class ServiceError(Exception):
    """An error of the service, by its kind."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Memory:
    """What a job created at its service, kept in its folder across processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MEMORY_FILE
        self.values: Fields = orjson.loads(self.path.read_bytes()) if self.path.is_file() else {}

    def write(self, kind: str, **fields: Any) -> None:
        """Replace the stored facts of a kind; none for one that is gone."""
        self.values.pop(kind, None)
        if fields:
            self.values[kind] = fields
        write_whole(self.path, self.values)

    def create_once(self, kind: str, list_ids: Callable[[], list[str]], create: Callable[[], str]) -> str:
        """Create something that is paid for, or find the one whose reply was lost: never two.

        The ids that exist before the request are written down first. A request without a reply, of this process or of
        one that died, is looked up by what exists now and did not exist then, before it is repeated; with several
        candidates nothing is created.
        """
        entry = self.values.get(kind, {})
        lost = entry.get("before")
        before = lost if lost is not None else list_ids()
        self.write(kind, before=before)
        created = self._find(kind, list_ids, before) if lost is not None else None
        for pause in (*PAUSES_S, None):
            if created is not None:
                break
            try:
                created = create()
            except ServiceError as error:
                created = self._find(kind, list_ids, before) if error.kind == UNAVAILABLE else None
                if created is None and (pause is None or error.kind != UNAVAILABLE):
                    self.write(kind)
                    raise
                time.sleep(pause or 0)
        assert created is not None, "created, found, or raised"
        self.write(kind, id=created)
        return created

    def _find(self, kind: str, list_ids: Callable[[], list[str]], before: list[str]) -> str | None:
        new_ids = sorted(set(list_ids()) - set(before))
        if len(new_ids) > 1:
            names = ", ".join(new_ids)
            raise ServiceError(REFUSED, f"One {kind} was requested, and the service has {len(new_ids)} new: {names}.")
        return new_ids[0] if new_ids else None


def read_environment() -> tuple[str, str]:
    """Return address and key of the service; the address is empty for the SDK's own."""
    return os.environ.get(ADDRESS, ""), os.environ.pop(KEY, "")


def run_verb(service: Any, request: Fields, classify: Callable[[Exception], ServiceError]) -> Fields:
    """Return the answer to one request."""
    verb = request.pop("verb")
    try:
        if verb not in VERBS:
            raise ServiceError(REFUSED, f"There is no verb {verb!r}.")
        return {"value": getattr(service, verb)(**request)}
    except ServiceError as error:
        return {"error": {"kind": error.kind, "why": str(error)}}
    except Exception as error:
        traceback.print_exc()
        reason = classify(error)
        return {"error": {"kind": reason.kind, "why": str(reason)}}


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]


def main(name: str, folder: Path) -> None:
    """Answer requests until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the training decides when the service is let go
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module = importlib.import_module(f".{SERVICES[name]}", __package__)
    service, is_open = module.SERVICE(Memory(folder)), False
    try:
        for line in sys.stdin.buffer:
            request = orjson.loads(line)
            is_open = request["verb"] != "close"
            answer = run_verb(service, request, module.classify)
            answers.write(orjson.dumps(answer) + b"\n")
            answers.flush()
    finally:
        end = threading.Timer(END_S, os._exit, (1,))
        end.daemon = True
        end.start()  # an SDK may repeat a request to a service that is gone for hours
        if is_open:
            run_verb(service, {"verb": "close", "status": "errored"}, module.classify)
    answers.close()
    os._exit(0)  # threads of an SDK may wait for a service that is gone


if __name__ == "__main__":
    from trainyard_worker import step_service  # the module that the services import, and not a second copy of it

    step_service.main(sys.argv[1], Path(sys.argv[2]))
