"""The operations of a session in their order: numbered, carried out once, answered again. Imports no torch.

An operation has a number, `op_seq`: 1 for the first. A caller may name it; then the same number with the same content
gets the first reply, the same number with another content is refused, and so is a number that skips one. Numbers and
replies are part of each checkpoint, so that all of this is true after a resume, too: what the checkpoint does not know
has not been done, and comes again.

A call without a number may have a key, such as the Idempotency-Key of an HTTP request: the same key is the same
operation as long as its reply is kept.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import orjson

from trainyard.errors import Conflict, InvalidInput, LimitExceeded
from trainyard.json_types import JsonMapping, JsonObject

KEPT = 1024
"""Replies that are kept, the newest."""
KEPT_BYTES = 64 << 20
SAVED_REPLY_BYTES = 64 << 10
"""Of a larger reply a checkpoint keeps that it was given, and not what it said."""
MOST_WAITING = 256


@dataclass(eq=False)
class SessionOperation:
    """A call of a verb."""

    seq: int
    verb: str
    digest: str
    key: str = ""
    arguments: JsonObject = field(default_factory=dict)
    body: bytes = b""
    answer: JsonObject | None = None
    """`{"reply": …}` or `{"error": …}` once it is done; empty where a checkpoint did not keep it."""
    bytes: int = 0
    running: bool = False

    @property
    def state(self) -> str:
        if self.answer is None:
            return "running" if self.running else "pending"
        return "failed" if "error" in self.answer else "done"


def hash_call(verb: str, arguments: JsonMapping, body: bytes) -> str:
    hasher = hashlib.sha256(orjson.dumps([verb, arguments], option=orjson.OPT_SORT_KEYS))
    hasher.update(body)
    return hasher.hexdigest()


class OperationQueue:
    """Entered by the threads of connections, carried out by the main thread, one after another."""

    def __init__(self, saved: JsonMapping | None = None) -> None:
        self.by_seq: OrderedDict[int, SessionOperation] = OrderedDict()
        self.keyed: dict[str, SessionOperation] = {}
        self.waiting: deque[SessionOperation] = deque()
        self.kept_bytes = 0
        """Of all replies in `by_seq`; those of a checkpoint count nothing."""
        self.next_seq = 1
        self.done = 0
        """Number of the last operation that was carried out."""
        self.resumed_after: int | None = None
        self.closing = False
        self.last_call = time.monotonic()
        self.changed = threading.Condition()
        if saved is not None:
            self.done = self.resumed_after = int(saved["done"])
            self.next_seq = self.done + 1
            for seq, verb, digest, answer, *key in saved["replies"]:
                self.add(SessionOperation(seq, verb, digest, "".join(key), answer=answer))

    # For connections

    def enter(
        self,
        verb: str,
        arguments: JsonObject,
        body: bytes,
        seq: int | None,
        key: str = "",
        *,
        only_repeat: bool = False,
    ) -> SessionOperation:
        """Return the operation of a call: a new one, or the one that this call repeats.

        With `only_repeat` the caller knows that the key was used before, and nothing new is entered.

        Raises `Conflict` (`E-STEP`, `E-CONFLICT`, `E-SESSION-STATE`), `LimitExceeded` (`E-LIMIT`) and `InvalidInput`
        (`E-PARAMETER`) for a key that came with another call.
        """
        digest = hash_call(verb, arguments, body)
        with self.changed:
            self.last_call = time.monotonic()
            if key in self.keyed:
                return self.require_kept(self.keyed[key].seq, self.require_same(self.keyed[key], digest))
            if only_repeat:
                raise forgotten_key()
            if seq is not None and seq != self.next_seq:
                return self.find_repeated(seq, verb, digest)
            self.require_open()
            operation = SessionOperation(self.next_seq, verb, digest, key, arguments, body)
            self.add(operation)
            self.waiting.append(operation)
            self.next_seq += 1
            self.changed.notify_all()
            return operation

    def add(self, operation: SessionOperation) -> None:
        self.by_seq[operation.seq] = operation
        if operation.key:
            self.keyed[operation.key] = operation

    def require_same(self, operation: SessionOperation, digest: str) -> SessionOperation:
        if operation.digest != digest:
            raise InvalidInput(
                "This Idempotency-Key came with another request before.", do="Use a new key for a new request.",
                code="E-PARAMETER",
            )  # fmt: skip
        return operation

    def require_open(self) -> None:
        if self.closing:
            raise Conflict("The session is closing.", do="Resume it, then call again.", code="E-SESSION-STATE")
        if len(self.waiting) >= MOST_WAITING:
            raise LimitExceeded(
                f"{MOST_WAITING} operations of this session are waiting.", do="Wait for their results.", code="E-LIMIT"
            )

    def find_repeated(self, seq: int, verb: str, digest: str) -> SessionOperation:
        """Return the operation that has this number already."""
        if seq > self.next_seq:
            lost = f" It was resumed after operation {self.resumed_after}." if self.resumed_after is not None else ""
            raise Conflict(
                f"The next operation of this session is {self.next_seq}, not {seq}.",
                why=f"The operations between them were not received, or not saved before the session ended.{lost}",
                do=f"Send the operations again from {self.next_seq} on.",
                code="E-STEP",
            )
        operation = self.by_seq.get(seq)
        if operation is not None and operation.digest != digest:
            raise Conflict(
                f"Operation {seq} was another {operation.verb} call.",
                why="The same op_seq comes again with another verb or other arguments.",
                do=f"Use {self.next_seq} for a new operation.",
                code="E-CONFLICT",
            )
        return self.require_kept(seq, operation)

    def touch(self) -> None:
        """Begin the idle time again: the client is there, and computes. Raises `Conflict` (`E-SESSION-STATE`)."""
        with self.changed:
            self.require_open()
            self.last_call = time.monotonic()

    def find(self, seq: int) -> SessionOperation:
        """Return the operation of that number. Raises `Conflict` (`E-STEP`) for one that is not known (any more)."""
        with self.changed:
            self.last_call = time.monotonic()
            return self.require_kept(seq, self.by_seq.get(seq))

    def require_kept(self, seq: int, operation: SessionOperation | None) -> SessionOperation:
        if operation is None or operation.answer == {}:
            carried_out = 0 < seq <= self.done
            raise Conflict(
                f"The reply of operation {seq} is not known.",
                why=f"It was carried out, and its reply is not kept any more: the last {KEPT} are, and a checkpoint "
                f"keeps those up to {SAVED_REPLY_BYTES >> 10} KiB."
                if carried_out
                else f"There is no such operation: the next one is {self.next_seq}.",
                do="Continue with the next operation; it is not carried out a second time.",
                code="E-STEP",
            )
        return operation

    def wait(self, operation: SessionOperation, timeout_s: float) -> bool:
        """Whether an operation is done, at most so many seconds from now."""
        with self.changed:
            return self.changed.wait_for(lambda: operation.answer is not None, timeout_s)

    def close(self) -> None:
        """Take no new operation; those that wait are carried out."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()

    # For the main thread

    def take(self, timeout_s: float) -> SessionOperation | None:
        """Return the next operation to carry out; None if none comes in that time, or if the session closes."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self.waiting) or self.closing, timeout_s)
            if not self.waiting:
                return None
            operation = self.waiting.popleft()
            operation.running = True
            return operation

    def finish(self, operation: SessionOperation, answer: JsonObject, size: int) -> None:
        with self.changed:
            operation.answer, operation.bytes, operation.running = answer, size, False
            self.kept_bytes += size
            operation.arguments, operation.body = {}, b""
            self.done, self.last_call = operation.seq, time.monotonic()
            self.forget()
            self.changed.notify_all()

    def forget(self) -> None:
        """Drop the oldest replies above the limits; those that are not given yet stay."""
        while len(self.by_seq) > KEPT or self.kept_bytes > KEPT_BYTES:
            seq, oldest = next(iter(self.by_seq.items()))
            if oldest.answer is None or seq == self.done:
                return
            self.kept_bytes -= oldest.bytes
            del self.by_seq[seq]
            self.keyed.pop(oldest.key, None)

    def idle_s(self) -> float:
        """Seconds since the last call or the end of the last operation; 0 while one waits."""
        with self.changed:
            return 0.0 if self.waiting else time.monotonic() - self.last_call

    def saved(self) -> JsonObject:
        """Return what a checkpoint keeps of the operations that are done."""
        with self.changed:
            done = [operation for operation in self.by_seq.values() if operation.answer is not None]
            replies = [
                [
                    operation.seq,
                    operation.verb,
                    operation.digest,
                    operation.answer if operation.bytes <= SAVED_REPLY_BYTES else {},
                    operation.key,
                ]
                for operation in done
            ]
            return {"done": self.done, "replies": replies}


def forgotten_key() -> Conflict:
    return Conflict(
        "This request was run before, and its reply is not kept any more.",
        why=f"The last {KEPT} replies are.",
        do="Continue with the next request; this one is not run a second time.", code="E-STEP",
    )  # fmt: skip
