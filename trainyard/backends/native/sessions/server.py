"""The socket of a session: frames in, operations entered, replies out. Imports no torch.

    {"call": "verb", "verb", "given", "op_seq", "key", "only_repeat", "wait_s"}     a body may follow: tensors
    {"call": "result", "op_seq", "wait_s"}
    {"call": "status"}
    {"call": "heartbeat"}
    {"call": "close"}

A reply of an operation is {op_seq, verb, state, result}; state is pending, running or done. A bad frame ends its own
connection and nothing else.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from trainyard.backends.native.sessions.operations import OperationQueue, SessionOperation
from trainyard.backends.sessions.frames import MAX_PATH_BYTES, Frame, error_header, receive_frame, send_frame
from trainyard.backends.sessions.records import SOCKET_FILE, remove_socket
from trainyard.errors import InvalidInput, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.stores.whole import write_json_durably

MOST_WAIT_S = 600.0
BACKLOG = 64
READ_TIMEOUT_S = 60.0
"""Of one frame, once it has begun: a caller that stops in the middle keeps no thread for ever."""


class SessionServer:
    """Listens in a folder that only its user may enter, on a thread for each connection."""

    def __init__(
        self, folder: Path, operations: OperationQueue, verbs: frozenset[str], status: Callable[[], object]
    ) -> None:
        self.folder, self.operations, self.verbs, self.status = folder, operations, verbs, status
        self.socket_folder = make_socket_folder(folder)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def start(self) -> str:
        """Listen, and say where. Callers find it in `socket.json`."""
        path = self.socket_folder / "calls"
        path.unlink(missing_ok=True)
        self.socket.bind(str(path))
        path.chmod(0o600)
        self.socket.listen(BACKLOG)
        threading.Thread(target=self.accept, name="session-calls", daemon=True).start()
        write_json_durably(self.folder / SOCKET_FILE, {"path": str(path), "pid": os.getpid()})
        return str(path)

    def stop(self) -> None:
        """Take no more connections, and leave no socket behind."""
        (self.folder / SOCKET_FILE).unlink(missing_ok=True)
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        (self.socket_folder / "calls").unlink(missing_ok=True)
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return  # `stop` has closed it
            threading.Thread(target=self.serve, args=(connection,), name="session-call", daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        """Answer the frames of one connection until it ends or sends a bad one."""
        with connection:
            connection.settimeout(READ_TIMEOUT_S)
            try:
                while (frame := receive_frame(connection)) is not None:
                    connection.settimeout(None)
                    send_frame(connection, self.answer(frame))
                    connection.settimeout(READ_TIMEOUT_S)
            except TrainyardError as error:
                refuse(connection, error)
            except OSError:
                return  # the caller has gone; what it asked for is carried out all the same

    def answer(self, frame: Frame) -> JsonObject:
        try:
            return self.answer_call(frame)
        except TrainyardError as error:
            return error_header(error)

    def answer_call(self, frame: Frame) -> JsonObject:
        header, call = frame.header, frame.header.get("call")
        if call == "status":
            return {"reply": self.status()}
        if call == "heartbeat":
            self.operations.touch()
            return {"reply": self.status()}
        if call == "close":
            self.operations.close()
            return {"reply": self.status()}
        if call == "result":
            operation = self.operations.find(whole_number(header, "op_seq"))
        elif call == "verb" and header.get("verb") in self.verbs and isinstance(header.get("given"), dict):
            seq = None if header.get("op_seq") is None else whole_number(header, "op_seq")
            operation = self.operations.enter(
                header["verb"], header["given"], frame.body, seq, str(header.get("key") or ""),
                only_repeat=bool(header.get("only_repeat")),
            )  # fmt: skip
        else:
            raise InvalidInput(
                f"A session has no call {call!r} of {header.get('verb')!r}.",
                do=f"Use one of its verbs: {', '.join(sorted(self.verbs))}.", code="E-REQUEST-REFUSED",
            )  # fmt: skip
        wait_s = header.get("wait_s") or 0.0
        self.operations.wait(operation, min(float(wait_s), MOST_WAIT_S))
        return build_reply(operation)


def build_reply(operation: SessionOperation) -> dict[str, object]:
    answer = operation.answer or {}
    if "error" in answer:
        return {"error": answer["error"]}
    return {
        "reply": {
            "op_seq": operation.seq,
            "verb": operation.verb,
            "state": operation.state,
            "result": answer.get("reply"),
        }
    }


def whole_number(header: Mapping[str, object], name: str) -> int:
    value = header.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidInput(
        f"{name} is {value!r}.", do="Number the operations of a session 1, 2, 3 and so on.", code="E-STEP"
    )


def refuse(connection: socket.socket, error: TrainyardError) -> None:
    """Say why a frame ends its connection, if the caller still listens."""
    try:
        send_frame(connection, error_header(error))
    except OSError:
        return


def make_socket_folder(folder: Path) -> Path:
    """A folder for the socket, 0700: inside the session's own, or where that path is too long, a temporary one."""
    remove_socket(folder)
    socket_folder = folder / "socket"
    if len(os.fsencode(socket_folder / "calls")) > MAX_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix="trainyard-"))
    socket_folder.mkdir(mode=0o700)
    return socket_folder
